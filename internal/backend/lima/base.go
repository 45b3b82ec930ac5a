//go:build unix

package lima

import (
	"cmp"
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
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/guestbin"
)

// A base is a stopped instance in which a template's own provisioning and the
// agent's installation are done. Its name is a digest of what decides that, so
// that another build or template has another one, and it has a record as a VM
// has.

const (
	basePrefix = "base-"
	// baseDisk is a base's disk, small because a disk only grows: whoever asks
	// for less gets no clone.
	baseDisk = 8 << 30
	// baseLimit bounds the making of a base, the template's downloads included.
	baseLimit = 45 * time.Minute
	// baseOff bounds its power-off, twice.
	baseOff = 30 * time.Second
	// provisionLimit bounds the wait for cloud-init in it.
	provisionLimit = 20 * time.Minute
)

func isBase(name string) bool { return strings.HasPrefix(name, basePrefix) }

// agentDigest is of the embedded agent for an architecture, unpacked once.
func agentDigest(arch string) (string, error) {
	agentDigests.Lock()
	defer agentDigests.Unlock()
	if d := agentDigests.of[arch]; d != "" {
		return d, nil
	}
	agent, err := guestbin.Agent(arch)
	if err != nil {
		return "", err
	}
	agentDigests.of[arch] = guestbin.Digest(agent)
	return agentDigests.of[arch], nil
}

var agentDigests = struct {
	sync.Mutex
	of map[string]string
}{of: map[string]string{}}

// baseSpec is the base for VMs like s.
func (b *Backend) baseSpec(s backend.Spec) (backend.Spec, error) {
	// Without an embedded agent nothing can be installed.
	agent, err := agentDigest(cmp.Or(s.Arch, runtime.GOARCH))
	if err != nil {
		return s, err
	}
	text, err := json.Marshal([]any{1, s.Template, s.VMType, s.Arch, agent, closed})
	if err != nil {
		return s, err
	}
	sum := sha256.Sum256(text)
	return backend.Spec{
		Name: basePrefix + hex.EncodeToString(sum[:8]), CPUs: s.CPUs, MemoryMiB: s.MemoryMiB, DiskBytes: baseDisk,
		Arch: s.Arch, Template: s.Template, VMType: s.VMType,
	}, nil
}

// readyBase is the name of the base that s can be cloned of.
func (b *Backend) readyBase(ctx context.Context, s backend.Spec) (string, bool) {
	if isBase(s.Name) || s.DiskBytes != 0 && s.DiskBytes < baseDisk {
		return "", false
	}
	base, err := b.baseSpec(s)
	if err != nil {
		return "", false
	}
	if _, err := os.Lstat(filepath.Join(b.dir(base.Name), readyFile)); err != nil {
		return "", false
	}
	l, ok, err := b.instance(ctx, base.Name)
	if err != nil || !ok || l.running() || l.HostAgentPID != 0 || l.DriverPID != 0 {
		return "", false
	}
	return base.Name, true
}

// readyFile of a base's directory says that it may be cloned.
const readyFile = "ready"

// Prepare implements backend.Preparer.
func (b *Backend) Prepare(ctx context.Context, s backend.Spec, p backend.Progress) error {
	s.Name, s.Hostname = "x", ""
	if err := b.cfg.checkSpec(s); err != nil {
		return err
	}
	if s.DiskBytes != 0 && s.DiskBytes < baseDisk {
		return nil
	}
	base, err := b.baseSpec(s)
	if err != nil {
		return err
	}
	if _, ok := b.readyBase(ctx, s); ok {
		return nil
	}
	p.Report("base", "waiting for the base of this kind of VM")
	ctx, cancel := context.WithTimeoutCause(ctx, baseLimit, fault.New(fault.RuntimeNotReady, "the base of this kind of VM was not ready within %s", baseLimit))
	defer cancel()
	lock, err := b.operate(ctx, base.Name)
	if err != nil {
		return err
	}
	if _, ok := b.readyBase(ctx, s); ok {
		return lock.Close()
	}
	err = b.makeBase(ctx, lock, base, p)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		err = errors.Join(err, b.remove(undo, lock, base.Name))
	}
	lock.Close() // before others are looked at: two names may share a lock
	if err == nil {
		b.dropOldBases(ctx, base)
	}
	return err
}

