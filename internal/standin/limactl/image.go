//go:build linux

package limactl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gofrs/flock"

	"sandboxforge/internal/image"
)

// imageFormat is raised when what is made of an unchanged recipe changes.
const imageFormat = 2

// guestInit is process 1 of the stand-in's guests: it does what cloud-init and
// systemd do of a real one, as far as an ssh login needs it.
const guestInit = `#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc 2>/dev/null
mount -t sysfs sysfs /sys 2>/dev/null
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts 2>/dev/null
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
mkdir -p /run/sshd
for word in $(cat /proc/cmdline); do
	case $word in standin.key=*) echo "ssh-ed25519 ${word#standin.key=}" >/home/lima/.ssh/authorized_keys ;; esac
done
chown -R lima:lima /home/lima
chmod 700 /home/lima /home/lima/.ssh
/usr/sbin/sshd -D -e -o UseDNS=no >/dev/console 2>&1 &
while :; do wait; sleep 1; done
`

// Image makes the guest of LIMACTL_STANDIN_DRIVER=qemu below dir, where built
// images are, unless it is there: the minimal image with an sshd, sudo and a
// user lima, and without our own agent, as a distribution's image is. It needs
// what the build of an image needs, and debugfs. Several processes may call it
// at once.
func Image(ctx context.Context, dir string) (string, error) {
	r, err := image.Minimal(runtime.GOARCH)
	if err != nil {
		return "", err
	}
	r.Base, r.Name = image.MinimalName, "lima-standin"
	r.Packages = append(r.Packages, "openssh-server", "sudo")
	img, err := image.Store{Dir: dir}.Build(ctx, r, image.BuildOptions{})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, ".standins")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	target := filepath.Join(dir, fmt.Sprintf("limactl-%d-%s", imageFormat, img.Digest[:16]))
	lock := flock.New(filepath.Join(dir, "limactl.lock"))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	half := target + ".half"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	defer os.RemoveAll(half)
	if err := os.Mkdir(half, 0o700); err != nil {
		return "", err
	}
	var words []string
	for _, w := range strings.Fields(img.Cmdline) {
		if !strings.HasPrefix(w, "sandboxforge.init=") {
			words = append(words, w)
		}
	}
	words = append(words, "sandboxforge.init=/bin/sh,/sbin/standin-init")
	err = errors.Join(
		os.WriteFile(filepath.Join(half, "cmdline"), []byte(strings.Join(words, " ")+"\n"), 0o600),
		os.Symlink(img.Kernel, filepath.Join(half, "kernel")),
		os.Symlink(img.Initrd, filepath.Join(half, "initrd")),
		tool(ctx, "cp", "--sparse=always", img.Root, filepath.Join(half, "disk.raw")),
	)
	if err == nil {
		err = addUser(ctx, half)
	}
	if err != nil {
		return "", err
	}
	return target, os.Rename(half, target)
}

func tool(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// addUser edits the file system of disk.raw without mounting it.
func addUser(ctx context.Context, dir string) error {
	disk, scratch := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "scratch")
	debugfs := func(orders string) error {
		if err := os.WriteFile(scratch+".orders", []byte(orders), 0o600); err != nil {
			return err
		}
		defer os.Remove(scratch + ".orders")
		return tool(ctx, "debugfs", "-w", "-f", scratch+".orders", disk)
	}
	put := func(path, mode, content string) error {
		if err := os.WriteFile(scratch, []byte(content), 0o600); err != nil {
			return err
		}
		defer os.Remove(scratch)
		// It writes a name, and not a path.
		return debugfs(fmt.Sprintf("cd %[1]s\nrm %[2]s\nwrite %[3]s %[2]s\nsif %[2]s mode 0100%[4]s\nsif %[2]s uid 0\nsif %[2]s gid 0\n",
			filepath.Dir(path), filepath.Base(path), scratch, mode))
	}
	for _, f := range []struct{ path, mode, line string }{
		{"/etc/passwd", "644", "lima:x:501:501::/home/lima:/bin/bash\n"},
		{"/etc/group", "644", "lima:x:501:\n"},
		{"/etc/shadow", "640", "lima:*:20000:0:99999:7:::\n"},
	} {
		if err := tool(ctx, "debugfs", "-R", "dump "+f.path+" "+scratch, disk); err != nil {
			return err
		}
		b, err := os.ReadFile(scratch)
		if err != nil {
			return err
		}
		var kept strings.Builder
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "sandbox:") { // a distribution has no such user
				kept.WriteString(line)
			}
		}
		if err := put(f.path, f.mode, kept.String()+f.line); err != nil {
			return err
		}
	}
	return errors.Join(
		put("/usr/sbin/standin-init", "755", guestInit),
		put("/etc/sudoers.d/lima", "440", "lima ALL=(ALL) NOPASSWD:ALL\n"),
		debugfs("cd /home\nmkdir lima\ncd lima\nmkdir .ssh\ncd /usr/lib/sandboxforge\nrm agent\nrm shim\ncd /home\nrmdir sandbox\ncd /\nrmdir workspace\n"),
	)
}
