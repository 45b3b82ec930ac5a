package standin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tb is what Executable needs of a test.
type tb interface {
	Helper()
	TempDir() string
	Fatal(args ...any)
}

// Executable is a program that runs this test binary as the stand-in for the
// world in dir. The binary's TestMain must call Main where StateEnv is set.
func Executable(t tb, dir string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	path := filepath.Join(t.TempDir(), "powershell.exe")
	text := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s \"$@\"\n", StateEnv, quote(dir), quote(exe))
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
