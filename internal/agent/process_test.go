package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/guest"
)

// killModes runs a test with cgroups, where the machine has them, and without.
func killModes(t *testing.T, f func(t *testing.T, w *world)) {
	t.Run("session", func(t *testing.T) { f(t, newWorld(t)) })
	t.Run("cgroup", func(t *testing.T) {
		dir := cgroupRoot()
		if dir == "" {
			t.Skip("no cgroup v2 that can be written to")
		}
		f(t, newWorld(t, withCgroup(dir)))
	})
}

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
		{"session", guest.Spec{Command: `set -- $(cat /proc/$$/stat); test "$6" = $$ && echo own`}, "own\n", "", 0, 0},
		{"pipes", guest.Spec{Command: `yes | head -1`}, "y\n", "", 0, 0},
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
			if (c.code == 126 || c.code == 127) && p.ErrorMessage == "" {
				t.Fatalf("no reason: %+v", p)
			}
		})
	}
}

func TestStartRefuses(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name, id string
		spec     guest.Spec
		kind     error
	}{
		{"empty id", "", guest.Spec{}, guest.ErrInvalid},
		{"slash", "a/b", guest.Spec{}, guest.ErrInvalid},
		{"dots", "..", guest.Spec{}, guest.ErrInvalid},
		{"long", strings.Repeat("a", 65), guest.Spec{}, guest.ErrInvalid},
		{"no directory", "a", guest.Spec{Dir: "/no/such"}, guest.ErrFailedPrecondition},
		{"relative directory", "a", guest.Spec{Dir: "tmp"}, guest.ErrInvalid},
		{"no user", "a", guest.Spec{User: "nobody-of-that-name"}, guest.ErrInvalid},
		{"nul", "a", guest.Spec{Command: "echo \x00"}, guest.ErrInvalid},
		{"bad variable", "a", guest.Spec{Env: map[string]string{"A=B": "c"}}, guest.ErrInvalid},
		{"much stdin", "a", guest.Spec{Stdin: make([]byte, guest.MaxStdin+1)}, guest.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := w.client.Start(w.context(), c.id, c.spec)
			if !errors.Is(err, c.kind) {
				t.Fatalf("err = %v", err)
			}
		})
	}
	if list, err := w.client.List(w.context()); err != nil || len(list) != 0 {
		t.Fatalf("%v %v", list, err)
	}
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := w.client.Get(ctx, "none", 0); return err },
		func(ctx context.Context) error {
			_, err := w.client.Signal(ctx, "none", guest.SIGTERM, false)
			return err
		},
		func(ctx context.Context) error {
			_, err := w.client.Follow(ctx, "none", guest.Offsets{}, nil)
			return err
		},
		func(ctx context.Context) error {
			_, err := w.client.Read(ctx, "none", guest.ReadRequest{Stream: guest.Stdout})
			return err
		},
	} {
		if err := call(w.context()); !errors.Is(err, guest.ErrNotFound) {
			t.Fatalf("err = %v", err)
		}
	}
}

func TestStartIsIdempotent(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "count")
	spec := guest.Spec{Command: "echo x >> " + file}
	var wg sync.WaitGroup
	var mu sync.Mutex
	existed := 0
	for range 10 {
		wg.Go(func() {
			_, ex, err := w.client.Start(w.context(), "same", spec)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if ex {
				existed++
			}
		})
	}
	wg.Wait()
	if _, err := w.client.Follow(w.context(), "same", guest.Offsets{}, nil); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(file); string(b) != "x\n" || existed != 9 {
		t.Fatalf("ran %q, existed %d times", b, existed)
	}
	if err := w.client.Forget(w.context(), "same"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Get(w.context(), "same", 0); !errors.Is(err, guest.ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(w.cfg.SpoolDir, "same")); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := w.client.Forget(w.context(), "same"); err != nil {
		t.Fatal(err)
	}
}

