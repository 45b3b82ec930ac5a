package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

func TestMain(m *testing.M) {
	if state := os.Getenv(fakeState); state != "" {
		os.Exit(serveFake(state))
	}
	os.Exit(m.Run())
}

type story struct{ strings.Builder }

// options runs the demo against this test binary as the server.
func options(t *testing.T, mode string) (Options, *story, string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := config.LoadSettings(func(name string) string {
		return map[string]string{"HOME": dir, "SANDBOXFORGE_HOME": filepath.Join(dir, "home")}[name]
	}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	out := &story{}
	return Options{
		Server: self, Settings: s, Version: "test", Out: out,
		Environ:   append(os.Environ(), fakeState+"="+state, fakeMode+"="+mode),
		Dir:       filepath.Join(dir, "runs"),
		Processes: func(string) ([]int, error) { return nil, nil },
	}, out, state
}

// alive reports whether the fake instance exists.
func alive(t *testing.T, state string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(state, "instance"))
	return err == nil
}

func TestDemoRunsToItsEnd(t *testing.T) {
	o, out, state := options(t, "")
	o.Settings.ImageDir = filepath.Join(t.TempDir(), "images")
	o.EnsureImage = func(_ context.Context, progress func(string, string)) (bool, error) {
		progress("packages", "one")
		return false, nil
	}
	o.EnsureTemplate = func(_ context.Context, root string, progress func(string, string)) (bool, error) {
		if _, err := os.Stat(filepath.Join(root, ".sandboxforge.toml")); err != nil {
			t.Error(err)
		}
		progress("boot", "one")
		return true, nil
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !r.OK || len(r.Steps) != len(script) || len(r.Artifacts) != 2 || !strings.HasPrefix(r.GuestOutput, "Linux fake") {
		t.Errorf("%+v", r)
	}
	if alive(t, state) {
		t.Error("the instance is still there")
	}
	for _, want := range []string{
		"packages: one", "→ create_instance", "boot: half way", "guest kernel 9.9.9", r.Artifacts[0].SHA256,
		"The demo ran to its end.", "Next: have your MCP client start " + o.Server, "the template in which", "STEP ", "state: " + o.Settings.Home + ", ", "state: " + o.Settings.ImageDir + ", ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("escape sequences reached something that is no terminal:\n%q", out)
	}
	if r.Workspace == "" {
		t.Error("--dir was given, but the workspace was not kept")
	}
}

func TestDemoCleansUpAfterAFailure(t *testing.T) {
	for mode, want := range map[string]struct {
		says string
		code fault.Code
	}{
		"fail:create_instance":      {"no room", fault.InsufficientHostResources},
		"fail:run_command":          {"no room", fault.InsufficientHostResources},
		"fail:collect_artifacts":    {"no room", fault.InsufficientHostResources},
		"exit1":                     {"exit code 1", fault.Internal},
		"wrongsum":                  {"SHA-256", fault.Internal},
		"stays":                     {"still listed", fault.Internal},
		"die:start_background_task": {"in transit", fault.Internal},
	} {
		t.Run(mode, func(t *testing.T) {
			o, out, state := options(t, mode)
			r, err := Run(t.Context(), o)
			if err == nil || r.OK || !strings.Contains(err.Error(), want.says) || fault.CodeOf(err) != want.code {
				t.Errorf("error %v (%s), want %s %q\n%s", err, fault.CodeOf(err), want.code, want.says, out)
			}
			if alive(t, state) {
				t.Errorf("the instance was left behind\n%s", out)
			}
			if !strings.Contains(out.String(), "clean-up") || !strings.Contains(out.String(), "failed") {
				t.Errorf("the story does not tell:\n%s", out)
			}
		})
	}
}

func TestDemoCleansUpWhenInterrupted(t *testing.T) {
	for _, mode := range []string{"block:create_instance", "block:run_command"} {
		t.Run(mode, func(t *testing.T) {
			o, out, state := options(t, mode)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for ctx.Err() == nil {
					if _, err := os.Stat(filepath.Join(state, "blocked")); err == nil {
						cancel()
					}
					time.Sleep(5 * time.Millisecond)
				}
			}()
			_, err := Run(ctx, o)
			if !errors.Is(err, context.Canceled) || !fault.Is(err, fault.Cancelled) {
				t.Errorf("error %v", err)
			}
			if alive(t, state) {
				t.Errorf("the instance was left behind\n%s", out)
			}
		})
	}
}

func TestDemoSaysWhyTheServerDoesNotStart(t *testing.T) {
	o, out, _ := options(t, "nostart")
	r, err := Run(t.Context(), o)
	if err == nil || r.OK || !strings.Contains(fault.From(err).Cause, "the fake does not want to") {
		t.Errorf("error %v, cause %q\n%s", err, fault.From(err).Cause, out)
	}
}

func TestTemporaryWorkspaceIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	o, _, _ := options(t, "fail:create_instance")
	o.Dir = ""
	if r, _ := Run(t.Context(), o); r.Workspace != "" {
		t.Errorf("kept %s", r.Workspace)
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestWorkspaceCopyCanBeRun(t *testing.T) {
	root, err := newWorkspace(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for path, executable := range map[string]bool{"bin/logreport": true, "scripts/image.sh": true, "Dockerfile": false, ".sandboxforge.toml": false, "data/access.log": false} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil || info.Mode()&0o100 != 0 != executable {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}
