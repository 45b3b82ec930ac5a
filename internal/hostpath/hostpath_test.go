//go:build unix

package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

func tempDir(t testing.TB) string {
	t.Helper()
	d, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func put(t testing.TB, name, text string) {
	t.Helper()
	os.MkdirAll(filepath.Dir(name), 0o755)
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCheckWorkspaceRoot(t *testing.T) {
	dir := tempDir(t)
	home := filepath.Join(dir, "home")
	state := filepath.Join(home, ".local", "state", "sandboxforge")
	ws := filepath.Join(home, "proj")
	for _, d := range []string{state, ws, filepath.Join(state, "vms", "x"), filepath.Join(dir, "elsewhere")} {
		os.MkdirAll(d, 0o755)
	}
	put(t, filepath.Join(home, "file"), "x")
	os.Symlink(ws, filepath.Join(dir, "link"))
	os.Symlink(home, filepath.Join(dir, "homelink"))
	os.Symlink("/", filepath.Join(dir, "rootlink"))
	rules := RootRules{UserHome: home, StateHome: state}
	for _, c := range []struct {
		path, want string
		code       fault.Code
		roots      []string
	}{
		{ws, ws, "", nil},
		{ws + "/", ws, "", nil},
		{ws + "/../proj", ws, "", nil},
		{filepath.Join(dir, "link"), ws, "", nil},
		{"", "", fault.InvalidArgument, nil},
		{"proj", "", fault.InvalidArgument, nil},
		{ws + "\x00", "", fault.PathNotAllowed, nil},
		{"/", "", fault.PathNotAllowed, nil},
		{"//server/share", "", fault.PathNotAllowed, nil},
		{filepath.Join(dir, "rootlink"), "", fault.PathNotAllowed, nil},
		{home, "", fault.PathNotAllowed, nil},
		{filepath.Join(dir, "homelink"), "", fault.PathNotAllowed, nil},
		{filepath.Join(home, "nope"), "", fault.InvalidArgument, nil},
		{filepath.Join(home, "file"), "", fault.InvalidArgument, nil},
		{filepath.Join(home, "file", "x"), "", fault.InvalidArgument, nil},
		{state, "", fault.PathNotAllowed, nil},
		{filepath.Join(home, ".local"), "", fault.PathNotAllowed, nil},
		{filepath.Join(state, "vms", "x"), "", fault.PathNotAllowed, nil},
		{ws, ws, "", []string{home}},
		{ws, ws, "", []string{filepath.Join(dir, "homelink")}},
		{ws, "", fault.PathNotAllowed, []string{filepath.Join(dir, "elsewhere")}},
		{ws, "", fault.PathNotAllowed, []string{}},
		{ws, "", fault.PathNotAllowed, []string{ws[:len(ws)-1]}},
	} {
		rules.WorkspaceRoots = c.roots
		got, err := CheckWorkspaceRoot(c.path, rules)
		if got != c.want || fault.CodeOf(err) != c.code {
			t.Errorf("%q in %v: %q, %v", c.path, c.roots, got, err)
		}
	}
	// A state directory that does not exist yet is protected too.
	rules = RootRules{UserHome: home, StateHome: filepath.Join(ws, "new", "state")}
	if _, err := CheckWorkspaceRoot(ws, rules); !fault.Is(err, fault.PathNotAllowed) {
		t.Errorf("an ancestor of a future state directory: %v", err)
	}
	for _, p := range []string{"/root", "/home"} {
		if _, err := os.Stat(p); err == nil {
			if _, err := CheckWorkspaceRoot(p, rules); !fault.Is(err, fault.PathNotAllowed) {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	dir := tempDir(t)
	ws, extra := filepath.Join(dir, "ws"), filepath.Join(dir, "extra")
	put(t, filepath.Join(ws, "sub", "f"), "x")
	put(t, filepath.Join(extra, "g"), "x")
	put(t, filepath.Join(dir, "outside", "h"), "x")
	os.Symlink("sub", filepath.Join(ws, "in"))
	os.Symlink("../outside", filepath.Join(ws, "out"))
	os.Symlink("../extra", filepath.Join(ws, "toextra"))
	os.Symlink("nowhere", filepath.Join(ws, "dangling"))
	os.Symlink(".", filepath.Join(ws, "self"))
	os.Symlink(ws, filepath.Join(dir, "alias"))
	os.Symlink(filepath.Join(ws, "sub"), filepath.Join(dir, "sneak"))
	syscall.Mkfifo(filepath.Join(ws, "fifo"), 0o600)
	p := Policy{WorkspaceRoot: ws, AllowedRoots: []string{extra, filepath.Join(dir, "missing")}}
	for _, c := range []struct{ path, root, rel string }{
		{ws, ws, "."},
		{".", ws, "."},
		{"sub/f", ws, "sub/f"},
		{"./sub/../sub/f", ws, "sub/f"},
		{ws + "/sub/f/", ws, "sub/f"},
		{"new/deep/er", ws, "new/deep/er"},
		{filepath.Join(dir, "alias", "sub", "f"), ws, "sub/f"},
		{extra, extra, "."},
		{filepath.Join(extra, "g"), extra, "g"},
		{"fifo", ws, "fifo"}, // refused when it is opened
		{"", "", ""},
		{"..", "", ""},
		{"../ws2", "", ""},
		{"/etc/passwd", "", ""},
		{"sub/\x00", "", ""},
		{"out/h", "", ""},
		{"out/new", "", ""},
		{"in/f", "", ""},
		{"self/sub/f", "", ""},
		{"toextra/g", "", ""},
		{"dangling", "", ""},
		{"dangling/x", "", ""},
		{filepath.Join(dir, "sneak", "f"), "", ""},
		{"//server/share", "", ""},
		{`\\server\share`, "", ""},
		{"sub/f/x", ws, "sub/f/x"}, // a file is in the way: the access tells
		{strings.Repeat("x", 300), "", ""},
	} {
		got, err := p.Resolve(c.path)
		if (err == nil) != (c.root != "") || err == nil && got != (Location{c.root, c.rel}) {
			if !strings.HasPrefix(c.path, `\\`) || err != nil { // a plain name on unix
				t.Errorf("%q: %+v, %v", c.path, got, err)
			}
		}
		if err != nil && !fault.Is(err, fault.PathNotAllowed) {
			t.Errorf("%q: code of %v", c.path, err)
		}
	}
	if _, err := (Policy{}).Resolve("x"); !fault.Is(err, fault.PathNotAllowed) {
		t.Errorf("no roots: %v", err)
	}
}

func TestDirFollowsNothing(t *testing.T) {
	dir := tempDir(t)
	put(t, filepath.Join(dir, "real", "f"), "hello")
	os.Symlink("real", filepath.Join(dir, "dlink"))
	os.Symlink("real/f", filepath.Join(dir, "flink"))
	syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600)
	d, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, kind := range map[string]error{"flink": ErrSymlink, "fifo": ErrSpecial, "real": ErrSpecial, "nope": fs.ErrNotExist} {
		if _, _, err := d.Open(name); !errors.Is(err, kind) {
			t.Errorf("open %s: %v", name, err)
		}
	}
	for rel, kind := range map[string]error{"dlink": ErrSymlink, "dlink/x": ErrSymlink, "real/f": errNotDir, "nope": fs.ErrNotExist} {
		if sub, err := d.Walk(rel); !errors.Is(err, kind) {
			t.Errorf("walk %s: %v %v", rel, sub, err)
		}
	}
	for _, rel := range []string{"..", "../x", "/etc", "real/../..", "", "a//b", "a/./b"} {
		if _, err := d.Walk(rel); !fault.Is(err, fault.PathNotAllowed) {
			t.Errorf("walk %q: %v", rel, err)
		}
	}
	if _, err := d.MakeAll("dlink/new"); !errors.Is(err, ErrSymlink) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "real", "new")); err == nil {
		t.Error("a directory was made through a symlink")
	}
	if data, err := d.ReadFile("flink", 10); err == nil {
		t.Errorf("read through a symlink: %q", data)
	}
	sub, err := d.Walk("real")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if data, err := sub.ReadFile("f", 5); err != nil || string(data) != "hello" {
		t.Errorf("%q %v", data, err)
	}
	if _, err := sub.ReadFile("f", 4); err == nil {
		t.Error("a file larger than the bound was read")
	}
}

func TestCommit(t *testing.T) {
	dir := tempDir(t)
	d, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	put(t, filepath.Join(dir, "precious"), "precious")
	os.Symlink("precious", filepath.Join(dir, "link"))
	os.Mkdir(filepath.Join(dir, "dir"), 0o755)
	syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600)
	when := time.Unix(1_700_000_000, 0)
	commit := func(name string, check func(fs.FileInfo) error) error {
		tmp, err := d.Create(0o6755)
		if err != nil {
			t.Fatal(err)
		}
		tmp.WriteString("new")
		return tmp.Commit(name, when, check)
	}
	if err := commit("link", nil); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "precious")); string(data) != "precious" {
		t.Error("written through a symlink")
	}
	info, err := os.Lstat(filepath.Join(dir, "link"))
	if err != nil || info.Mode() != 0o755 || !info.ModTime().Equal(when) {
		t.Errorf("%v %v", info.Mode(), info.ModTime())
	}
	veto := errors.New("no")
	for name, want := range map[string]error{"dir": ErrExists, "fifo": ErrSpecial, "precious": veto} {
		if err := commit(name, func(fs.FileInfo) error { return veto }); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", "x\x00"} {
		if err := commit(bad, nil); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	tmp, _ := d.Create(0o600)
	if err := tmp.CommitNew("precious", time.Time{}); !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}
	if err := tmp.CommitNew("other", time.Time{}); err != nil {
		t.Error(err)
	}
	if err := d.CommitLink("x", "dir", nil); !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}
	names, _ := d.Names()
	for _, n := range names {
		if strings.HasPrefix(n, TempPrefix) {
			t.Errorf("%s was left", n)
		}
	}
}

// TestSwapIsNoticed swaps a directory for a symlink while it is walked into,
// over and over; nothing may ever be made outside.
func TestSwapIsNoticed(t *testing.T) {
	dir := tempDir(t)
	inside, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	os.MkdirAll(filepath.Join(inside, "d"), 0o755)
	os.MkdirAll(filepath.Join(inside, "victim"), 0o755)
	os.Mkdir(outside, 0o755)
	d, err := OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		p := filepath.Join(inside, "d")
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			os.Remove(p)
			to := "victim"
			if i%2 == 0 {
				to = "../outside"
			}
			os.Symlink(to, p)
			os.Remove(p)
			os.Mkdir(p, 0o755)
		}
	}()
	for range 3000 {
		if sub, err := d.Walk("d"); err == nil {
			sub.Mkdir("made", 0o755)
			sub.Remove("made")
			if tmp, err := sub.Create(0o600); err == nil {
				tmp.Commit("f", time.Time{}, nil)
				sub.Remove("f")
			}
			sub.Close()
		}
	}
	close(stop)
	<-done
	for _, p := range []string{outside, filepath.Join(inside, "victim")} {
		if list, _ := os.ReadDir(p); len(list) != 0 {
			t.Errorf("%s got %v", p, list)
		}
	}
}
