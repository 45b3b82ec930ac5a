//go:build unix

package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

// pair is a host directory and a guest, ready to sync.
type pair struct {
	t     testing.TB
	host  string
	guest string // real path of the remote directory
	g     *dirGuest
	req   Request
}

func newPair(t testing.TB) *pair {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, host: filepath.Join(dir, "host"), guest: filepath.Join(dir, "guest", "workspace"), g: newDirGuest(filepath.Join(dir, "guest"))}
	os.MkdirAll(p.host, 0o755)
	os.MkdirAll(filepath.Join(dir, "guest"), 0o755)
	p.req = Request{Guest: p.g, Local: hostpath.Location{Root: p.host, Rel: "."}, Remote: "/workspace", ManifestDir: filepath.Join(dir, "sync"), Exclude: []string{"/.git", ".venv", ".pytest_cache"}}
	return p
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (p *pair) up() *UpResult {
	p.t.Helper()
	r, err := Up(context.Background(), p.req)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *pair) down(o DownOptions) *DownResult {
	p.t.Helper()
	r, err := Down(context.Background(), p.req, o)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *pair) wantGuest(want map[string]string) {
	p.t.Helper()
	if d := cmp.Diff(want, readTree(p.guest)); d != "" {
		p.t.Errorf("guest (-want +got):\n%s", d)
	}
}

func (p *pair) wantHost(want map[string]string) {
	p.t.Helper()
	if d := cmp.Diff(want, readTree(p.host)); d != "" {
		p.t.Errorf("host (-want +got):\n%s", d)
	}
}

func TestUpSendsEverythingButExcludes(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "a.txt", "a")
	write(t, p.host, "d/run.sh", "#!/bin/sh")
	os.Chmod(filepath.Join(p.host, "d/run.sh"), 0o755)
	write(t, p.host, ".git/config", "x")
	write(t, p.host, "sub/.git", "gitdir: ../x")
	write(t, p.host, ".venv/bin/python", "x")
	write(t, p.host, "d/.pytest_cache/x", "x")
	os.MkdirAll(filepath.Join(p.host, "empty"), 0o755)
	os.Symlink("a.txt", filepath.Join(p.host, "link"))
	os.Symlink("/etc/passwd", filepath.Join(p.host, "out"))
	syscall.Mkfifo(filepath.Join(p.host, "fifo"), 0o600)
	r := p.up()
	p.wantGuest(map[string]string{"a.txt": "a", "d": "dir", "d/run.sh": "x:#!/bin/sh", "sub": "dir", "sub/.git": "gitdir: ../x", "empty": "dir", "link": "-> a.txt", "out": "-> /etc/passwd"})
	if r.FilesSent != 5 || r.FilesUnchanged != 0 || r.FilesDeleted != 0 || r.ArchiveBytes == 0 || len(r.Skipped) != 1 || r.Skipped[0].Path != "fifo" || len(r.Notes) != 1 || r.Status != "partial" {
		t.Errorf("%+v", r)
	}
	r = p.up()
	if r.FilesSent != 0 || r.FilesUnchanged != 3 || r.ArchiveBytes != 0 {
		t.Errorf("second: %+v", r)
	}
}

