package agent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initMounts are made by process 1; those that the initrd made are kept.
var initMounts = []struct {
	target, kind, data string
	flags              uintptr
}{
	{"/proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{"/sys", "sysfs", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{"/dev", "devtmpfs", "mode=0755", unix.MS_NOSUID},
	{"/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	{"/run", "tmpfs", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
	{"/tmp", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	{"/sys/fs/cgroup", "cgroup2", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
}

// Init is process 1 of the minimal image. It prepares the system, runs
// `SELF serve` and starts it again whenever it ends, and reaps orphans. It is a
// process of its own, so that the agent can be killed there as anywhere. The
// initrd has brought up the network card; the loopback is brought up here.
func Init(self string) int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, errNotPID1)
		return 2
	}
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "sandboxforge-agent: "+format+"\n", args...) }
	mounted, _ := os.ReadFile("/proc/self/mounts")
	for _, m := range initMounts {
		if strings.Contains(string(mounted), " "+m.target+" ") {
			continue
		}
		os.MkdirAll(m.target, 0o755)
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			say("mount %s: %v", m.target, err)
		}
	}
	for link, target := range map[string]string{"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2"} {
		os.Symlink(target, link) //nolint:errcheck // it may be there
	}
	if err := loopbackUp(); err != nil {
		say("loopback: %v", err)
	}
	name := commandLine("sandboxforge.hostname")
	if name == "" {
		if b, err := os.ReadFile("/etc/hostname"); err == nil {
			name = strings.TrimSpace(string(b))
		}
	}
	if name != "" {
		unix.Sethostname([]byte(name)) //nolint:errcheck // a name is not needed to work
	}
	os.Setenv("PATH", defaultPath)
	return supervise(self, say)
}

// supervise runs the agent and reaps everything. It returns only by powering
// the machine off.
func supervise(self string, say func(string, ...any)) int {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT, unix.SIGPWR)
	start := func() int {
		pid, err := syscall.ForkExec(self, []string{self, "serve"}, &syscall.ProcAttr{
			Dir: "/", Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		if err != nil {
			say("start the agent: %v", err)
			return 0
		}
		return pid
	}
	started := time.Now()
	child := start()
	var restart <-chan time.Time
	if child == 0 {
		restart = time.After(time.Second)
	}
	for {
		select {
		case <-restart:
			started = time.Now()
			if child = start(); child == 0 {
				restart = time.After(time.Second)
			}
		case s := <-sigs:
			if s != unix.SIGCHLD {
				powerOff(s == unix.SIGINT)
				return 1
			}
			for {
				var ws unix.WaitStatus
				pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || pid <= 0 {
					break
				}
				if pid != child {
					continue
				}
				child = 0
				// At once, unless it keeps dying.
				delay := time.Duration(0)
				if time.Since(started) < time.Second {
					delay = time.Second
				}
				restart = time.After(delay)
			}
		}
	}
}

// loopbackUp sets the loopback's address and brings it up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	// The kernel gives lo its addresses when it comes up.
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return os.NewSyscallError("SIOCGIFFLAGS", err)
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("SIOCSIFFLAGS", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
}