// TestTreeKill kills a tree whose members have left the session in every way.
func TestTreeKill(t *testing.T) {
	killModes(t, func(t *testing.T, w *world) {
		marker := fmt.Sprintf("sf-tree-%d-%d", os.Getpid(), time.Now().UnixNano())
		script := strings.ReplaceAll(`
			sleep_() { exec -a MARK sleep 600; }
			bash -c 'exec -a MARK-child sleep 600' &
			setsid bash -c 'exec -a MARK-setsid sleep 600' &
			( setsid bash -c '( setsid bash -c "exec -a MARK-double sleep 600" & ) ; exit 0' & )
			nohup bash -c 'exec -a MARK-nohup sleep 600' >/dev/null 2>&1 </dev/null &
			bash -c 'trap "" TERM HUP INT; while :; do exec -a MARK-loop sleep 600; done' &
			exec bash -c 'trap "" TERM; exec -a MARK-main sleep 600'
		`, "MARK", marker)
		id := guest.NewID("tree-")
		if _, _, err := w.client.Start(w.context(), id, guest.Spec{Argv: []string{"bash", "-c", script}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all six run", func() bool { return len(running(marker+"-")) >= 6 && len(running(marker+"-double")) == 1 })
		if _, err := w.client.Signal(w.context(), id, guest.SIGKILL, true); err != nil {
			t.Fatal(err)
		}
		p, err := w.client.Get(w.context(), id, 10*time.Second)
		if err != nil || p.Status != guest.StatusSignaled || p.Signal != 9 {
			t.Fatalf("%+v %v", p, err)
		}
		eventually(t, "none is left", func() bool { return len(running(marker)) == 0 })
	})
}

func TestTimeoutKillsTree(t *testing.T) {
	killModes(t, func(t *testing.T, w *world) {
		marker := fmt.Sprintf("sf-timeout-%d-%d", os.Getpid(), time.Now().UnixNano())
		script := strings.ReplaceAll(`setsid bash -c 'exec -a MARK-away sleep 600' & echo started; exec -a MARK-main sleep 600`, "MARK", marker)
		var out, errb bytes.Buffer
		p, err := w.client.Run(w.context(), guest.NewID("to-"), guest.Spec{Argv: []string{"bash", "-c", script}, Timeout: 300 * time.Millisecond}, collect(&out, &errb))
		if err != nil || !p.TimedOut || p.Signal != 9 || out.String() != "started\n" {
			t.Fatalf("%+v %v %q", p, err, out.String())
		}
		eventually(t, "none is left", func() bool { return len(running(marker)) == 0 })
	})
}

// TestDetached: a process that leaves children with its output behind ends when
// it ends; what the children write still reaches the spool.
func TestDetached(t *testing.T) {
	w := newWorld(t)
	gate := filepath.Join(w.dir, "gate")
	var out, errb bytes.Buffer
	id := guest.NewID("det-")
	p, err := w.client.Run(w.context(), id, guest.Spec{
		Command: "(while ! test -e " + gate + "; do sleep 0.02; done; echo late) & echo early",
	}, collect(&out, &errb))
	if err != nil || out.String() != "early\n" || p.ExitCode != 0 {
		t.Fatalf("%+v %v %q", p, err, out.String())
	}
	os.WriteFile(gate, nil, 0o644)
	eventually(t, "the late line", func() bool {
		c, err := w.client.Read(w.context(), id, guest.ReadRequest{Stream: guest.Stdout})
		return err == nil && string(c.Data) == "early\nlate\n"
	})
}

// pattern is output whose every byte is known from its offset.
const pattern = `awk 'BEGIN { for (i = 0; i < LINES; i++) printf "%015d\n", i }'`

func patternCommand(lines int) string {
	return strings.Replace(pattern, "LINES", fmt.Sprint(lines), 1)
}

func checkPattern(t *testing.T, off uint64, data []byte) {
	t.Helper()
	for len(data) > 0 {
		line := fmt.Sprintf("%015d\n", off/16)[off%16:]
		n := min(len(line), len(data))
		if string(data[:n]) != line[:n] {
			t.Fatalf("at offset %d: %q, not %q", off, data[:n], line[:n])
		}
		data, off = data[n:], off+uint64(n)
	}
}

func TestMuchOutput(t *testing.T) {
	w := newWorld(t)
	for _, lines := range []int{20 << 16, 100 << 16} { // 20 MiB, 100 MiB
		t.Run(fmt.Sprintf("%d MiB", lines>>16), func(t *testing.T) {
			id := guest.NewID("much-")
			var seen, dropped uint64
			p, err := w.client.Run(w.context(), id, guest.Spec{Command: patternCommand(lines)}, func(o guest.Output) {
				checkPattern(t, o.Offset, o.Data)
				seen += uint64(len(o.Data))
				dropped += o.Dropped
			})
			if err != nil {
				t.Fatal(err)
			}
			total := uint64(lines) * 16
			if seen+dropped != total || p.StdoutBytes != total {
				t.Fatalf("saw %d, dropped %d of %d; %+v", seen, dropped, total, p)
			}
			// The bound holds on disk, and head and tail are there.
			if kept := p.StdoutBytes - p.StdoutDropped; kept > 16<<20 || kept < 12<<20 {
				t.Fatalf("kept %d", kept)
			}
			if used := diskUsage(t, filepath.Join(p.SpoolPath, "stdout")); used > 17<<20 {
				t.Fatalf("%d bytes on disk", used)
			}
			head, err := w.client.Read(w.context(), id, guest.ReadRequest{Stream: guest.Stdout, MaxBytes: 1 << 20})
			if err != nil || head.Offset != 0 || len(head.Data) != 1<<20 {
				t.Fatalf("head %d at %d, %v", len(head.Data), head.Offset, err)
			}
			checkPattern(t, 0, head.Data)
			gap, err := w.client.Read(w.context(), id, guest.ReadRequest{Stream: guest.Stdout, Offset: head.NextOffset})
			if err != nil || gap.Offset-head.NextOffset != gap.Dropped || gap.Dropped != p.StdoutDropped {
				t.Fatalf("gap %+v, %v", gap.Dropped, err)
			}
			checkPattern(t, gap.Offset, gap.Data)
			tail, err := w.client.Read(w.context(), id, guest.ReadRequest{Stream: guest.Stdout, TailBytes: 1000})
			if err != nil || tail.NextOffset != total || len(tail.Data) != 1000 || !tail.Ended {
				t.Fatalf("tail %+v, %v", tail.NextOffset, err)
			}
			checkPattern(t, tail.Offset, tail.Data)
		})
	}
}

// TestSlowFollower: a reader that is slow or leaves holds nobody up.
func TestFollowerLeaves(t *testing.T) {
	w := newWorld(t)
	id := guest.NewID("leave-")
	gate := filepath.Join(w.dir, "gate")
	ctx, cancel := context.WithCancelCause(w.context())
	gone := errors.New("gone")
	_, err := w.client.Run(ctx, id, guest.Spec{Command: "echo one; while ! test -e " + gate + "; do sleep 0.02; done; echo two; exit 3"},
		func(guest.Output) { cancel(gone) })
	if !errors.Is(err, gone) {
		t.Fatalf("err = %v", err)
	}
	p, err := w.client.Get(w.context(), id, 0)
	if err != nil || p.Status != guest.StatusRunning {
		t.Fatalf("%+v %v", p, err)
	}
	os.WriteFile(gate, nil, 0o644)
	var out, errb bytes.Buffer
	p, err = w.client.Follow(w.context(), id, guest.Offsets{Stdout: 4}, collect(&out, &errb))
	if err != nil || out.String() != "two\n" || p.ExitCode != 3 {
		t.Fatalf("%+v %v %q", p, err, out.String())
	}
}

func TestParallelRuns(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			var out, errb bytes.Buffer
			p, err := w.client.Run(w.context(), fmt.Sprintf("par-%d", i),
				guest.Spec{Command: fmt.Sprintf("for k in 1 2 3 4 5; do echo %d; sleep 0.01; done; exit %d", i, i)}, collect(&out, &errb))
			if err != nil || p.ExitCode != i || out.String() != strings.Repeat(fmt.Sprintf("%d\n", i), 5) {
				t.Errorf("%d: %+v %v %q", i, p, err, out.String())
			}
		})
	}
	wg.Wait()
	list, err := w.client.List(w.context())
	if err != nil || len(list) != 20 {
		t.Fatalf("%d %v", len(list), err)
	}
	for _, p := range list {
		if !p.Ended() || p.StdoutBytes == 0 {
			t.Fatalf("%+v", p)
		}
	}
}

