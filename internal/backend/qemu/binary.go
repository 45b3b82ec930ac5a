//go:build linux

package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"sandboxforge/internal/fault"
)

// The oldest QEMU that this package speaks to.
const minMajor, minMinor = 7, 2

// facts are what the package needs to know of a QEMU executable.
type facts struct {
	Version string `json:"version"`
	Major   int    `json:"major"`
	Minor   int    `json:"minor"`
	Machine string `json:"machine"` // newest versioned machine type
	Sandbox bool   `json:"sandbox"` // built with seccomp
	// DataDirs is where it looks for firmware.
	DataDirs []string `json:"data_dirs"`
}

func (f facts) tooOld() bool {
	return f.Major < minMajor || f.Major == minMajor && f.Minor < minMinor
}

// binaryName is the executable for a guest architecture.
func binaryName(arch string) string {
	if arch == "arm64" {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// binary finds the QEMU executable for a guest architecture.
func (b *Backend) binary(arch string) (string, error) {
	name := b.c.QEMU
	if name == "" {
		name = binaryName(arch)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fault.Wrap(err, fault.BackendUnavailable, "%s is not installed", name).Next("%s", installHint(name))
	}
	return filepath.Abs(path)
}

// qemuImg is the executable as exec finds it; a missing one fails when run.
func (b *Backend) qemuImg() string {
	if b.c.QEMUImg != "" {
		return b.c.QEMUImg
	}
	return "qemu-img"
}

var versionPattern = regexp.MustCompile(`QEMU emulator version (\d{1,4})\.(\d{1,4})(\.\d{1,4})?`)

func parseVersion(out []byte) (f facts, err error) {
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return f, fmt.Errorf("no QEMU version in %q", firstLine(out))
	}
	f.Major, _ = strconv.Atoi(string(m[1]))
	f.Minor, _ = strconv.Atoi(string(m[2]))
	f.Version = string(m[1]) + "." + string(m[2]) + string(m[3])
	return f, nil
}

// machinePattern is a line of `-machine help` that gives the alias q35 or virt
// its versioned type.
var machinePattern = map[string]*regexp.Regexp{
	"amd64": regexp.MustCompile(`(?m)^q35\s.*\(alias of ([a-z0-9.-]{1,60})\)`),
	"arm64": regexp.MustCompile(`(?m)^virt\s.*\(alias of ([a-z0-9.-]{1,60})\)`),
}

// machineType finds the versioned machine type to use.
func (b *Backend) machineType(ctx context.Context, bin, arch string) (string, error) {
	f, err := b.facts(ctx, bin, arch)
	return f.Machine, err
}

// facts asks the executable, once per version of it: the answer is kept in
// CacheDir, since a VM's start should not pay for it.
func (b *Backend) facts(ctx context.Context, bin, arch string) (facts, error) {
	st, err := os.Stat(bin)
	if err != nil {
		return facts{}, err
	}
	id := sha256.Sum256(fmt.Appendf(nil, "2\x00%s\x00%d\x00%d\x00%s", bin, st.Size(), st.ModTime().UnixNano(), arch))
	file := filepath.Join(b.c.CacheDir, "qemu-"+hex.EncodeToString(id[:8])+".json")
	var f facts
	if readJSON(file, &f) == nil && f.Machine != "" {
		return f, nil
	}
	out, err := b.runTool(ctx, bin, "-version")
	if err != nil {
		return facts{}, err
	}
	if f, err = parseVersion(out); err != nil {
		return facts{}, fault.Wrap(err, fault.BackendUnavailable, "%s is no QEMU", bin)
	}
	if f.tooOld() {
		return f, fault.New(fault.BackendUnavailable, "QEMU %s is too old: %d.%d or newer is needed", f.Version, minMajor, minMinor).
			Next("%s", installHint(filepath.Base(bin)))
	}
	if out, err = b.runTool(ctx, bin, "-machine", "help"); err != nil {
		return facts{}, err
	}
	m := machinePattern[arch].FindSubmatch(out)
	if m == nil {
		return f, fault.New(fault.BackendUnavailable, "%s knows no suitable machine type for %s guests", bin, arch)
	}
	f.Machine = string(bytes.Clone(m[1]))
	// A build without seccomp refuses the option before it prints its version.
	_, err = b.runTool(ctx, bin, "-sandbox", "on", "-version")
	if ctx.Err() != nil {
		return facts{}, context.Cause(ctx)
	}
	f.Sandbox = err == nil
	if out, err = b.runTool(ctx, bin, "-L", "help"); err != nil {
		return facts{}, err
	}
	f.DataDirs = strings.Fields(string(out))
	if err := writeJSON(file, f, false); err != nil {
		b.c.Logger.Warn("cannot remember what this QEMU can do", "error", err)
	}
	return f, nil
}
