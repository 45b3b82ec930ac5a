// Package backends wires the backends of this platform together: it is the
// one place that names them all, makes them from the operator's settings, and
// registers them with the supervisor.
//
//	bs := backends.New(settings, logger)
//	sel, err := bs.Select(ctx, progress)
//
// Importing it makes supervisors of this executable know every backend, so
// both host programs import it.
package backends

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/lima"
	"sandboxforge/internal/backend/qemu"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/image"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/supervisor"
)

func init() {
	supervisor.RegisterBackend("qemu", func(raw json.RawMessage) (backend.Backend, error) {
		var c qemu.Config
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, fmt.Errorf("qemu configuration: %w", err)
		}
		return qemu.New(c)
	})
	supervisor.RegisterBackend("lima", func(raw json.RawMessage) (backend.Backend, error) {
		var c lima.Config
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, fmt.Errorf("lima configuration: %w", err)
		}
		return lima.New(c)
	})
}

// Set is the backends of this platform. It implements sandbox.Backends.
type Set struct {
	settings *config.Settings
	log      *slog.Logger
}

// New makes the set; nothing is probed or started.
func New(settings *config.Settings, log *slog.Logger) *Set {
	return &Set{settings: settings, log: log}
}

// Select implements sandbox.Backends.
func (s *Set) Select(ctx context.Context, p backend.Progress) (sandbox.Selected, error) {
	names := s.candidates()
	var tried []map[string]any
	var steps []string
	var first string
	for _, name := range names {
		sel, err := s.ByName(name)
		if err == nil {
			sel.Report, err = sel.Backend.Probe(ctx, p)
		}
		if ctx.Err() != nil {
			return sandbox.Selected{}, ctx.Err()
		}
		if err == nil && sel.Report.Usable {
			return sel, nil
		}
		missing := []string{}
		if err != nil {
			f := fault.From(err)
			missing = append(missing, f.Error())
			steps = append(steps, f.NextSteps...)
		}
		for _, pr := range sel.Report.Problems {
			if pr.Fatal {
				missing = append(missing, pr.What)
				steps = append(steps, pr.Fix)
			}
		}
		if first == "" && len(missing) > 0 {
			first = missing[0]
		}
		tried = append(tried, map[string]any{"backend": name, "missing": missing})
	}
	e := fault.New(fault.BackendUnavailable, "no backend can make VMs here (tried: %s)", strings.Join(names, ", ")).
		Because("%s", first).
		With("tried", tried)
	e.NextSteps = append(steps, "run `sandboxforge doctor` for the whole picture")
	return sandbox.Selected{}, e
}

// candidates is the order in which backends are tried.
func (s *Set) candidates() []string {
	if s.settings.Backend != "auto" {
		return []string{s.settings.Backend}
	}
	switch runtime.GOOS {
	case "darwin":
		return []string{"lima"}
	case "windows":
		return []string{"hyperv"}
	default:
		return []string{"qemu", "lima"}
	}
}

// ByName implements sandbox.Backends.
func (s *Set) ByName(name string) (sandbox.Selected, error) {
	switch name {
	case "qemu":
		return s.qemu()
	case "lima":
		return s.lima()
	case "hyperv":
		return s.hyperv()
	}
	return sandbox.Selected{}, fault.New(fault.BackendUnavailable, "there is no backend %q", name).
		Next("set SANDBOX_BACKEND to auto, qemu, lima or hyperv")
}

// All implements sandbox.Backends.
func (s *Set) All() []backend.Backend {
	var all []backend.Backend
	for _, name := range s.candidates() {
		if sel, err := s.ByName(name); err == nil {
			all = append(all, sel.Backend)
		}
	}
	return all
}

func (s *Set) qemu() (sandbox.Selected, error) {
	run, err := s.settings.RunDir()
	if err != nil {
		return sandbox.Selected{}, err
	}
	accel := s.settings.Accel
	if accel == "hvf" {
		return sandbox.Selected{}, fault.New(fault.BackendUnavailable, "SANDBOX_ACCEL=hvf needs macOS").
			Next("set SANDBOX_ACCEL to auto, kvm or tcg")
	}
	c := qemu.Config{
		StateDir: s.settings.VMDir(),
		RunDir:   run,
		CacheDir: filepath.Join(s.settings.StateDir(), "qemu"),
		Accel:    accel,
		Images:   images{image.Store{Dir: s.settings.ImageDir}},
		Logger:   s.log,
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return sandbox.Selected{}, err
	}
	b, err := qemu.New(c)
	if err != nil {
		return sandbox.Selected{}, err
	}
	return sandbox.Selected{Backend: b, Config: raw}, nil
}

func (s *Set) lima() (sandbox.Selected, error) {
	c := lima.Config{
		StateDir: filepath.Join(s.settings.Home, "lima", "vms"),
		LimaHome: s.limaHome(),
		Accel:    s.settings.Accel,
		Logger:   s.log,
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return sandbox.Selected{}, err
	}
	b, err := lima.New(c)
	if err != nil {
		return sandbox.Selected{}, err
	}
	return sandbox.Selected{Backend: b, Config: raw}, nil
}

// limaHome is Lima's directory of our own: with the rest of the state, unless
// that is too long for the sockets in it, or has a space, which ssh's own
// configuration was not made for.
func (s *Set) limaHome() string {
	dir := filepath.Join(s.settings.Home, "lima", "home")
	if len(dir) <= lima.MaxHome && !strings.Contains(dir, " ") || s.settings.UserHome == "" {
		return dir
	}
	sum := sha256.Sum256([]byte(s.settings.Home))
	return filepath.Join(s.settings.UserHome, ".sandboxforge-lima", hex.EncodeToString(sum[:3]))
}

// images lets the qemu backend find built images.
type images struct{ store image.Store }

func (i images) Find(name, arch string) (qemu.Image, error) {
	if arch == "" {
		arch = runtime.GOARCH
	}
	if i.store.Dir == "" {
		return qemu.Image{}, errors.New("no image directory")
	}
	img, err := i.store.FindArch(name, arch)
	if err != nil {
		return qemu.Image{}, err
	}
	return qemu.Image{
		Name: img.Name, Arch: img.Arch, Digest: img.Digest,
		Kernel: img.Kernel, Initrd: img.Initrd, Root: img.Root, Cmdline: img.Cmdline,
	}, nil
}
