package cli

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

func TestExecPassesEverythingThrough(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("1a2b3c4d", "running")}}
	var got sandbox.ExecOptions
	f.exec = func(_ context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
		got = o
		b, _ := io.ReadAll(o.Stdin)
		o.Stdout.Write(b)
		io.WriteString(o.Stderr, "err\xff")
		return &sandbox.ExecResult{ExitCode: 7}, nil
	}
	t.Setenv("PASSED_ON", "yes")
	env := f.env(t)
	var out, errs strings.Builder
	env.Stdin, env.Stdout, env.Stderr = strings.NewReader("in\x00\xfe"), &out, &errs
	code := Main([]string{"exec", "1a", "-u", "root", "--cwd", "/tmp", "-e", "A=b=c", "-e", "PASSED_ON", "-e", "NOT_SET_ANYWHERE", "--", "sh", "-c", "exit 7", "--", "-x"}, env)
	if code != 7 || out.String() != "in\x00\xfe" || errs.String() != "err\xff" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	if got.InstanceID != "inst_1a2b3c4d" || got.User != "root" || got.Cwd != "/tmp" || got.TTY != nil ||
		!slices.Equal(got.Argv, []string{"sh", "-c", "exit 7", "--", "-x"}) ||
		!maps.Equal(got.Env, map[string]string{"A": "b=c", "PASSED_ON": "yes"}) {
		t.Errorf("%+v", got)
	}
}

func TestExecExitCodes(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	for name, c := range map[string]struct {
		result *sandbox.ExecResult
		err    error
		want   int
	}{
		"success":    {&sandbox.ExecResult{}, nil, 0},
		"failure":    {&sandbox.ExecResult{ExitCode: 1}, nil, 1},
		"signal":     {&sandbox.ExecResult{ExitCode: 137, Signal: "SIGKILL"}, nil, 137},
		"not there":  {&sandbox.ExecResult{ExitCode: 127, ErrorMessage: "no such program"}, nil, 127},
		"unusable":   {nil, fault.New(fault.InvalidArgument, "no such user"), exitExec},
		"lost":       {nil, fault.New(fault.InstanceLost, "gone"), exitExec},
		"unexpected": {nil, errors.New("boom"), exitExec},
	} {
		f.exec = func(context.Context, sandbox.ExecOptions) (*sandbox.ExecResult, error) { return c.result, c.err }
		code, out, errs := f.run(t, "exec", "1111", "--", "x")
		if code != c.want || out != "" || (c.err == nil && c.result.ErrorMessage == "") != (errs == "") {
			t.Errorf("%s: code %d, want %d; stdout %q stderr %q", name, code, c.want, out, errs)
		}
	}
}

func TestExecNeedsNoDashesBeforeTheCommand(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	var argv []string
	f.exec = func(_ context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
		argv = o.Argv
		return &sandbox.ExecResult{}, nil
	}
	if code, _, errs := f.run(t, "exec", "1111", "uname"); code != 0 || !slices.Equal(argv, []string{"uname"}) {
		t.Errorf("code %d, argv %q, stderr %q", code, argv, errs)
	}
}