func TestSignalOnlyTheProcess(t *testing.T) {
	w := newWorld(t)
	id := guest.NewID("sig-")
	w.client.Start(w.context(), id, guest.Spec{Command: `trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.02; done`})
	eventually(t, "ready", func() bool {
		c, err := w.client.Read(w.context(), id, guest.ReadRequest{Stream: guest.Stdout})
		return err == nil && len(c.Data) > 0
	})
	if err := w.client.Forget(w.context(), id); !errors.Is(err, guest.ErrFailedPrecondition) {
		t.Fatalf("forgot a running process: %v", err)
	}
	if _, err := w.client.Signal(w.context(), id, guest.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	p, err := w.client.Get(w.context(), id, 10*time.Second)
	if err != nil || p.ExitCode != 7 || p.Status != guest.StatusExited {
		t.Fatalf("%+v %v", p, err)
	}
}

func TestAttach(t *testing.T) {
	w := newWorld(t)
	t.Run("pipe", func(t *testing.T) {
		id := guest.NewID("att-")
		w.client.Start(w.context(), id, guest.Spec{Command: "cat; echo done", StdinOpen: true, Stdin: []byte("first ")})
		a, err := w.client.Attach(w.context(), id, guest.Offsets{})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			a.SendStdin(big)
			a.CloseStdin()
		}()
		out, p := drainAttachment(t, a)
		if want := "first " + string(big) + "done\n"; out != want || p.ExitCode != 0 {
			t.Fatalf("%d bytes, %+v", len(out), p)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		id := guest.NewID("tty-")
		w.client.Start(w.context(), id, guest.Spec{
			Command: `tty >/dev/null && echo is-a-tty; stty size; read x; stty size; echo "got $x"; sleep 600; echo "int"; exit 5`,
			TTY:     true, StdinOpen: true, Rows: 10, Cols: 20,
		})
		a, err := w.client.Attach(w.context(), id, guest.Offsets{})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		var out string
		await := func(text string) {
			t.Helper()
			for !strings.Contains(out, text) {
				ev, err := a.Next()
				if err != nil {
					t.Fatalf("%v after %q", err, out)
				}
				if ev.Output != nil {
					out += string(ev.Output.Data)
				}
			}
		}
		await("is-a-tty\r\n10 20\r\n")
		a.Resize(33, 44)
		a.SendStdin([]byte("hello\n"))
		await("33 44\r\ngot hello\r\n")
		// ^C, through the line discipline, until it meets the sleep: a shell
		// that is about to fork keeps it for later.
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					a.SendStdin([]byte{3})
				case <-done:
					return
				}
			}
		})
		_, p := drainAttachment(t, a)
		close(done)
		wg.Wait()
		if p.Status != guest.StatusSignaled || p.Signal != 2 {
			t.Fatalf("%+v", p)
		}
	})
}

