package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
)

// systemService is the System service.
type systemService struct{ a *Agent }

// system is the guest's own state that outlasts a request.
type system struct {
	cfg Config
	mu  sync.Mutex
	// The deadline is kept by a timer on the boot clock, which goes on while
	// the guest is suspended.
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newSystem(cfg Config) *system {
	if cfg.PowerOff == nil {
		cfg.PowerOff = powerOff
	}
	return &system{cfg: cfg}
}

func (s *system) close() {
	s.mu.Lock()
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// powerOff ends the guest. It does not wait for services: the machine is
// disposable, its disk is only kept consistent.
func powerOff(reboot bool) {
	unix.Sync()
	cmd := unix.LINUX_REBOOT_CMD_POWER_OFF
	if reboot {
		cmd = unix.LINUX_REBOOT_CMD_RESTART
	}
	unix.Reboot(cmd) //nolint:errcheck // nobody is left to tell
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func (s systemService) Ping(context.Context, *guestv1.PingRequest) (*guestv1.PingResponse, error) {
	return &guestv1.PingResponse{AgentVersion: s.a.cfg.Version, BootId: s.a.procs.bootID}, nil
}

func (s systemService) Info(context.Context, *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	out := &guestv1.InfoResponse{
		AgentVersion: s.a.cfg.Version, ProtocolVersion: ProtocolVersion, BootId: s.a.procs.bootID,
		Arch: runtime.GOARCH, Cpus: uint32(runtime.NumCPU()), TimeUnixNs: time.Now().UnixNano(),
	}
	text := func(b []byte) string { return strings.ToValidUTF8(strings.TrimSpace(string(b)), "\uFFFD") }
	if b, err := os.ReadFile(filepath.Join(s.a.cfg.Etc, "machine-id")); err == nil {
		out.MachineId = text(b)
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		out.Kernel = text([]byte(unix.ByteSliceToString(uts.Release[:])))
		out.Hostname = text([]byte(unix.ByteSliceToString(uts.Nodename[:])))
	}
	if b, err := os.ReadFile(filepath.Join(s.a.cfg.Etc, "os-release")); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				out.Os = strings.Trim(text([]byte(v)), `"'`)
			}
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			var kb uint64
			if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kb); n == 1 {
				out.MemoryBytes = kb << 10
			}
			if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
				out.MemoryAvailableBytes = kb << 10
			}
		}
	}
	out.RootSizeBytes, out.RootFreeBytes = rootSize()
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) == nil {
		out.UptimeNs = ts.Nano()
	}
	if device, size, err := rootDevice(); err == nil {
		out.RootDeviceBytes = size
		if fs, err := ext4Size(device); err == nil {
			// mkfs leaves less than a block group unused at the end.
			out.RootDeviceLarger = size > fs && size-fs >= 8<<20
		}
	}
	return out, nil
}

func rootSize() (size, free uint64) {
	var st unix.Statfs_t
	if unix.Statfs("/", &st) != nil {
		return 0, 0
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize)
}

var (
	machineID  = regexp.MustCompile(`^[0-9a-f]{32}$`)
	hostnameRE = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)
)

func (s systemService) SetIdentity(_ context.Context, req *guestv1.SetIdentityRequest) (*guestv1.SetIdentityResponse, error) {
	if req.Hostname != "" && !hostnameRE.MatchString(req.Hostname) {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%q is not a host name", req.Hostname))
	}
	if req.MachineId != "" && !machineID.MatchString(req.MachineId) {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("a machine id is 32 lower-case hex digits"))
	}
	// Randomness first: what the other steps start may draw from it.
	var errs []error
	if len(req.Entropy) > 0 {
		errs = append(errs, addEntropy(req.Entropy))
	}
	if req.TimeUnixNs != 0 {
		tv := unix.NsecToTimeval(req.TimeUnixNs)
		if err := unix.Settimeofday(&tv); err != nil {
			errs = append(errs, fmt.Errorf("setting the clock: %w", err))
		}
	}
	if req.MachineId != "" {
		errs = append(errs, s.a.sys.setMachineID(req.MachineId))
	}
	if req.Hostname != "" {
		errs = append(errs, s.a.sys.setHostname(req.Hostname))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &guestv1.SetIdentityResponse{}, nil
}

