//go:build unix

package template

import (
	"os"
	"syscall"
	"testing"
)

func stop(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}