func drainAttachment(t *testing.T, a *guest.Attachment) (string, guest.Process) {
	t.Helper()
	var out bytes.Buffer
	for {
		ev, err := a.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Output != nil {
			out.Write(ev.Output.Data)
		}
		if ev.Ended != nil {
			if _, err := a.Next(); err != io.EOF {
				t.Fatalf("after the end: %v", err)
			}
			return out.String(), *ev.Ended
		}
	}
}

func TestLoginEnvironment(t *testing.T) {
	if os.Geteuid() == 0 {
		// root's profile is not the test's to write: a home of our own.
		t.Log("running as root")
	}
	w := newWorld(t)
	home := filepath.Join(w.dir, "home")
	os.Mkdir(home, 0o755)
	me := fmt.Sprint(os.Geteuid())
	os.WriteFile(filepath.Join(w.cfg.Etc, "passwd"), []byte("me:x:"+me+":"+fmt.Sprint(os.Getegid())+"::"+home+":/bin/sh\n"), 0o644)
	os.WriteFile(filepath.Join(w.cfg.Etc, "environment"), []byte("# comment\nFROM_ETC=\"yes\"\n"), 0o644)
	os.WriteFile(filepath.Join(home, ".profile"), []byte("echo noise; export FROM_PROFILE=1 MULTI='a\nb'\n"), 0o644)
	cmd := `printf '%s|' "$HOME" "$USER" "$FROM_ETC" "$FROM_PROFILE" "$MULTI" "$PWD"`
	out, _, _ := w.run(guest.Spec{Command: cmd})
	if want := home + "|me|yes|1|a\nb|" + home + "|"; out != want {
		t.Fatalf("%q, not %q", out, want)
	}
	os.WriteFile(filepath.Join(home, ".profile"), []byte("export FROM_PROFILE=22\n"), 0o644)
	if out, _, _ = w.run(guest.Spec{Command: `echo $FROM_PROFILE`}); out != "22\n" {
		t.Fatalf("after a change: %q", out)
	}
	os.WriteFile(filepath.Join(home, ".profile"), []byte("exit 9\n"), 0o644)
	if out, _, _ = w.run(guest.Spec{Command: `echo $FROM_ETC`}); out != "yes\n" {
		t.Fatalf("with a broken profile: %q", out)
	}
}
