package agent_test

import (
	"bytes"
	"testing"

	"sandboxforge/internal/guest"
)

func TestRun(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name           string
		spec           guest.Spec
		stdout, stderr string
		code, signal   int
	}{
		{"true", guest.Spec{Command: "true"}, "", "", 0, 0},
		{"output", guest.Spec{Command: "echo out; echo err >&2"}, "out\n", "err\n", 0, 0},
		{"exit code", guest.Spec{Command: "exit 42"}, "", "", 42, 0},
		{"signal", guest.Spec{Command: "kill -9 $$"}, "", "", 0, 9},
		{"term", guest.Spec{Command: "kill -TERM $$"}, "", "", 0, 15},
		{"argv", guest.Spec{Argv: []string{"printf", "%s|", "a b", "c"}}, "a b|c|", "", 0, 0},
		{"stdin", guest.Spec{Command: "wc -c", Stdin: bytes.Repeat([]byte("x"), 3<<20)}, "3145728\n", "", 0, 0},
		{"no stdin", guest.Spec{Command: "cat"}, "", "", 0, 0},
		{"dir", guest.Spec{Command: "pwd", Dir: "/usr"}, "/usr\n", "", 0, 0},
		{"env", guest.Spec{Command: `echo "$FOO"`, Env: map[string]string{"FOO": "ba r"}}, "ba r\n", "", 0, 0},
		{"not executable", guest.Spec{Argv: []string{"/etc/passwd"}}, "", "", 126, 0},
		{"not there", guest.Spec{Argv: []string{"no-such-program"}}, "", "", 127, 0},
		{"dev stdout", guest.Spec{Command: "echo a > /dev/stdout; echo b > /dev/stderr; cat /dev/stdin", Stdin: []byte("c")}, "a\nc", "b\n", 0, 0},
		{"bytes", guest.Spec{Command: `printf '\377\000\001'`}, "\xff\x00\x01", "", 0, 0},
		{"session", guest.Spec{Command: `ps -o sid= -p $$ | tr -d ' \n' | grep -qx $$ && echo own`}, "own\n", "", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, p := w.run(c.spec)
			if stdout != c.stdout || stderr != c.stderr || p.ExitCode != c.code || p.Signal != c.signal {
				t.Fatalf("stdout %q stderr %q %+v", stdout, stderr, p)
			}
			want := guest.StatusExited
			if c.signal != 0 {
				want = guest.StatusSignaled
			}
			if p.Status != want || p.FinishedAt.IsZero() {
				t.Fatalf("%+v", p)
			}
		})
	}
}