// script is one story: edits on either side, then a direction, then both
// sides' state.
func TestThreeWay(t *testing.T) {
	type sides struct{ host, guest map[string]string }
	apply := func(dir string, edits map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(edits)) { // parents before children
			text := edits[name]
			full := filepath.Join(dir, name)
			if text == "-" {
				os.RemoveAll(full)
			} else if text == "dir" {
				os.RemoveAll(full)
				os.MkdirAll(full, 0o755)
			} else if to, ok := strings.CutPrefix(text, "-> "); ok {
				os.RemoveAll(full)
				os.Symlink(to, full)
			} else {
				if i, err := os.Lstat(full); err == nil && !i.Mode().IsRegular() {
					os.RemoveAll(full)
				}
				write(t, dir, name, text)
			}
		}
	}
	base := map[string]string{"f": "1", "d/x": "1", "d/y": "1"}
	for _, c := range []struct {
		name      string
		edit      sides
		up        bool
		policy    OnConflict
		want      sides // besides the base, "-" for gone
		conflicts []string
	}{
		{"up: host edit", sides{map[string]string{"f": "2"}, nil}, true, "", sides{map[string]string{"f": "2"}, map[string]string{"f": "2"}}, nil},
		{"up: guest edit stays", sides{nil, map[string]string{"f": "G"}}, true, "", sides{nil, map[string]string{"f": "G"}}, nil},
		{"up: both edited", sides{map[string]string{"f": "H", "d/x": "2"}, map[string]string{"f": "G"}}, true, "", sides{map[string]string{"f": "H", "d/x": "2"}, map[string]string{"f": "G", "d/x": "2"}}, []string{"f"}},
		{"up: both edited alike", sides{map[string]string{"f": "S"}, map[string]string{"f": "S"}}, true, "", sides{map[string]string{"f": "S"}, map[string]string{"f": "S"}}, nil},
		{"up: host deleted", sides{map[string]string{"f": "-", "d": "-"}, nil}, true, "", sides{map[string]string{"f": "-", "d": "-", "d/x": "-", "d/y": "-"}, map[string]string{"f": "-", "d": "-", "d/x": "-", "d/y": "-"}}, nil},
		{"up: host deleted, guest edited", sides{map[string]string{"f": "-"}, map[string]string{"f": "G"}}, true, "", sides{map[string]string{"f": "-"}, map[string]string{"f": "G"}}, []string{"f"}},
		{"up: host deleted dir, guest has own file in it", sides{map[string]string{"d": "-"}, map[string]string{"d/own": "G"}}, true, "", sides{map[string]string{"d": "-", "d/x": "-", "d/y": "-"}, map[string]string{"d/own": "G", "d/x": "-", "d/y": "-"}}, nil},
		{"up: guest's own file", sides{nil, map[string]string{"own": "G"}}, true, "", sides{nil, map[string]string{"own": "G"}}, nil},
		{"up: created on both", sides{map[string]string{"n": "H"}, map[string]string{"n": "G"}}, true, "", sides{map[string]string{"n": "H"}, map[string]string{"n": "G"}}, []string{"n"}},
		{"up: guest deleted, comes back", sides{nil, map[string]string{"f": "-"}}, true, "", sides{nil, nil}, nil},
		{"up: file becomes dir", sides{map[string]string{"f": "dir", "f/z": "2"}, nil}, true, "", sides{map[string]string{"f": "dir", "f/z": "2"}, map[string]string{"f": "dir", "f/z": "2"}}, nil},
		{"up: dir becomes file", sides{map[string]string{"d": "2"}, nil}, true, "", sides{map[string]string{"d": "2", "d/x": "-", "d/y": "-"}, map[string]string{"d": "2", "d/x": "-", "d/y": "-"}}, nil},
		{"up: dir becomes file, guest has own file in it", sides{map[string]string{"d": "2"}, map[string]string{"d/own": "G"}}, true, "", sides{map[string]string{"d": "2", "d/x": "-", "d/y": "-"}, map[string]string{"d/own": "G"}}, []string{"d"}},
		{"up: file becomes dir, guest edited", sides{map[string]string{"f": "dir", "f/z": "2"}, map[string]string{"f": "G"}}, true, "", sides{map[string]string{"f": "dir", "f/z": "2"}, map[string]string{"f": "G"}}, []string{"f"}},
		{"up: file becomes link", sides{map[string]string{"f": "-> d/x"}, nil}, true, "", sides{map[string]string{"f": "-> d/x"}, map[string]string{"f": "-> d/x"}}, nil},

		{"down: guest edit", sides{nil, map[string]string{"f": "G"}}, false, "", sides{map[string]string{"f": "G"}, map[string]string{"f": "G"}}, nil},
		{"down: host edit stays", sides{map[string]string{"f": "H"}, nil}, false, "", sides{map[string]string{"f": "H"}, nil}, nil},
		{"down: guest created", sides{nil, map[string]string{"n/m": "G", "e": "dir"}}, false, "", sides{map[string]string{"n": "dir", "n/m": "G", "e": "dir"}, map[string]string{"n": "dir", "n/m": "G", "e": "dir"}}, nil},
		{"down: guest deleted", sides{nil, map[string]string{"d": "-"}}, false, "", sides{map[string]string{"d": "-", "d/x": "-", "d/y": "-"}, map[string]string{"d": "-", "d/x": "-", "d/y": "-"}}, nil},
		{"down: guest deleted, host edited", sides{map[string]string{"f": "H"}, map[string]string{"f": "-"}}, false, "", sides{map[string]string{"f": "H"}, map[string]string{"f": "-"}}, []string{"f"}},
		{"down: guest deleted, host edited, keep_guest", sides{map[string]string{"f": "H"}, map[string]string{"f": "-"}}, false, KeepGuest, sides{map[string]string{"f": "-"}, map[string]string{"f": "-"}}, nil},
		{"down: host deleted", sides{map[string]string{"f": "-"}, nil}, false, "", sides{map[string]string{"f": "-"}, nil}, nil},
		{"down: host deleted, guest edited", sides{map[string]string{"f": "-"}, map[string]string{"f": "G"}}, false, "", sides{map[string]string{"f": "-"}, map[string]string{"f": "G"}}, []string{"f"}},
		{"down: host deleted, guest edited, keep_guest", sides{map[string]string{"f": "-"}, map[string]string{"f": "G"}}, false, KeepGuest, sides{map[string]string{"f": "G"}, map[string]string{"f": "G"}}, nil},
		{"down: both", sides{map[string]string{"f": "H"}, map[string]string{"f": "G", "d/x": "G"}}, false, "", sides{map[string]string{"f": "H", "d/x": "G"}, map[string]string{"f": "G", "d/x": "G"}}, []string{"f"}},
		{"down: both, keep_host", sides{map[string]string{"f": "H"}, map[string]string{"f": "G"}}, false, KeepHost, sides{map[string]string{"f": "H"}, map[string]string{"f": "G"}}, nil},
		{"down: both, keep_guest", sides{map[string]string{"f": "H"}, map[string]string{"f": "G"}}, false, KeepGuest, sides{map[string]string{"f": "G"}, map[string]string{"f": "G"}}, nil},
		{"down: host's own file", sides{map[string]string{"own": "H"}, nil}, false, "", sides{map[string]string{"own": "H"}, nil}, nil},
		{"down: created on both", sides{map[string]string{"n": "H"}, map[string]string{"n": "G"}}, false, "", sides{map[string]string{"n": "H"}, map[string]string{"n": "G"}}, []string{"n"}},
		{"down: dir becomes file", sides{nil, map[string]string{"d": "G"}}, false, "", sides{map[string]string{"d": "G", "d/x": "-", "d/y": "-"}, map[string]string{"d": "G", "d/x": "-", "d/y": "-"}}, nil},
		{"down: dir becomes file, host has own file", sides{map[string]string{"d/own": "H"}, map[string]string{"d": "G"}}, false, "", sides{map[string]string{"d/own": "H"}, map[string]string{"d": "G", "d/x": "-", "d/y": "-"}}, []string{"d"}},
		{"down: dir becomes file, host has own file, keep_guest", sides{map[string]string{"d/own": "H"}, map[string]string{"d": "G"}}, false, KeepGuest, sides{map[string]string{"d/own": "H"}, map[string]string{"d": "G", "d/x": "-", "d/y": "-"}}, []string{"d"}},
		{"down: file becomes dir", sides{nil, map[string]string{"f": "dir", "f/z": "G"}}, false, "", sides{map[string]string{"f": "dir", "f/z": "G"}, map[string]string{"f": "dir", "f/z": "G"}}, nil},
		{"down: file becomes link", sides{nil, map[string]string{"f": "-> d/x"}}, false, "", sides{map[string]string{"f": "-> d/x"}, map[string]string{"f": "-> d/x"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			apply(p.host, base)
			p.up()
			apply(p.host, c.edit.host)
			apply(p.guest, c.edit.guest)
			expect := func(over map[string]string) map[string]string {
				m := map[string]string{"f": "1", "d": "dir", "d/x": "1", "d/y": "1"}
				for k, v := range over {
					if m[k] = v; v == "-" {
						delete(m, k)
					}
				}
				return m
			}
			for round := range 2 {
				var conflicts []Conflict
				if c.up {
					r := p.up()
					conflicts = r.Conflicts
					if round == 1 && (r.FilesSent != 0 || r.FilesDeleted != 0) {
						t.Errorf("the second sync still sends: %+v", r)
					}
				} else {
					before := readTree(p.host)
					dry := p.down(DownOptions{DryRun: true, OnConflict: c.policy})
					if d := cmp.Diff(before, readTree(p.host)); d != "" {
						t.Errorf("the dry run wrote: %s", d)
					}
					r := p.down(DownOptions{OnConflict: c.policy})
					dry.Status = r.Status
					if d := cmp.Diff(dry, r); d != "" {
						t.Errorf("dry run and run differ: %s", d)
					}
					for _, k := range r.Conflicts {
						if k.Resolution == "" {
							conflicts = append(conflicts, k)
						}
					}
					if round == 1 && len(r.Created)+len(r.Updated)+len(r.Deleted) != 0 {
						t.Errorf("the second sync still does something: %+v", r)
					}
				}
				var got []string
				for _, k := range conflicts {
					got = append(got, k.Path)
				}
				if d := cmp.Diff(c.conflicts, got); d != "" {
					t.Errorf("round %d: conflicts %s %+v", round, d, conflicts)
				}
				p.wantHost(expect(c.want.host))
				p.wantGuest(expect(c.want.guest))
			}
		})
	}
}

