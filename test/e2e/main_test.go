package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/backends"
	"sandboxforge/internal/config"
	"sandboxforge/internal/image"
)

// What all tests of the package share.
var (
	repo     string // the checkout
	binDir   string // the binaries under test
	imageDir string
	accel    string // what the probe found, so that it is not probed again for each state directory
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(standin.StateEnv); dir != "" { // as powershell.exe, see hyperv_test.go
		os.Exit(standin.Main(dir, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	if repo, err = filepath.Abs("../.."); err != nil {
		return 1, err
	}
	if runtime.GOOS != "linux" {
		return 1, fmt.Errorf("the tests need the qemu backend, which is Linux only")
	}
	tmp, err := os.MkdirTemp("", "sbxtest-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(tmp)
	binDir = tmp
	if err := buildBinaries(ctx, binDir); err != nil {
		return 1, err
	}
	if imageDir = os.Getenv("SANDBOX_IMAGE_DIR"); imageDir == "" {
		imageDir = filepath.Join(repo, ".build", "images")
	}
	for _, name := range image.Names() {
		r, err := image.ByName(name, runtime.GOARCH)
		if err != nil {
			return 1, err
		}
		if _, err := (image.Store{Dir: imageDir}).Build(ctx, r, image.BuildOptions{}); err != nil {
			return 1, fmt.Errorf("image %s: %w", name, err)
		}
	}
	if accel, err = probe(ctx); err != nil {
		return 1, err
	}
	defer func() {
		if err := closeShared(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "e2e: shared VM:", err)
			code = 1
		}
	}()
	return m.Run(), nil
}

// buildBinaries puts the programs into dir.
func buildBinaries(ctx context.Context, dir string, flags ...string) error {
	args := append([]string{"build", "-o", dir + "/"}, flags...)
	build := exec.CommandContext(ctx, "go", append(args, "./cmd/sandboxforge", "./cmd/sandboxforge-mcp-server")...)
	build.Dir = repo
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// probe settles the accelerator once, as a first server on this machine would.
func probe(ctx context.Context) (string, error) {
	if a := os.Getenv("SANDBOX_ACCEL"); a != "" && a != "auto" {
		return a, nil
	}
	home, err := os.MkdirTemp("", "sbxtest-probe-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	env := map[string]string{"SANDBOXFORGE_HOME": home, "SANDBOX_IMAGE_DIR": imageDir, "HOME": home}
	settings, err := config.LoadSettings(func(k string) string { return env[k] }, runtime.GOOS)
	if err != nil {
		return "", err
	}
	sel, err := backends.New(settings, nil).Select(ctx, nil)
	if err != nil {
		return "", err
	}
	for _, e := range sel.Report.Evidence {
		fmt.Fprintln(os.Stderr, "e2e: accelerator:", e)
	}
	return sel.Report.Accelerator, nil
}
