package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

func TestFromKeepsTheInnermostKnowledge(t *testing.T) {
	inner := New(PathNotAllowed, "no").Because("symlink").Next("move it")
	for name, c := range map[string]struct {
		err  error
		code Code
	}{
		"fault":           {inner, PathNotAllowed},
		"wrapped":         {fmt.Errorf("while copying: %w", inner), PathNotAllowed},
		"cancelled":       {fmt.Errorf("x: %w", context.Canceled), Cancelled},
		"deadline":        {context.DeadlineExceeded, Cancelled},
		"anything else":   {errors.New("boom"), Internal},
		"fault over ctx":  {Wrap(context.Canceled, OutcomeUnknown, "who knows"), OutcomeUnknown},
		"nil is no fault": {nil, ""},
		"a full disk":     {&os.PathError{Op: "open", Path: "x", Err: syscall.ENOSPC}, InsufficientDisk},
		"a quota":         {Wrap(os.NewSyscallError("write", syscall.EDQUOT), Internal, "cannot write"), InsufficientDisk},
		"no memory":       {Wrap(os.NewSyscallError("fork", syscall.ENOMEM), BackendCommandFailed, "cannot start"), InsufficientHostResources},
		"who knows more":  {Wrap(syscall.ENOSPC, ImageNotFound, "no"), ImageNotFound},
	} {
		if got := CodeOf(c.err); got != c.code {
			t.Errorf("%s: code %q, want %q", name, got, c.code)
		}
	}
}

func TestEveryCodeHasACauseAndARemedy(t *testing.T) {
	for _, c := range Codes() {
		if cause, remedy := c.Meaning(); cause == "" || remedy == "" {
			t.Errorf("%s: %q, %q in the documentation", c, cause, remedy)
		}
		d := New(c, "it happened").DetailMap()
		if d["probable_cause"] == "" || len(d["next_steps"].([]string)) == 0 {
			t.Errorf("%s: details %v leave the reader alone", c, d)
		}
	}
}

func TestDetailsAreNotShared(t *testing.T) {
	e := New(Internal, "x").With("k", 1)
	e.DetailMap()["k"] = 2
	if e.Details["k"] != 1 {
		t.Error("DetailMap handed out the fault's own map")
	}
}
