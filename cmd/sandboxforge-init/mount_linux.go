package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelMounts are the file systems that both this program and the real init
// need; they move along when the root changes.
var kernelMounts = []struct {
	source, target, kind string
	flags                uintptr
	data                 string
}{
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
}

func mountKernel() error {
	for _, m := range kernelMounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// openEvents subscribes to the kernel's device events. Opened before the
// modules are loaded, so that no device can appear unseen.
func openEvents() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// waitFor blocks until path exists, woken by device events. A lost event
// (the socket overran) is a reason to look again, not an error.
func waitFor(path string, events int, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	buf := make([]byte, 8192)
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("device %s did not appear within %s", path, limit)
		}
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(events), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for {
			if _, _, err := unix.Recvfrom(events, buf, unix.MSG_DONTWAIT); err != nil {
				break
			}
		}
	}
}

// mountRoot mounts the root device on target. Flags that the mount system call
// takes as bits are sorted out of the option string.
func mountRoot(device, target, options string) error {
	var flags uintptr
	var data []string
	for _, o := range strings.Split(options, ",") {
		switch o {
		case "", "rw":
		case "ro":
			flags |= unix.MS_RDONLY
		case "noatime":
			flags |= unix.MS_NOATIME
		case "nodiratime":
			flags |= unix.MS_NODIRATIME
		case "relatime":
			flags |= unix.MS_RELATIME
		default:
			data = append(data, o)
		}
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, target, "ext4", flags, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	return nil
}

// linkPorts makes /dev/virtio-ports/NAME for every named virtio-serial port,
// as udev's rules would.
func linkPorts() error {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return err
	}
	for _, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name := strings.TrimSpace(string(text))
		if name == "" || strings.ContainsAny(name, "/\x00") {
			continue
		}
		if err := os.MkdirAll("/dev/virtio-ports", 0o755); err != nil {
			return err
		}
		port := filepath.Base(filepath.Dir(file))
		if err := os.Symlink("../"+port, "/dev/virtio-ports/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// staticNodes are devices whose modules the kernel loads when they are first
// opened; without udev nobody else would make their nodes.
var staticNodes = []struct {
	path         string
	mode         uint32
	major, minor uint32
}{
	{"/dev/fuse", 0o666, 10, 229},
	{"/dev/net/tun", 0o666, 10, 200},
	{"/dev/loop-control", 0o660, 10, 237},
}

func makeNodes() error {
	var failed []error
	for _, n := range staticNodes {
		if err := os.MkdirAll(filepath.Dir(n.path), 0o755); err != nil {
			return err
		}
		err := unix.Mknod(n.path, unix.S_IFCHR|n.mode, int(unix.Mkdev(n.major, n.minor)))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			failed = append(failed, fmt.Errorf("%s: %w", n.path, err))
			continue
		}
		// Whatever the umask, or the kernel's own node.
		failed = append(failed, os.Chmod(n.path, os.FileMode(n.mode)))
	}
	return errors.Join(failed...)
}

// enter makes target the root directory, with the kernel's file systems in it.
// The initrd's files are deleted first: nothing could reach them any more, and
// they are memory.
func enter(target string) error {
	for _, m := range kernelMounts {
		if err := unix.Mount(m.target, target+m.target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", m.target, err)
		}
	}
	for _, p := range []string{"/init", "/modules"} {
		if err := os.RemoveAll(p); err != nil {
			return err
		}
	}
	if err := unix.Chdir(target); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}