func TestSameSizeAndTimeWithOtherBytesIsFound(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "f", "one")
	old := time.Now().Add(-time.Hour)
	os.Chtimes(filepath.Join(p.host, "f"), old, old)
	p.up()
	for _, text := range []string{"two", "six"} {
		write(t, p.host, "f", text)
		os.Chtimes(filepath.Join(p.host, "f"), old, old)
		if r := p.up(); r.FilesSent != 1 {
			t.Errorf("%s is not found: %+v", text, r)
		}
		p.wantGuest(map[string]string{"f": text})
	}
	write(t, p.guest, "f", "ten")
	os.Chtimes(filepath.Join(p.guest, "f"), old, old)
	if r := p.down(DownOptions{}); len(r.Updated) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestADamagedManifestIsCareful(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "gone", "1")
	write(t, p.host, "same", "1")
	write(t, p.host, "edited", "1")
	p.up()
	list, _ := filepath.Glob(filepath.Join(p.req.ManifestDir, "*.manifest"))
	if len(list) != 1 {
		t.Fatal(list)
	}
	data, _ := os.ReadFile(list[0])
	data[len(data)/2] ^= 1
	os.WriteFile(list[0], data, 0o600)
	os.Remove(filepath.Join(p.host, "gone"))
	write(t, p.host, "edited", "2")
	r := p.up()
	if r.FilesDeleted != 0 || len(r.Conflicts) != 1 || r.FilesUnchanged != 1 {
		t.Errorf("%+v", r)
	}
	p.wantGuest(map[string]string{"gone": "1", "same": "1", "edited": "1"})
}

