package qemu

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// trialBackends are backends that share one empty cache.
func trialBackends(t *testing.T, n int, change func(*Image)) ([]*Backend, Image) {
	t.Helper()
	cache := t.TempDir()
	var all []*Backend
	c := newConfig(t)
	c.CacheDir, c.Accel = cache, ""
	if change != nil {
		change(&c.Image)
	}
	for range n {
		b, err := New(c.Config)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all, c.Image
}

// On whatever host this runs: the verdict is what a real boot showed, whoever
// asks at the same time shares the one trial, and it is remembered.
func TestTrialIsSharedAndRemembered(t *testing.T) {
	all, img := trialBackends(t, 4, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	trials, verdicts := 0, map[time.Time]verdict{}
	for _, b := range all {
		wg.Go(func() {
			v, err := b.accelFor(ctx, img, func(stage, message string) {
				if strings.HasPrefix(message, "trying software") || strings.HasPrefix(message, "trying kvm") {
					mu.Lock()
					trials++
					mu.Unlock()
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			verdicts[v.At] = v
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(verdicts) != 1 || trials > 2 {
		t.Fatalf("%d verdicts from %d trials: %v", len(verdicts), trials, verdicts)
	}
	for at, v := range verdicts {
		t.Logf("verdict %s: %s", v.Accel, strings.Join(v.Evidence, " "))
		if v.Accel == "" || len(v.Evidence) == 0 {
			t.Errorf("no verdict: %+v", v)
		}
		again, err := all[0].accelFor(ctx, img, func(stage, message string) { t.Errorf("asked again: %s", message) })
		if err != nil || !again.At.Equal(at) {
			t.Errorf("remembered: %+v, %v", again, err)
		}
	}
	// Another kernel is another question.
	other := img
	other.Kernel = filepath.Join(t.TempDir(), "kernel")
	b, err := os.ReadFile(img.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other.Kernel, b, 0o600); err != nil {
		t.Fatal(err)
	}
	asked := false
	cut, stop := context.WithCancel(ctx)
	_, err = all[0].accelFor(cut, other, func(string, string) { asked = true; stop() })
	if !asked || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("a changed kernel: asked %v, %v", asked, err)
	}
}

func TestForcedAcceleratorIsNotTried(t *testing.T) {
	c := newConfig(t)
	c.CacheDir, c.Accel = t.TempDir(), "kvm"
	b, err := New(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.accelFor(t.Context(), c.Image, func(_, m string) { t.Errorf("tried: %s", m) })
	if err != nil || v.Accel != "kvm" || !strings.Contains(v.Evidence[0], "SANDBOX_ACCEL") {
		t.Errorf("%+v, %v", v, err)
	}
	r, err := b.Probe(t.Context(), nil)
	if err != nil || r.Accelerator != "kvm" {
		t.Errorf("%+v, %v", r, err)
	}
	c.Config.Accel = "hvf"
	if _, err := New(c.Config); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("an accelerator that is none here: %v", err)
	}
}

// What an earlier trial found of a KVM that is forced is told, and the operator
// has their way all the same.
func TestForcedKVMIsDoubtedForWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		known    *verdict
		problem  string
		doubtful bool
		evidence string
	}{
		"did not work": {&verdict{Accel: "tcg", Evidence: []string{"kvm printed nothing."}}, "did not work when it was last tried: kvm printed nothing.", true, ""},
		"worked":       {&verdict{Accel: "kvm", Evidence: []string{"kvm works."}}, "", false, "It worked"},
		"never tried":  {nil, "is forced and was not tried", false, ""},
	} {
		conf := newConfig(t)
		conf.CacheDir, conf.Accel = t.TempDir(), "kvm"
		b, err := New(conf.Config)
		if err != nil {
			t.Fatal(err)
		}
		key, err := b.accelKey(conf.Image)
		if err != nil {
			t.Fatal(err)
		}
		if key.KVM != "" { // a host without the device
			c.problem, c.doubtful, c.evidence = "SANDBOX_ACCEL=kvm is forced, and kvm cannot be used: "+key.KVM, true, ""
		}
		if c.known != nil {
			if err := writeJSON(filepath.Join(b.c.CacheDir, key.file()), c.known, false); err != nil {
				t.Fatal(err)
			}
		}
		r, err := b.Probe(t.Context(), func(stage, m string) {
			if stage == "accelerator" {
				t.Errorf("%s: tried: %s", name, m)
			}
		})
		if err != nil || !r.Usable || r.Accelerator != "kvm" || !strings.Contains(strings.Join(r.Evidence, " "), c.evidence) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		said := false
		for _, p := range r.Problems {
			if strings.Contains(p.What, "SANDBOX_ACCEL") {
				said = strings.Contains(p.What, c.problem) && p.Doubtful == c.doubtful && strings.Contains(p.Fix, "unset SANDBOX_ACCEL")
			}
		}
		if said != (c.problem != "") {
			t.Errorf("%s: %+v", name, r.Problems)
		}
	}
}

// A kernel that never says a word, as on a host whose KVM hangs: the trial
// ends, says what was seen, and is not remembered.
func TestSilentKernelFailsTheTrial(t *testing.T) {
	all, img := trialBackends(t, 1, func(i *Image) { i.Cmdline = "nothing" })
	b := all[0]
	b.limits.kvmTrial, b.limits.tcgTrial = 300*time.Millisecond, 300*time.Millisecond
	_, err := b.accelFor(t.Context(), img, nil)
	if !fault.Is(err, fault.BackendUnavailable) || !strings.Contains(fault.From(err).Cause, "printed nothing") {
		t.Fatalf("%v: %s", err, fault.From(err).Cause)
	}
	t.Log(fault.From(err).Cause)
	files, _ := filepath.Glob(filepath.Join(b.c.CacheDir, "accel-*"))
	if len(files) != 0 {
		t.Errorf("remembered: %v", files)
	}
}

// Each missing item is a problem with a remedy, and none is an error.
func TestProbeNamesWhatIsMissing(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*testConfig)
		fatal  bool
		want   []string
	}{
		"no QEMU":        {func(c *testConfig) { c.QEMU = "qemu-system-nowhere" }, true, []string{"qemu-system-nowhere is not installed"}},
		"no qemu-img":    {func(c *testConfig) { c.QEMUImg = "/nowhere/qemu-img" }, true, []string{"qemu-img is not installed"}},
		"no QEMU at all": {func(c *testConfig) { c.QEMU = "/bin/true" }, true, []string{"/bin/true is no QEMU"}},
		"no image":       {func(c *testConfig) { c.Images = noImage{} }, false, []string{"there is no image"}},
		"no finder":      {func(c *testConfig) { c.Images = nil }, false, []string{"no images"}},
		"image damaged":  {func(c *testConfig) { c.Image.Root = "/nowhere/root.img"; c.Images = oneImage{c.Image} }, false, []string{"not complete"}},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := newConfig(t)
			c.change(&cfg)
			b, err := New(cfg.Config)
			if err != nil {
				t.Fatal(err)
			}
			r, err := b.Probe(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.Usable == c.fatal {
				t.Errorf("usable: %v", r.Usable)
			}
			var all strings.Builder
			for _, p := range r.Problems {
				if p.What == "" || p.Fix == "" {
					t.Errorf("no remedy: %+v", p)
				}
				all.WriteString(p.What + " → " + p.Fix + "\n")
			}
			t.Log(all.String())
			for _, w := range c.want {
				if !strings.Contains(all.String(), w) {
					t.Errorf("nothing about %q", w)
				}
			}
		})
	}
}

type noImage struct{}

func (noImage) Find(string, string) (Image, error) {
	return Image{}, fault.New(fault.ImageNotFound, "there is no image %q", "").Next("sandboxforge image build")
}

func TestInstallHints(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, program := range []string{"qemu-img", "qemu-system-x86_64", "/opt/bin/qemu-system-aarch64"} {
		hint := installHint(program)
		for _, manager := range []string{"apt-get install", "dnf install", "pacman -S"} {
			if !strings.Contains(hint, manager) {
				t.Errorf("%s: %q does not name %s", program, hint, manager)
			}
		}
	}
	if hint := installHint("other"); !strings.Contains(hint, "other") {
		t.Error(hint)
	}
}

func TestMissingImageFailsCreateOnly(t *testing.T) {
	b, c := newBackend(t)
	if err := b.Create(t.Context(), spec("vm-1")); err != nil {
		t.Fatal(err)
	}
	c.Images = nil // as in the supervisor's process
	again, err := New(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Create(t.Context(), spec("vm-2")); !fault.Is(err, fault.ImageNotFound) {
		t.Errorf("create: %v", err)
	}
	if _, err := again.Inspect(t.Context(), "vm-2"); err == nil {
		t.Error("a failed create left something")
	}
	m, err := again.Start(t.Context(), "vm-1", backend.StartOptions{Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}
