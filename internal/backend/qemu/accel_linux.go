package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// An accelerator is believed when the real guest kernel has run under it, not
// when its device opens: there are hosts where /dev/kvm opens, the VM starts
// and a stock kernel hangs before its first line.

// Deadlines of one trial, from the start of QEMU. Both are generous: a busy
// host must not lose KVM for it, and a hang is paid once per host boot.
const (
	kvmTrial = 10 * time.Second
	tcgTrial = 90 * time.Second
)

// What the kernel prints first, and when it hands over to user space.
var (
	kernelLine = []byte("Linux version ")
	initLine   = []byte("as init process")
)

// verdict is the outcome of the trials, as remembered.
type verdict struct {
	Accel    string    `json:"accel"` // empty: none worked
	Evidence []string  `json:"evidence"`
	At       time.Time `json:"at"`
}

// accelKey is everything a verdict depends on.
type accelKey struct {
	Method     int    `json:"method"` // changes when the trial does
	QEMU       string `json:"qemu"`
	QEMUSize   int64  `json:"qemu_size"`
	QEMUTime   int64  `json:"qemu_time"`
	Kernel     string `json:"kernel"`
	KernelSize int64  `json:"kernel_size"`
	KernelTime int64  `json:"kernel_time"`
	HostBoot   string `json:"host_boot"`
	KVM        string `json:"kvm"` // why the device can't be used; empty: it opens
}

func (k accelKey) file() string {
	b, err := json.Marshal(k)
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	sum := sha256.Sum256(b)
	return "accel-" + hex.EncodeToString(sum[:8]) + ".json"
}

func hostBootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// kvmObstacle says why KVM is out of the question, or "".
func kvmObstacle(arch string) string {
	if arch != runtime.GOARCH {
		return "the guest's architecture is not the host's"
	}
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "/dev/kvm: " + err.Error()
	}
	unix.Close(fd)
	return ""
}

// kvmRemedy is what mends an obstacle.
func kvmRemedy(obstacle string) string {
	if strings.HasSuffix(obstacle, unix.EACCES.Error()) {
		return "join the group of the device and log in again: sudo usermod -aG kvm $USER"
	}
	return "enable virtualisation in the firmware and load the module kvm_intel or kvm_amd"
}

// accelKey is the question that a trial of img would answer.
func (b *Backend) accelKey(img Image) (accelKey, error) {
	bin, err := b.binary(img.Arch)
	if err != nil {
		return accelKey{}, err
	}
	key := accelKey{Method: 1, QEMU: bin, Kernel: img.Kernel, HostBoot: hostBootID(), KVM: kvmObstacle(img.Arch)}
	for path, into := range map[string][2]*int64{bin: {&key.QEMUSize, &key.QEMUTime}, img.Kernel: {&key.KernelSize, &key.KernelTime}} {
		st, err := os.Stat(path)
		if err != nil {
			return accelKey{}, imageFault(err, img)
		}
		*into[0], *into[1] = st.Size(), st.ModTime().UnixNano()
	}
	return key, nil
}

// remembered is the verdict in a file, if there is one.
func remembered(file string) (v verdict, ok bool) {
	err := readJSON(file, &v)
	return v, err == nil && v.Accel != ""
}

// forcedKVM is what speaks against a KVM that SANDBOX_ACCEL forces, in which
// nothing else is tried. It tries nothing either: it looks at what an earlier
// trial found. ok: that it works. img is nil where there is no image.
func (b *Backend) forcedKVM(img *Image) (p backend.Problem, ok bool) {
	const instead = "unset SANDBOX_ACCEL (auto takes tcg here)"
	if obstacle := kvmObstacle(runtime.GOARCH); obstacle != "" {
		return backend.Problem{What: "SANDBOX_ACCEL=kvm is forced, and kvm cannot be used: " + obstacle, Fix: kvmRemedy(obstacle) + ", or " + instead, Doubtful: true}, false
	}
	if img != nil {
		if key, err := b.accelKey(*img); err == nil {
			switch v, known := remembered(filepath.Join(b.c.CacheDir, key.file())); {
			case known && v.Accel == "kvm":
				return p, true
			case known:
				return backend.Problem{What: "SANDBOX_ACCEL=kvm is forced, and kvm did not work when it was last tried: " + strings.Join(v.Evidence, " "), Fix: instead, Doubtful: true}, false
			}
		}
	}
	return backend.Problem{What: "SANDBOX_ACCEL=kvm is forced and was not tried; a VM may not start", Fix: "unset SANDBOX_ACCEL to have it tried"}, false
}