func TestExcludedLaterIsNotDeleted(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "keep/x", "1")
	p.up()
	p.req.Exclude = append(p.req.Exclude, "keep")
	if r := p.up(); r.FilesDeleted != 0 {
		t.Errorf("%+v", r)
	}
	if r := p.down(DownOptions{}); len(r.Deleted) != 0 {
		t.Errorf("%+v", r)
	}
	p.wantGuest(map[string]string{"keep": "dir", "keep/x": "1"})
}

func TestGitignore(t *testing.T) {
	p := newPair(t)
	p.req.UseGitignore = true
	p.req.Exclude = append(p.req.Exclude, "!kept.log")
	write(t, p.host, ".gitignore", "*.log\nbuild/\n")
	write(t, p.host, "a.log", "1")
	write(t, p.host, "kept.log", "1")
	write(t, p.host, "build/x", "1")
	write(t, p.host, "sub/.gitignore", "/only\n!b.log\n")
	write(t, p.host, "sub/only", "1")
	write(t, p.host, "sub/b.log", "1")
	write(t, p.host, "only", "1")
	p.up()
	want := map[string]string{".gitignore": "*.log\nbuild/\n", "kept.log": "1", "sub": "dir", "sub/.gitignore": "/only\n!b.log\n", "sub/b.log": "1", "only": "1"}
	p.wantGuest(want)
	write(t, p.guest, "made.log", "G")
	write(t, p.guest, "build/out", "G")
	if r := p.down(DownOptions{}); len(r.Created) != 0 {
		t.Errorf("what the host ignores comes back: %+v", r)
	}
}