// makeBase makes the base anew.
func (b *Backend) makeBase(ctx context.Context, lock *os.File, s backend.Spec, p backend.Progress) error {
	if err := b.remove(ctx, lock, s.Name); err != nil {
		return err
	}
	p.Report("base", fmt.Sprintf("making an instance of %s, which others will be clones of", s.Template))
	if err := b.make(ctx, lock, s); err != nil {
		return err
	}
	m, err := b.start(ctx, lock, s, backend.StartOptions{Progress: p})
	if err != nil {
		return err
	}
	err = b.provision(ctx, m, p)
	p.Report("base", "stopping the base")
	if err != nil {
		return errors.Join(err, m.Stop(ctx, 0))
	}
	// In order: what is to be cloned must be on the disk. The guest was asked to
	// power off already; Stop asks again.
	select {
	case <-m.Done():
	case <-time.After(baseOff):
	case <-ctx.Done():
	}
	if err := m.Stop(ctx, baseOff); err != nil {
		return err
	}
	if e := m.Exit(); e.Reason != backend.ExitStopped && e.Reason != backend.ExitGuestOff {
		return fault.New(fault.BackendCommandFailed, "the base ended by itself: %s %s", e.Reason, e.Detail)
	}
	return writeJSON(filepath.Join(b.dir(s.Name), readyFile), time.Now().UTC())
}

// provision installs the agent and waits until the guest has done what its
// template wants. The machine id is each clone's own, made at its boot.
func (b *Backend) provision(ctx context.Context, m *machine, p backend.Progress) error {
	p.Report("base", "waiting for the guest")
	watched, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with watched
		if err := m.WatchBoot(watched); err != nil {
			stop(err)
		}
	}()
	stream, err := m.DialAgent(watched)
	if err != nil {
		return errors.Join(err, context.Cause(watched))
	}
	if b.cfg.GuestRoot != "" { // a guest of a test, which has nothing to wait for
		return stream.Close()
	}
	conn, err := guest.Connect(watched, stream)
	if err != nil {
		return err
	}
	defer conn.Close()
	p.Report("base", "waiting for the template's own provisioning")
	c := guest.NewClient(conn.RoundTripper())
	_, err = c.Run(watched, guest.NewID("base-"), guest.Spec{
		User: "root", Dir: "/", Timeout: provisionLimit,
		Command: finish,
	}, nil)
	if err != nil {
		return err
	}
	return c.PowerOff(watched)
}

// finish waits for cloud-init. A template for Docker without root masks the
// engine that we use.
const finish = `if command -v cloud-init >/dev/null; then cloud-init status --wait >/dev/null; fi
if command -v dockerd >/dev/null && command -v systemctl >/dev/null; then
	systemctl unmask docker.service docker.socket containerd.service containerd.socket
	systemctl enable docker.service
	usermod -aG docker sandbox
fi
: >/etc/machine-id
sync`

// dropOldBases removes the bases of earlier builds for the same template.
func (b *Backend) dropOldBases(ctx context.Context, now backend.Spec) {
	entries, err := os.ReadDir(b.cfg.StateDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		r, err := b.record(e.Name())
		if err != nil || !isBase(e.Name()) || e.Name() == now.Name || r.Spec.Template != now.Template || r.Spec.VMType != now.VMType || r.Spec.Arch != now.Arch {
			continue
		}
		if err := b.Delete(ctx, e.Name()); err != nil {
			b.log.Warn("an old base is not removed", "name", e.Name(), "error", err)
		}
	}
}
