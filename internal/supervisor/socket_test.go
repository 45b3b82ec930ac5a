//go:build unix

package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

func TestGarbageOnTheSocket(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	path := socketPath(o.RunDir, o.Spec.Name)
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for _, garbage := range []string{
		"", "\x00", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\xff", 1<<20), preface,
		preface + "\xff\xff\xff\xff\xff\xff\xff\xff\xff", preface + strings.Repeat("A", 100<<10),
	} {
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		nc.Write([]byte(garbage)) // may fail: the server hangs up
		nc.(*net.UnixConn).CloseWrite()
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.20q: not hung up", garbage)
		}
		nc.Close()
	}
	if _, err := c.Status(testContext(t)); err != nil {
		t.Error(err)
	}
}

// TestSocketThatIsSweptAway: a supervisor whose socket, or whose run directory,
// was removed by somebody can be reached again, and what stands in the way is
// not touched.
func TestSocketThatIsSweptAway(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	o.Tuning.SocketCheck = 20 * time.Millisecond
	pid := launch(t, o).Hello().PID
	path := socketPath(o.RunDir, o.Spec.Name)
	back := func(what string) {
		t.Helper()
		for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			c, err := Dial(testContext(t), o.RunDir, o.Spec.Name)
			if err == nil {
				defer c.Close()
				if _, err := c.Status(testContext(t)); err != nil || c.Hello().PID != pid {
					t.Fatalf("%s: pid %d, want %d: %v", what, c.Hello().PID, pid, err)
				}
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for what, sweep := range map[string]func() error{
		"the socket":    func() error { return os.Remove(path) },
		"its directory": func() error { return os.RemoveAll(o.RunDir) },
	} {
		if err := sweep(); err != nil {
			t.Fatal(err)
		}
		back(what)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the new socket: %v, %v", fi.Mode(), err)
	}

	os.Remove(path)
	if err := os.WriteFile(path, []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * o.Tuning.SocketCheck) // nothing is to happen
	if b, err := os.ReadFile(path); err != nil || string(b) != "another's" {
		t.Errorf("what stood in the way: %q, %v", b, err)
	}
	os.Remove(path)
	back("what stood in the way")
	c, err := Dial(testContext(t), o.RunDir, o.Spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Stop(testContext(t), "", 0); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, o)
}

func TestDialSomethingElse(t *testing.T) {
	dir, err := os.MkdirTemp("", "sfs")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", socketPath(dir, "vm-1"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("220 mail ready\r\n"))
			c.Close()
		}
	}()
	_, err = Dial(testContext(t), dir, "vm-1")
	if err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "not a supervisor") {
		t.Errorf("Dial: %v", err)
	}
	o := testOptions(t, &fakeBackend{})
	o.RunDir = dir
	if _, err := Launch(testContext(t), o, nil); err == nil || errors.Is(err, ErrNotRunning) {
		t.Errorf("Launch: %v", err)
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := listen(testContext(t), socketPath(dir, "vm-1"), log); err == nil {
		t.Error("somebody else's live socket was taken")
	}
	os.WriteFile(socketPath(dir, "vm-2"), []byte("precious"), 0o600)
	if _, err := listen(testContext(t), socketPath(dir, "vm-2"), log); err == nil {
		t.Error("a file was taken for a stale socket")
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	good := testOptions(t, &fakeBackend{})
	foreign := t.TempDir()
	os.Chmod(foreign, 0o755)
	for name, change := range map[string]func(*Options){
		"name":         func(o *Options) { o.Spec.Name = "../x" },
		"dir":          func(o *Options) { o.Dir = "vm" },
		"run dir":      func(o *Options) { o.RunDir = "run" },
		"long run dir": func(o *Options) { o.RunDir = "/" + strings.Repeat("x", 90) },
		"open run dir": func(o *Options) { o.RunDir = foreign },
		"no instance":  func(o *Options) { o.InstanceID = "" },
		"no deadline":  func(o *Options) { o.Deadline = time.Time{} },
		"no backend":   func(o *Options) { o.Backend.Name = "" },
	} {
		o := good
		change(&o)
		if _, err := Launch(testContext(t), o, nil); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	unknown := good
	unknown.Backend.Name = "vmware"
	if _, err := Launch(testContext(t), unknown, nil); !fault.Is(err, fault.BackendUnavailable) {
		t.Errorf("unknown backend: %v", err)
	}
	if _, err := Dial(testContext(t), good.RunDir, "nobody"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Dial of nothing: %v", err)
	}
}

func TestPeerUID(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if uid, err := peerUID(a); err != nil || uid != os.Geteuid() {
		t.Errorf("%d, %v", uid, err)
	}
}

// A systemd-run that works, fails, chatters or hangs makes no difference but
// the scope.
func TestScope(t *testing.T) {
	for name, script := range map[string]string{
		"works":  `echo chatter; echo ran >"$RAN"; while [ "$1" != -- ]; do shift; done; shift; exec "$@"`,
		"fails":  `echo ran >"$RAN"; echo "Failed to connect to bus" >&2; exit 1`,
		"hangs":  `echo ran >"$RAN"; exec sleep 1000`,
		"absent": ``,
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, &fakeBackend{})
			base := filepath.Dir(o.Dir)
			run := filepath.Join(base, "xdg")
			os.MkdirAll(filepath.Join(run, "systemd"), 0o700)
			l, err := net.Listen("unix", filepath.Join(run, "systemd", "private"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			bin := filepath.Join(base, "bin")
			os.MkdirAll(bin, 0o700)
			path := bin
			if script != "" {
				os.WriteFile(filepath.Join(bin, "systemd-run"), []byte("#!/bin/sh\n"+script+"\n"), 0o700)
				path += ":" + os.Getenv("PATH")
			}
			ran := filepath.Join(base, "ran")
			t.Setenv("PATH", path)
			t.Setenv("RAN", ran)
			t.Setenv("XDG_RUNTIME_DIR", run)
			launch(t, o)
			if _, err := os.Stat(ran); (err == nil) != (script != "") {
				t.Errorf("systemd-run: %v", err)
			}
		})
	}
}

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var files []*os.File
	w, err := openLog(path, func(f *os.File) error { files = append(files, f); return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.limit = 1000
	line := append(bytes.Repeat([]byte("x"), 99), '\n')
	for range 55 {
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{path: 500, path + ".1": 1000} {
		if st, err := os.Stat(name); err != nil || st.Size() != want {
			t.Errorf("%s: %v, %v, want %d", name, st.Size(), err, want)
		}
	}
	if len(files) != 6 {
		t.Errorf("standard error followed %d files", len(files))
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"plain":                            "plain",
		"a\tb \x1b[1;31mred\x1b[0m\r":      "a b red",
		"\x1b]0;title\x07x\x1b]104\x1b\\y": "xy",
		"\xff\xfeok\u202e":                 "ok",
		strings.Repeat("ä", 15) + "\x00":   strings.Repeat("ä", 10),
	} {
		if got := printable([]byte(in), 20); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := lastLine([]byte("one\r\ntwo\r\n\x1b[0m\r\n\n")); got != "two" {
		t.Errorf("last line %q", got)
	}
	if got := printableText([]byte("one\r\n\n\x07two\n"), 6); got != "ne\ntwo"[0:6] {
		t.Errorf("text %q", got)
	}
}

func TestEndFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadEnd(dir); !errors.Is(err, ErrNoEnd) {
		t.Errorf("nothing there: %v", err)
	}
	want := &End{InstanceID: "i", Name: "n", Reason: ReasonExpired, At: time.Now().UTC().Round(0),
		Tasks: []TaskEnd{{ID: "t", Status: "exited", StdoutTail: []byte{0, 0xff, '\n'}}}}
	if err := writeEnd(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadEnd(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	if !bytes.Equal(a, b) {
		t.Errorf("got %s, want %s", b, a)
	}
	whole, _ := os.ReadFile(filepath.Join(dir, endFile))
	for n := range len(whole) - 1 { // every way to cut it but the last newline
		if _, err := parseEnd(whole[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes of %d: %v", n, len(whole), err)
		}
	}
	for _, bad := range []string{"null", "{}", "[]", `{"reason":"x"}`, string(whole) + "{}", `{"reason":"x","at":"2026-01-02T03:04:05Z","tasks":[{}]}`} {
		if _, err := parseEnd([]byte(bad)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	os.Remove(filepath.Join(dir, endFile))
	os.Mkdir(filepath.Join(dir, endFile), 0o700)
	if _, err := ReadEnd(dir); err == nil || errors.Is(err, ErrNoEnd) {
		t.Errorf("a directory: %v", err)
	}
}

func FuzzEnd(f *testing.F) {
	f.Add([]byte(`{"instance_id":"i","name":"n","reason":"expired","at":"2026-01-02T03:04:05Z","tasks":[{"id":"a","status":"exited","stdout_tail":"aGk="}]}`))
	f.Add([]byte(`{"reason":"x","at":"2026-01-02T03:04:05Z","tasks":null}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEnd(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("another kind: %v", err)
			}
			return
		}
		if e.Reason == "" || e.At.IsZero() {
			t.Fatalf("accepted %+v", e)
		}
		dir := t.TempDir()
		if err := writeEnd(dir, e); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadEnd(dir); err != nil {
			t.Fatalf("what was written is not read: %v", err)
		}
	})
}

func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"dir":"/d","run_dir":"/r","instance_id":"i","backend":{"name":"qemu","config":{"a":1}},"spec":{"name":"vm","cpus":1},"deadline":"2026-01-02T03:04:05Z","boot_timeout_ns":5}`))
	f.Add([]byte(`{"dir":"/d","run_dir":"/r","spec":{"name":"../../x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseSpec(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("another kind: %v", err)
			}
			return
		}
		if p := socketPath(o.RunDir, o.Spec.Name); len(p) > maxSocketPath || filepath.Dir(p) != filepath.Clean(o.RunDir) {
			t.Fatalf("accepted %q", p)
		}
		o = o.withDefaults()
		if o.BootTimeout <= 0 || o.BootAttempts <= 0 || o.Tuning.StallTimeout <= 0 {
			t.Fatalf("accepted %+v", o)
		}
	})
}