func TestGuestIsNotTrusted(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "f", "1")
	p.up()
	for _, f := range []string{".git/hooks/pre-commit", "sub/.GIT/config", ".vscode/tasks.json", ".envrc", "a/.Claude/settings.json", ".mcp.json", ".sandboxforge.toml",
		"bare/HEAD", "bare/objects/x", "bare/refs/y", "bare/config", "git~1/x", ".g\u200cit/config", "AGENTS.md"} {
		write(t, p.guest, f, "evil")
	}
	os.Symlink("/etc/passwd", filepath.Join(p.guest, "abs"))
	os.Symlink("../../x", filepath.Join(p.guest, "out"))
	os.Symlink(".git/hooks", filepath.Join(p.guest, "hooks"))
	os.Symlink("f/../../x", filepath.Join(p.guest, "tricky"))
	os.Symlink("f", filepath.Join(p.guest, "good"))
	syscall.Mkfifo(filepath.Join(p.guest, "fifo"), 0o600)
	os.Chmod(filepath.Join(p.guest, "f"), 0o755|os.ModeSetuid)
	write(t, p.guest, "f", "2")
	r := p.down(DownOptions{})
	p.wantHost(map[string]string{"f": "x:2", "good": "-> f", "sub": "dir", "a": "dir", "bare": "dir"})
	if info, _ := os.Stat(filepath.Join(p.host, "f")); info.Mode()&os.ModeSetuid != 0 {
		t.Error("setuid came along")
	}
	refused := map[string]bool{}
	for _, x := range r.Refused {
		refused[x.Path] = true
	}
	for _, want := range []string{"sub/.GIT", ".vscode", ".envrc", "a/.Claude", ".mcp.json", ".sandboxforge.toml", "bare/HEAD", "git~1", ".g\u200cit", "AGENTS.md", "abs", "out", "hooks", "tricky"} {
		if !refused[want] {
			t.Errorf("%s is not refused: %+v", want, r.Refused)
		}
	}
	p.req.Trust = hostpath.NewTrust([]string{".vscode", "AGENTS.md"})
	r = p.down(DownOptions{})
	if d := cmp.Diff([]string{".vscode/tasks.json", "AGENTS.md"}, r.Created); d != "" {
		t.Error(d)
	}
}

func TestHostSymlinksAreNeverWrittenThrough(t *testing.T) {
	p := newPair(t)
	outside := filepath.Join(filepath.Dir(p.host), "outside")
	os.Mkdir(outside, 0o755)
	write(t, outside, "f", "precious")
	write(t, p.host, "d/f", "1")
	p.up()
	os.RemoveAll(filepath.Join(p.host, "d"))
	os.Symlink(outside, filepath.Join(p.host, "d"))
	write(t, p.guest, "d/f", "evil")
	write(t, p.guest, "d/new", "evil")
	for _, o := range []OnConflict{Fail, KeepHost} {
		r := p.down(DownOptions{OnConflict: o})
		if len(r.Created)+len(r.Updated) != 0 {
			t.Errorf("%+v", r)
		}
	}
	// keep_guest replaces the link itself, never what it names.
	p.down(DownOptions{OnConflict: KeepGuest})
	if d := cmp.Diff(map[string]string{"f": "precious"}, readTree(outside)); d != "" {
		t.Error(d)
	}
}

