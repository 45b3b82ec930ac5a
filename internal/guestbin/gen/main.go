// Command gen cross-builds the guest's executables and puts them, gzipped,
// where package guestbin embeds them.
//
//	go run ./internal/guestbin/gen [-out DIR]
//
// It runs in the module's root directory. A file is only rewritten if its
// content changed, so that nothing that embeds it is compiled again in vain;
// the same source and toolchain give the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"sandboxforge/internal/guestbin"
)

// sources are the packages to build, by the name that guestbin gives them.
var sources = []struct{ name, pkg string }{
	{guestbin.AgentName, "./cmd/sandboxforge-agent"},
	{guestbin.ShimName, "./cmd/sandboxforge-shim"},
	{guestbin.InitName, "./cmd/sandboxforge-init"},
}

func main() {
	out := flag.String("out", filepath.Join("internal", "guestbin", "bin"), "directory for the gzipped executables")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "guestbin:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	tmp, err := os.MkdirTemp("", "guestbin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, arch := range guestbin.Architectures() {
		for _, s := range sources {
			plain, err := build(s.pkg, arch, filepath.Join(tmp, s.name+"-"+arch))
			if err != nil {
				return err
			}
			packed, err := pack(plain)
			if err != nil {
				return err
			}
			if err := replace(filepath.Join(out, guestbin.FileName(s.name, arch)), packed, len(plain)); err != nil {
				return err
			}
		}
	}
	return nil
}

func build(pkg, arch, to string) ([]byte, error) {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("build %s for linux/%s: %w", pkg, arch, err)
	}
	return os.ReadFile(to)
}

// pack gzips without a name or a time, so that equal input gives equal output.
func pack(plain []byte) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func replace(path string, content []byte, plainSize int) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Equal(old, content) {
		fmt.Fprintf(os.Stderr, "%s is up to date\n", path)
		return nil
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return err
	}
	fmt.Fprintf(os.Stderr, "%s written, %d KiB (%d KiB unpacked)\n", path, len(content)>>10, plainSize>>10)
	return nil
}
