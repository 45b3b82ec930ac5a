package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// rootDeadline is how long the root device may take to appear. It is there
// when its module has been loaded; this is for a device that never comes.
const rootDeadline = 60 * time.Second

const newRoot = "/newroot"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "modules" {
		late()
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "sandboxforge-init: this is process 1 of a guest; refusing to run as another process")
		os.Exit(2)
	}
	err := boot()
	fmt.Fprintf(os.Stderr, "sandboxforge-init: fatal: %v\n", err)
	unix.Sync()
	// Only reached on failure. Without ACPI the machine halts instead, and the
	// console line is what tells.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// boot returns only if it failed.
func boot() error {
	if err := mountKernel(); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	opt := parseCmdline(string(line))
	events, err := openEvents()
	if err != nil {
		return fmt.Errorf("listen for devices: %w", err)
	}
	if err := loadList(earlyModules, "/modules"); err != nil {
		warn("load modules: %v", err)
	}
	if err := waitFor(opt.root, events, rootDeadline); err != nil {
		return err
	}
	unix.Close(events)
	if err := mountRoot(opt.root, newRoot, opt.rootFlags); err != nil {
		return err
	}
	if err := linkPorts(); err != nil {
		warn("link virtio ports: %v", err)
	}
	if err := makeNodes(); err != nil {
		warn("make device nodes: %v", err)
	}
	if err := up(network{device: "lo"}); err != nil {
		warn("%v", err)
	}
	if opt.net != "" {
		n, err := parseNetwork(opt.net)
		if err == nil {
			err = up(n)
		}
		if err != nil {
			warn("%v", err)
		}
	}
	if opt.hostname != "" {
		if err := unix.Sethostname([]byte(opt.hostname)); err != nil {
			warn("set host name: %v", err)
		}
	}
	self, err := os.Open("/init")
	if err != nil {
		return err
	}
	if err := enter(newRoot); err != nil {
		return err
	}
	if err := startLate(self); err != nil {
		warn("load modules in the background: %v", err)
	}
	self.Close()
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=vt220"}
	return fmt.Errorf("execute %s: %w", strings.Join(opt.init, " "), unix.Exec(opt.init[0], opt.init, env))
}

// startLate runs this program once more, as a child that loads the root file
// system's modules while the real init starts. The real init reaps it, as it
// does any orphan. The executable is reached through its open descriptor: its
// file is already deleted.
func startLate(self *os.File) error {
	if _, err := os.Stat(lateModules); err != nil {
		return nil
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	_, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), []string{"sandboxforge-init", "modules"},
		&os.ProcAttr{Dir: "/", Files: []*os.File{null, null, os.Stderr}})
	return err
}

// late is the child's whole work.
func late() {
	rel, err := release()
	if err == nil {
		err = loadList(lateModules, "/usr/lib/modules/"+rel)
	}
	if err != nil {
		warn("load modules: %v", err)
	}
}

func warn(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "sandboxforge-init: warning: "+format+"\n", args...)
}