func TestEmptiedGuestDoesNotEmptyTheHost(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "a", "1")
	write(t, p.host, "b/c", "1")
	p.up()
	os.RemoveAll(p.guest)
	if _, err := Down(context.Background(), p.req, DownOptions{}); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("missing: %v", err)
	}
	os.Mkdir(p.guest, 0o755)
	r := p.down(DownOptions{})
	if len(r.Deleted) != 0 || len(r.Conflicts) != 2 || r.Status != "conflicts" {
		t.Errorf("%+v", r)
	}
	if r = p.down(DownOptions{OnConflict: KeepGuest}); len(r.Deleted) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestInterruptedUpConverges(t *testing.T) {
	p := newPair(t)
	for i := range 50 {
		write(t, p.host, fmt.Sprintf("d%d/f%d", i%5, i), fmt.Sprint(i))
	}
	boom := errors.New("link cut")
	n := 0
	p.g.onPut = func(string) error {
		if n++; n == 20 {
			return boom
		}
		return nil
	}
	if _, err := Up(context.Background(), p.req); !errors.Is(err, boom) {
		t.Fatalf("%v", err)
	}
	p.g.onPut = nil
	// What was sent is ours: the host removes a file that arrived.
	arrived := sortedKeys(readTree(p.guest))
	gone := ""
	for _, a := range arrived {
		if strings.Contains(a, "/") {
			gone = a
		}
	}
	os.Remove(filepath.Join(p.host, gone))
	r := p.up()
	if len(r.Conflicts) != 0 || r.FilesDeleted != 1 {
		t.Errorf("%+v", r)
	}
	p.wantGuest(readTree(p.host))
	if r = p.up(); r.FilesSent != 0 || r.FilesUnchanged != 49 {
		t.Errorf("%+v", r)
	}
}

