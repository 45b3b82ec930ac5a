//go:build linux

package limactl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The image is the directory that Image makes.

// makeDisk makes an instance's disk: a layer over the image's.
func makeDisk(name string) error {
	disk := filepath.Join(dirOf(name), "disk")
	if os.Getenv("LIMACTL_STANDIN_DRIVER") != "qemu" {
		return os.WriteFile(disk, []byte("a disk"), 0o600)
	}
	image := os.Getenv("LIMACTL_STANDIN_IMAGE")
	if image == "" {
		return errNoImage
	}
	out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", filepath.Join(image, "disk.raw"), disk).CombinedOutput()
	if err != nil {
		return fmt.Errorf("qemu-img: %w: %s", err, out)
	}
	return nil
}

// qemuCommand runs the guest emulated, on user networking with sshd forwarded
// from the host's loopback.
func qemuCommand(i *instance, port int) *exec.Cmd {
	image := os.Getenv("LIMACTL_STANDIN_IMAGE")
	cmdline, err := os.ReadFile(filepath.Join(image, "cmdline"))
	if err != nil {
		return exec.Command("false")
	}
	pub, err := os.ReadFile(filepath.Join(home(), "_config", "user.pub"))
	if f := strings.Fields(string(pub)); err == nil && len(f) > 1 {
		cmdline = append(cmdline[:len(cmdline)-1], " standin.key="+f[1]...)
	}
	disk := filepath.Join(i.Dir, "disk")
	// A larger disk than the image's is grown at the start, as Lima does.
	if i.Disk > 0 {
		if out, err := exec.Command("qemu-img", "resize", "-q", disk, fmt.Sprint(i.Disk)).CombinedOutput(); err != nil {
			logLine("warning", strings.TrimSpace(string(out)))
		}
	}
	binary := "qemu-system-x86_64"
	if i.Arch == "aarch64" {
		binary = "qemu-system-aarch64"
	}
	console := filepath.Join(i.Dir, "serial.log")
	os.Remove(console)
	cmd := exec.Command(binary, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,vmport=off", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max",
		"-smp", fmt.Sprint(i.CPUs), "-m", fmt.Sprintf("%dM", i.Memory>>20),
		"-kernel", filepath.Join(image, "kernel"), "-initrd", filepath.Join(image, "initrd"), "-append", strings.TrimSpace(string(cmdline)),
		"-drive", "file="+disk+",format=qcow2,if=virtio,cache=unsafe",
		"-netdev", fmt.Sprintf("user,id=n,net=192.168.127.0/24,host=192.168.127.1,dns=192.168.127.3,dhcpstart=192.168.127.15,hostfwd=tcp:127.0.0.1:%d-192.168.127.2:22", port),
		"-device", "virtio-net-pci,netdev=n", "-device", "virtio-rng-pci",
		"-chardev", "file,id=c,path="+console, "-serial", "chardev:c",
		"-qmp", "unix:"+filepath.Join(i.Dir, "qmp.sock")+",server=on,wait=off")
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	return cmd
}
