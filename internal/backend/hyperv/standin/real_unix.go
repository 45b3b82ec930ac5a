//go:build unix

package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Real makes the VMs of a world real ones, of QEMU. Their disks are images of
// qemu-img under the names that Hyper-V's would have; a child is a qcow2,
// because QEMU has no differencing VHDX.
type Real struct {
	Binary string `json:"binary"` // qemu-system-*
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd"`
	Append string `json:"append"` // to the kernel's command line
	// Addresses gives the host's loopback the addresses of the guests, with
	// their port 22. Needs root. Otherwise the port is VM.Port of 127.0.0.1.
	Addresses bool `json:"addresses"`
}

// imageInfo asks qemu-img about a disk.
func imageInfo(path string) (disk, error) {
	out, err := exec.Command("qemu-img", "info", "-U", "--output=json", path).Output()
	if err != nil {
		return disk{}, err
	}
	var info struct {
		Size   int64  `json:"virtual-size"`
		Parent string `json:"full-backing-filename"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return disk{}, err
	}
	d := disk{Size: info.Size, Kind: "Dynamic"}
	if info.Parent != "" {
		d.Kind, d.Parent = "Differencing", info.Parent
	}
	return d, nil
}

// makeChild makes a disk on another.
func makeChild(path string, d disk) error {
	format := "qcow2"
	if p, err := imageInfo(d.Parent); err == nil && p.Kind == "Dynamic" {
		format = "vhdx"
	}
	out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-b", d.Parent, "-F", format, path, strconv.FormatInt(d.Size, 10)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// boot runs QEMU for a machine. It is nobody's child that counts: as a worker
// process of Hyper-V it outlives whoever asked for it.
func (r *Real) boot(v *VM) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	v.Port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	forward := "127.0.0.1:" + strconv.Itoa(v.Port)
	if r.Addresses {
		forward = v.Address + ":22"
		if out, err := exec.Command("ip", "addr", "add", v.Address+"/32", "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	mac := strings.ToLower(strings.ReplaceAll(dashed(v.MAC), "-", ":"))
	args := []string{
		"-name", string(v.ID), "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", strconv.FormatInt(v.Processors, 10), "-m", strconv.FormatInt(v.Memory>>20, 10) + "M",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "file:" + filepath.Join(v.Path, "console.log"),
		"-qmp", "unix:" + r.socket(v) + ",server=on,wait=off",
		"-kernel", r.Kernel, "-initrd", r.Initrd, "-append", r.Append,
		"-netdev", "user,id=n0,hostfwd=tcp:" + forward + "-:22", "-device", "virtio-net-pci,netdev=n0,mac=" + mac,
		"-device", "virtio-rng-pci", "-device", "virtio-scsi-pci",
	}
	comma := strings.NewReplacer(",", ",,")
	for i, d := range v.Disks {
		args = append(args, "-drive", fmt.Sprintf("file=%s,format=qcow2,if=none,id=d%d", comma.Replace(d.Path), i), "-device", fmt.Sprintf("virtio-blk-pci,drive=d%d", i))
	}
	for i, d := range v.DVDs {
		args = append(args, "-drive", fmt.Sprintf("file=%s,format=raw,media=cdrom,readonly=on,if=none,id=c%d", comma.Replace(d.Path), i), "-device", fmt.Sprintf("scsi-cd,drive=c%d", i))
	}
	log, err := os.OpenFile(filepath.Join(v.Path, "qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.Binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	v.PID = cmd.Process.Pid
	go cmd.Wait()
	return nil
}

// socket is where QEMU takes orders; its path must be short.
func (r *Real) socket(v *VM) string {
	return filepath.Join(os.TempDir(), "hv-"+string(v.ID)[:18]+".sock")
}

// press presses the power button.
func (r *Real) press(v *VM) error {
	c, err := net.DialTimeout("unix", r.socket(v), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, `{"execute":"qmp_capabilities"}{"execute":"system_powerdown"}`); err != nil {
		return err
	}
	// Two answers and the greeting, then it is done.
	d := json.NewDecoder(c)
	for range 3 {
		var m json.RawMessage
		if err := d.Decode(&m); err != nil {
			return err
		}
	}
	return nil
}

// alive: the process is still this machine's, and no zombie.
func (v *VM) alive() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", v.PID))
	return err == nil && strings.Contains(string(b), string(v.ID))
}

// cut ends the process and waits for that.
func (r *Real) cut(v *VM) error {
	defer os.Remove(r.socket(v))
	for until := time.Now().Add(20 * time.Second); v.alive(); {
		if err := syscall.Kill(v.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("process %d does not end", v.PID)
		}
		time.Sleep(5 * time.Millisecond)
	}
	v.PID = 0
	r.release(v)
	return nil
}

// release takes a guest's address back, if it is still there.
func (r *Real) release(v *VM) {
	if r.Addresses && v.Address != "" {
		exec.Command("ip", "addr", "del", v.Address+"/32", "dev", "lo").Run()
	}
}