func TestCancelledUpConverges(t *testing.T) {
	p := newPair(t)
	for i := range 30 {
		write(t, p.host, fmt.Sprintf("f%02d", i), fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.g.onPut = func(name string) error {
		if name == "f10" {
			cancel()
			return ctx.Err()
		}
		return nil
	}
	if _, err := Up(ctx, p.req); !fault.Is(err, fault.Cancelled) {
		t.Fatalf("%v", err)
	}
	p.g.onPut = nil
	write(t, p.host, "f05", "edited meanwhile")
	if r := p.up(); len(r.Conflicts) != 0 {
		t.Errorf("%+v", r)
	}
	p.wantGuest(readTree(p.host))
}

func TestLargeFileThatChangesIsSentAgain(t *testing.T) {
	p := newPair(t)
	big := strings.Repeat("a", 3*smallFile)
	write(t, p.host, "before", "1")
	write(t, p.host, "big", big)
	write(t, p.host, "zlast", "1")
	changed := false
	p.g.onPut = func(name string) error {
		if name == "big" && !changed {
			changed = true
			f, _ := os.OpenFile(filepath.Join(p.host, "big"), os.O_WRONLY, 0)
			f.WriteAt([]byte("b"), 0)
			f.Close()
		}
		return nil
	}
	r := p.up()
	if r.Status != "ok" || r.FilesSent != 3 {
		t.Errorf("%+v", r)
	}
	p.wantGuest(map[string]string{"before": "1", "big": "b" + big[1:], "zlast": "1"})
}

func TestFileThatKeepsChangingIsReported(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "big", strings.Repeat("a", 3*smallFile))
	write(t, p.host, "zlast", "1")
	n := 0
	p.g.onPut = func(name string) error {
		if name == "big" {
			n++
			f, _ := os.OpenFile(filepath.Join(p.host, "big"), os.O_WRONLY, 0)
			f.WriteAt([]byte{byte(n)}, 0)
			f.Close()
		}
		return nil
	}
	r := p.up()
	if r.Status != "partial" || len(r.Skipped) != 1 || r.Skipped[0].Path != "big" {
		t.Errorf("%+v", r)
	}
	p.wantGuest(map[string]string{"zlast": "1"})
}

// What is in the guest already, in the same size, is hashed by each scan; that
// must not make a file that never keeps still look settled.
func TestKnownFileThatKeepsChangingIsReported(t *testing.T) {
	p := newPair(t)
	names := []string{"big0", "big1", "big2", "big3", "big4", "big5", "big6", "big7"}
	for _, name := range names {
		write(t, p.host, name, strings.Repeat("a", 2*smallFile))
	}
	write(t, p.host, "still", strings.Repeat("a", 2*smallFile))
	if r := p.up(); r.Status != "ok" {
		t.Fatalf("%+v", r)
	}
	before := readTree(p.guest)
	n := 0
	touch := func(name string) {
		n++
		f, err := os.OpenFile(filepath.Join(p.host, name), os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		f.WriteAt([]byte(fmt.Sprintf("%08d", n)), 0)
		f.Close()
	}
	for _, name := range append(names, "still") {
		touch(name)
	}
	p.g.onPut = func(name string) error {
		if n > 1000 {
			return errors.New("no end of rounds")
		}
		if name != "still" {
			touch(name)
		}
		return nil
	}
	r := p.up()
	if r.Status != "partial" || len(r.Skipped) != len(names) || len(r.Conflicts) != 0 {
		t.Errorf("%+v", r)
	}
	// Five files fail twice, the other three once, and then all is sent.
	if got := n - len(names) - 1; got != maxRounds+3 {
		t.Errorf("%d rounds", got)
	}
	before["still"] = readTree(p.host)["still"]
	p.wantGuest(before)
	// It keeps still again.
	p.g.onPut = nil
	if r := p.up(); r.Status != "ok" || r.FilesSent != len(names) {
		t.Errorf("%+v", r)
	}
	p.wantGuest(readTree(p.host))
}

func TestDownSurvivesAnInterruption(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "f", "1")
	p.up()
	for i := range 20 {
		write(t, p.guest, fmt.Sprintf("n%02d", i), strings.Repeat("x", i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.req.Progress = func(stage string, done, total int64) {
		if stage == "receive" && done > 40 {
			cancel()
		}
	}
	if _, err := Down(ctx, p.req, DownOptions{}); !fault.Is(err, fault.Cancelled) {
		t.Fatalf("%v", err)
	}
	for name := range readTree(p.host) {
		if strings.HasPrefix(name, hostpath.TempPrefix) {
			t.Errorf("%s was left", name)
		}
	}
	p.req.Progress = nil
	if r := p.down(DownOptions{}); r.Status != "ok" {
		t.Errorf("%+v", r)
	}
	p.wantHost(readTree(p.guest))
}

func TestHostChangedDuringDownIsAConflict(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "f", "1")
	p.up()
	write(t, p.guest, "f", "G")
	p.g.onTree = func() {}
	p.req.Guest = &interloper{p.g, func() { write(t, p.host, "f", "late") }}
	r := p.down(DownOptions{})
	if len(r.Conflicts) != 1 || r.Status != "conflicts" {
		t.Errorf("%+v", r)
	}
	p.wantHost(map[string]string{"f": "late"})
}

// TestKilledDownConverges goes on with the manifest that a killed process
// leaves: written before the transfer, not after.
func TestKilledDownConverges(t *testing.T) {
	p := newPair(t)
	write(t, p.host, "f", "1")
	p.up()
	for i := range 5 {
		write(t, p.guest, fmt.Sprintf("d/n%d", i), fmt.Sprint(i))
	}
	list, _ := filepath.Glob(filepath.Join(p.req.ManifestDir, "*.manifest"))
	var during []byte
	p.req.Progress = func(stage string, done, total int64) {
		if stage == "receive" && during == nil {
			during, _ = os.ReadFile(list[0])
		}
	}
	p.down(DownOptions{})
	p.req.Progress = nil
	os.WriteFile(list[0], during, 0o600)
	os.Remove(filepath.Join(p.host, "d/n4")) // as if it had not arrived yet
	r := p.down(DownOptions{})
	if d := cmp.Diff([]string{"d/n4"}, r.Created); d != "" || r.Status != "ok" {
		t.Errorf("%s %+v", d, r)
	}
	// What had arrived is known to be ours: the guest's removal follows.
	os.Remove(filepath.Join(p.guest, "d/n0"))
	if r = p.down(DownOptions{}); len(r.Deleted) != 1 {
		t.Errorf("%+v", r)
	}
	p.wantHost(readTree(p.guest))
}

func TestClashes(t *testing.T) {
	host := Tree{"Readme": {Kind: File}, "dir": {Kind: Dir}, "dir/x": {Kind: File}, "caf\u00e9": {Kind: File}}
	got := clashes([]string{"README", "Readme", "DIR/y", "dir/y", "new", "NEW", "cafe\u0301", "a/b"}, host)
	want := map[string]string{"README": "Readme", "DIR/y": "dir", "NEW": "new", "cafe\u0301": "caf\u00e9"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