// accelFor decides the accelerator for an image: forced, remembered, or by
// trial. The evidence is one sentence per candidate.
func (b *Backend) accelFor(ctx context.Context, img Image, p backend.Progress) (verdict, error) {
	if b.c.Accel != "" {
		return verdict{Accel: b.c.Accel, Evidence: []string{b.c.Accel + " is forced by configuration (SANDBOX_ACCEL); it was not tried."}}, nil
	}
	key, err := b.accelKey(img)
	if err != nil {
		return verdict{}, err
	}
	file := filepath.Join(b.c.CacheDir, key.file())
	v, ok := remembered(file)
	if ok {
		return v, nil
	}
	// One trial for all processes: whoever waited finds the answer.
	lock, err := lockWait(ctx, filepath.Join(b.c.CacheDir, ".trial"), wholeFile, func() { p.Report("accelerator", "waiting for another process's trial") })
	if err != nil {
		return verdict{}, err
	}
	defer lock.Close()
	if v, ok = remembered(file); ok {
		return v, nil
	}
	v, err = b.tryAccelerators(ctx, img, key.KVM, p)
	if err != nil {
		return verdict{}, err
	}
	if v.Accel == "" { // not remembered: the next call tries again
		return v, fault.New(fault.BackendUnavailable, "the guest kernel runs under no accelerator here").
			Because("%s", strings.Join(v.Evidence, " ")).
			Next("run `sandboxforge doctor`").Next("set SANDBOX_ACCEL=tcg to skip the trial")
	}
	if err := writeJSON(file, v, false); err != nil {
		b.c.Logger.Warn("cannot remember the accelerator", "error", err)
	}
	return v, nil
}

func (b *Backend) tryAccelerators(ctx context.Context, img Image, noKVM string, p backend.Progress) (verdict, error) {
	v := verdict{At: time.Now().UTC()}
	say := func(format string, a ...any) {
		v.Evidence = append(v.Evidence, fmt.Sprintf(format, a...))
		b.c.Logger.Info("accelerator trial", "evidence", v.Evidence[len(v.Evidence)-1])
	}
	if noKVM != "" {
		say("kvm was not tried: %s.", noKVM)
	} else {
		p.Report("accelerator", "trying kvm")
		took, err := b.trial(ctx, img, accelerator{name: "kvm"}, initLine, b.limits.kvmTrial)
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		if err == nil {
			v.Accel = "kvm"
			say("kvm works: the guest kernel reached its init process after %s.", took.Round(10*time.Millisecond))
			return v, nil
		}
		say("kvm does not work although /dev/kvm opens: %s.", clause(err))
	}
	p.Report("accelerator", "trying software emulation")
	took, err := b.trial(ctx, img, accelerator{name: "tcg"}, kernelLine, b.limits.tcgTrial)
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	if err != nil {
		say("tcg (software emulation) does not work: %s.", clause(err))
		return v, nil
	}
	v.Accel = "tcg"
	say("tcg (software emulation) works: the guest kernel's first console line came after %s.", took.Round(10*time.Millisecond))
	return v, nil
}

// clause is an error's text as part of a sentence.
func clause(err error) string { return strings.TrimRight(err.Error(), ". \n") }

// trial boots the image's kernel without a disk until the console shows want,
// and kills it. The error says what was seen instead, as part of a sentence.
func (b *Backend) trial(ctx context.Context, img Image, accel accelerator, want []byte, limit time.Duration) (time.Duration, error) {
	bin, err := b.binary(img.Arch)
	if err != nil {
		return 0, err
	}
	typ, err := b.machineType(ctx, bin, img.Arch)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTrialOver)
	defer cancel()
	m := machine{
		name: "accelerator-trial", arch: img.Arch, typ: typ, accel: accel, cpus: 1,
		memory: memory{mib: 512}, kernel: img.Kernel, initrd: img.Initrd, cmdline: loudCmdline(img.Cmdline),
	}
	run, err := launch(bin, m, b.c.CacheDir, nil, newTailLog())
	if err != nil {
		return 0, err
	}
	defer run.end()
	start := time.Now()
	for {
		if out := run.console.newest(consoleMemory); bytes.Contains(out, want) {
			return time.Since(start), nil
		}
		select {
		case <-run.console.output:
			continue
		case <-run.process.exited:
		case <-ctx.Done():
		}
		break
	}
	run.end() // afterwards the console is read to its end
	out := run.console.newest(consoleMemory)
	switch {
	case bytes.Contains(out, want):
		return time.Since(start), nil
	case !errors.Is(context.Cause(ctx), errTrialOver) && ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case ctx.Err() == nil && run.log.text() != "":
		return 0, fmt.Errorf("QEMU ended (%s): %s", run.process.state, firstLine([]byte(run.log.text())))
	case ctx.Err() == nil:
		return 0, fmt.Errorf("QEMU ended (%s)", run.process.state)
	case !bytes.Contains(out, kernelLine):
		return 0, fmt.Errorf("the VM starts, but the guest kernel printed nothing within %s", limit)
	default:
		return 0, fmt.Errorf("the guest kernel began to boot, but did not reach its init process within %s", limit)
	}
}

var errTrialOver = errors.New("the trial's deadline passed")
