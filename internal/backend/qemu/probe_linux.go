package qemu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Probe implements backend.Backend. A missing default image is a problem but
// not fatal: it can be built, and other images may be there. Without any image
// the accelerator is not decided yet.
func (b *Backend) Probe(ctx context.Context, p backend.Progress) (backend.Report, error) {
	var r backend.Report
	problem := func(fatal bool, fix, format string, a ...any) {
		r.Problems = append(r.Problems, backend.Problem{What: fmt.Sprintf(format, a...), Fix: fix, Fatal: fatal})
	}
	fromError := func(fatal bool, err error) {
		f := fault.From(err)
		what := f.Error()
		if f.Cause != "" {
			what += ": " + f.Cause
		}
		problem(fatal, strings.Join(f.DetailMap()["next_steps"].([]string), "; "), "%s", what)
	}
	p.Report("probe", "looking at QEMU")
	arch := runtime.GOARCH
	saves := func() {}
	if bin, err := b.binary(arch); err != nil {
		fromError(true, err)
	} else if f, err := b.facts(ctx, bin, arch); err != nil {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		fromError(true, err)
	} else {
		r.Version = f.Version
		if !f.Sandbox {
			r.Evidence = append(r.Evidence, "This QEMU was built without seccomp: its own sandbox is off.")
		}
		saves = func() { b.reportSaves(ctx, &r, bin, f) }
	}
	if _, err := exec.LookPath(b.qemuImg()); err != nil {
		problem(true, installHint(b.qemuImg()), "%s is not installed", b.qemuImg())
	}
	for _, dir := range []string{b.c.StateDir, b.c.RunDir, b.c.CacheDir} {
		if err := checkDir(dir); err != nil {
			fix := "make it a directory that you own and can write to: mkdir -p -m 700 " + dir
			if fault.Is(err, fault.InsufficientDisk) {
				fix = "free space on the disk of " + dir
			}
			problem(true, fix, "%s: %v", dir, err)
		}
	}
	if obstacle := kvmObstacle(arch); obstacle != "" && b.c.Accel == "" {
		problem(false, kvmRemedy(obstacle)+"; VMs work without it, slower", "no hardware acceleration: %s", obstacle)
	}
	fatal := func() bool {
		for _, q := range r.Problems {
			if q.Fatal {
				return true
			}
		}
		return false
	}
	img, noImage := b.find("", arch)
	if noImage != nil {
		fromError(false, noImage)
		if b.c.Accel != "" {
			r.Accelerator = b.c.Accel
		} else {
			r.Evidence = append(r.Evidence, "The accelerator is not decided yet: that takes a guest image.")
		}
	} else if !fatal() {
		v, err := b.accelFor(ctx, img, p)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		r.Accelerator = v.Accel
		r.Evidence = append(r.Evidence, v.Evidence...)
		if err != nil {
			fromError(true, err)
		}
	}
	if b.c.Accel == "kvm" {
		known := &img
		if noImage != nil {
			known = nil
		}
		if p, ok := b.forcedKVM(known); ok {
			r.Evidence = append(r.Evidence, "It worked when it was last tried.")
		} else {
			r.Problems = append(r.Problems, p)
		}
	}
	if !fatal() {
		saves()
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	r.Usable = !fatal()
	return r, nil
}

// checkDir makes a directory and sees that files can be made in it.
func checkDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}

// find asks the finder for an image and checks that its files are there.
func (b *Backend) find(name, arch string) (Image, error) {
	if b.c.Images == nil {
		return Image{}, fault.New(fault.ImageNotFound, "this process has no images").
			Because("the backend was made without an image finder")
	}
	img, err := b.c.Images.Find(name, arch)
	if err != nil {
		return Image{}, err
	}
	return img, checkImage(img)
}

// checkImage fails with IMAGE_NOT_FOUND when a file of the image is missing.
func checkImage(img Image) error {
	for _, path := range []string{img.Kernel, img.Initrd, img.Root} {
		if path == "" && path == img.Initrd {
			continue
		}
		st, err := os.Stat(path)
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", path)
		}
		if err != nil {
			return imageFault(err, img)
		}
	}
	return nil
}

func imageFault(err error, img Image) error {
	return fault.Wrap(err, fault.ImageNotFound, "the guest image %q is not complete", img.Name).
		Next("build it: sandboxforge image build %s", img.Name)
}

// packages names the package of a program for each package manager.
var packages = map[string]map[string]string{
	"apt-get": {"qemu-system-x86_64": "qemu-system-x86", "qemu-system-aarch64": "qemu-system-arm", "qemu-img": "qemu-utils"},
	"dnf":     {"qemu-system-x86_64": "qemu-system-x86-core", "qemu-system-aarch64": "qemu-system-aarch64-core", "qemu-img": "qemu-img"},
	"pacman":  {"qemu-system-x86_64": "qemu-system-x86", "qemu-system-aarch64": "qemu-system-aarch64", "qemu-img": "qemu-img"},
}

// installHint is the command that installs a program: for the package manager
// that is here, or for all that are known where that does not say which.
func installHint(program string) string {
	program = program[strings.LastIndexByte(program, '/')+1:]
	var here, all []string
	for _, m := range []struct{ name, command string }{
		{"apt-get", "sudo apt-get install -y --no-install-recommends %s"},
		{"dnf", "sudo dnf install -y %s"},
		{"pacman", "sudo pacman -S --needed %s"},
	} {
		pkg := packages[m.name][program]
		if pkg == "" {
			return "install " + program + " and put it on PATH"
		}
		hint := fmt.Sprintf(m.command, pkg)
		if _, err := exec.LookPath(m.name); err == nil {
			here = append(here, hint)
		}
		all = append(all, hint)
	}
	if len(here) == 1 {
		return here[0]
	}
	return strings.Join(all, ", or ")
}
