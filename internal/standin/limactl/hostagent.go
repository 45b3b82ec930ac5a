//go:build linux

package limactl

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// hostAgent keeps one VM: it starts the hypervisor, waits for the guest's sshd,
// and stays until the hypervisor ends.
func hostAgent(c command) error {
	name := c.args[0]
	dir := dirOf(name)
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	if err := writePID(name, "ha.pid", os.Getpid()); err != nil {
		return err
	}
	i, err := inspect(name)
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	conf := fmt.Sprintf("Host lima-%s\n  IdentityFile \"%s\"\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  User lima\n  ControlMaster auto\n  ControlPath \"%s\"\n  Hostname 127.0.0.1\n  Port %d\n",
		name, filepath.Join(home(), "_config", "user"), filepath.Join(dir, "ssh.sock"), port)
	if err := os.WriteFile(filepath.Join(dir, "ssh.config"), []byte(conf), 0o600); err != nil {
		return err
	}
	cmd := driverCommand(i, port)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := writePID(name, i.VMType+".pid", cmd.Process.Pid); err != nil {
		return err
	}
	event := func(s status) {
		json.NewEncoder(os.Stdout).Encode(map[string]any{"time": time.Now(), "status": s})
	}
	ready := make(chan bool, 1)
	go func() { ready <- awaitSSH(port) }()
	leave := func(err error) error {
		text := "%!q(<nil>)"
		if err != nil {
			text = "`" + err.Error() + "`"
		}
		logLine("info", "Driver stopped due to error: "+text)
		event(status{Exiting: true})
		for _, f := range []string{i.VMType + ".pid", "ha.pid"} {
			os.Remove(filepath.Join(dir, f))
		}
		return nil
	}
	// It notices the hypervisor's end a moment later, as the real one does.
	notice := func(err error) error {
		time.Sleep(200 * time.Millisecond)
		return leave(err)
	}
	for {
		select {
		case <-ready:
			event(status{Running: true})
		case err := <-ended:
			return notice(err)
		case <-interrupts:
			logLine("info", "Received SIGINT, shutting down the host agent")
			powerDown(i, cmd)
			select {
			case <-ended:
			case <-time.After(3 * time.Minute):
				cmd.Process.Kill()
				<-ended
			}
			return leave(nil)
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// awaitSSH waits for an sshd that greets.
func awaitSSH(port int) bool {
	for {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err == nil {
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			line, err := bufio.NewReader(c).ReadString('\n')
			c.Close()
			if err == nil && strings.HasPrefix(line, "SSH-") {
				return true
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// powerDown presses the power button of a VM of QEMU; the fake guest takes a
// signal for that.
func powerDown(i *instance, cmd *exec.Cmd) {
	if os.Getenv("LIMACTL_STANDIN_DRIVER") != "qemu" {
		cmd.Process.Signal(syscall.SIGTERM)
		return
	}
	c, err := net.Dial("unix", filepath.Join(i.Dir, "qmp.sock"))
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(c)
	for _, order := range []string{"qmp_capabilities", "system_powerdown"} {
		fmt.Fprintf(c, `{"execute":%q}`+"\n", order)
	}
	for range 3 {
		if _, err := r.ReadString('\n'); err != nil {
			return
		}
	}
}

func driverCommand(i *instance, port int) *exec.Cmd {
	if os.Getenv("LIMACTL_STANDIN_DRIVER") == "qemu" {
		return qemuCommand(i, port)
	}
	cmd := self("driver", i.Name, fmt.Sprint(port))
	cmd.Stderr = os.Stderr
	return cmd
}

var errNoImage = errors.New("LIMACTL_STANDIN_IMAGE names no image")
