//go:build !unix

package template

import (
	"os"
	"testing"
)

func stop(t *testing.T, _ *os.Process) { t.Skip("processes cannot be stopped there") }