// addEntropy credits bytes to the kernel's pool and has its generator take
// them at once.
func addEntropy(b []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b = b[:min(len(b), 512)]
	// struct rand_pool_info { int entropy_count; int buf_size; __u32 buf[]; }
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(b)))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(b)))
	info = append(info, b...)
	const rndAddEntropy, rndReseedCRNG = 0x40085203, 0x5207
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndAddEntropy, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return os.NewSyscallError("RNDADDENTROPY", errno)
	}
	runtime.KeepAlive(info)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndReseedCRNG, 0); errno != 0 {
		return os.NewSyscallError("RNDRESEEDCRNG", errno)
	}
	return nil
}

func (s *system) setMachineID(id string) error {
	path := filepath.Join(s.cfg.Etc, "machine-id")
	err := replaceFile(path, []byte(id+"\n"), 0o444)
	// dbus has a copy of its own where it is not a link to the first.
	const dbus = "/var/lib/dbus/machine-id"
	if st, serr := os.Lstat(dbus); s.cfg.Etc == "/etc" && serr == nil && st.Mode().IsRegular() {
		err = errors.Join(err, replaceFile(dbus, []byte(id+"\n"), 0o444))
	}
	return err
}

func (s *system) setHostname(name string) error {
	etc := s.cfg.Etc
	old, _ := os.ReadFile(filepath.Join(etc, "hostname"))
	var errs []error
	if etc == "/etc" {
		if err := unix.Sethostname([]byte(name)); err != nil {
			errs = append(errs, fmt.Errorf("setting the host name: %w", err))
		}
	}
	errs = append(errs, replaceFile(filepath.Join(etc, "hostname"), []byte(name+"\n"), 0o644))
	hosts, _ := os.ReadFile(filepath.Join(etc, "hosts"))
	errs = append(errs, replaceFile(filepath.Join(etc, "hosts"), hostsWith(hosts, strings.TrimSpace(string(old)), name), 0o644))
	return errors.Join(errs...)
}

// hostsWith gives 127.0.1.1 the new name and takes the old one's line out.
func hostsWith(hosts []byte, old, name string) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(hosts)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "127.0.1.1" && (old == "" || f[1] == old || f[1] == name) {
			continue
		}
		out.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			out.WriteByte('\n')
		}
	}
	if !strings.Contains(out.String(), "127.0.0.1") {
		out.WriteString("127.0.0.1\tlocalhost\n")
	}
	out.WriteString("127.0.1.1\t" + name + "\n")
	return []byte(out.String())
}

// replaceFile writes a small file whole; where the directory can't take a new
// file (a bind mount), it is written in place.
func replaceFile(path string, b []byte, mode os.FileMode) error {
	tmp := path + ".sandboxforge"
	if err := os.WriteFile(tmp, b, mode); err == nil {
		if err := os.Rename(tmp, path); err == nil {
			return nil
		}
		os.Remove(tmp)
	}
	return os.WriteFile(path, b, mode)
}

func (s systemService) SetDeadline(_ context.Context, req *guestv1.SetDeadlineRequest) (*guestv1.SetDeadlineResponse, error) {
	if err := s.a.sys.setDeadline(time.Duration(req.RemainingNs)); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &guestv1.SetDeadlineResponse{}, nil
}

// setDeadline arms the power-off, or disarms it for a time of zero or less.
func (s *system) setDeadline(d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
	if d <= 0 {
		return nil
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(fd, 0, &spec, nil); err != nil {
		unix.Close(fd)
		return os.NewSyscallError("timerfd_settime", err)
	}
	f := os.NewFile(uintptr(fd), "deadline")
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	stop := context.AfterFunc(ctx, func() { f.Close() })
	s.wg.Go(func() {
		defer f.Close()
		defer stop()
		if n, err := f.Read(make([]byte, 8)); n == 8 && err == nil && ctx.Err() == nil {
			s.cfg.PowerOff(false)
		}
	})
	return nil
}

func (s systemService) PowerOff(_ context.Context, req *guestv1.PowerOffRequest) (*guestv1.PowerOffResponse, error) {
	s.a.wg.Go(func() {
		// The answer leaves first.
		select {
		case <-time.After(50 * time.Millisecond):
		case <-s.a.ctx.Done():
		}
		s.a.sys.cfg.PowerOff(req.Reboot)
	})
	return &guestv1.PowerOffResponse{}, nil
}

func (s systemService) GrowRoot(context.Context, *guestv1.GrowRootRequest) (*guestv1.GrowRootResponse, error) {
	if err := growRoot(); err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	size, _ := rootSize()
	return &guestv1.GrowRootResponse{RootSizeBytes: size}, nil
}
