package buildcache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/ignore"
)

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// tree makes entries of "path": "content"; a path that ends in / is a directory.
func tree(files map[string]string) []Entry {
	var list []Entry
	dirs := map[string]bool{}
	for p, content := range files {
		if d, ok := strings.CutSuffix(p, "/"); ok {
			dirs[d] = true
			p = d
		} else {
			list = append(list, Entry{Path: p, Kind: File, Mode: 0o644, SHA256: sum(content)})
		}
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for d := range dirs {
		list = append(list, Entry{Path: d, Kind: Dir, Mode: 0o755})
	}
	return list
}

func kept(t *testing.T, ignoreFile string, files map[string]string) []string {
	t.Helper()
	ign, err := ParseIgnore([]byte(ignoreFile))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := ign.filter(t.Context(), tree(files))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Path)
	}
	return names
}

func TestIgnoreLikeDocker(t *testing.T) {
	files := map[string]string{"a": "", "b.log": "", "d/a": "", "d/b.log": "", "d/e/keep": "", "node_modules/x/y": "", "d/node_modules/z": "", "empty/": ""}
	for _, c := range []struct{ ignore, want string }{
		{"", "a b.log d d/a d/b.log d/e d/e/keep d/node_modules d/node_modules/z empty node_modules node_modules/x node_modules/x/y"},
		{"*.log", "a d d/a d/b.log d/e d/e/keep d/node_modules d/node_modules/z empty node_modules node_modules/x node_modules/x/y"},
		{"**/*.log\nnode_modules", "a d d/a d/e d/e/keep d/node_modules d/node_modules/z empty"},
		{"**/node_modules\n# d\n\nd/e/", "a b.log d d/a d/b.log empty"},
		{"d\n!d/e/keep", "a b.log d d/e d/e/keep empty node_modules node_modules/x node_modules/x/y"},
		{"*\n!a", "a"},
		{"/a\n./b.log\nempty\n node_modules ", "d d/a d/b.log d/e d/e/keep d/node_modules d/node_modules/z"},
	} {
		if got := strings.Join(kept(t, c.ignore, files), " "); got != c.want {
			t.Errorf("%q keeps\n%s, want\n%s", c.ignore, got, c.want)
		}
	}
	if _, err := ParseIgnore([]byte("a[")); err == nil {
		t.Error("a pattern that Docker refuses is accepted")
	}
}

// TestCertainNeverExcludesMore walks random trees with what is certain left
// out, and the hash stays the same.
func TestCertainNeverExcludesMore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "b", ".git", "x.log", "node_modules"}
	patterns := []string{"a", "/b", "**/x.log", "a/b", "**/node_modules", "*.log", "!a/b", "**/a/b", "a/", ".git", "..", "b/**"}
	for range 2000 {
		files := map[string]string{}
		for range r.IntN(12) {
			var p []string
			for range 1 + r.IntN(3) {
				p = append(p, parts[r.IntN(len(parts))])
			}
			files[strings.Join(p, "/")+"/f"] = "x"
		}
		var text []string
		for range r.IntN(4) {
			text = append(text, patterns[r.IntN(len(patterns))])
		}
		ign, err := ParseIgnore([]byte(strings.Join(text, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		whole := tree(files)
		m := ignore.New(ign.Certain())
		var pruned []Entry
		for _, e := range whole {
			if !m.Match(e.Path, e.Kind == Dir) {
				pruned = append(pruned, e)
			}
		}
		a, err1 := Scan(t.Context(), ign, whole, nil)
		b, err2 := Scan(t.Context(), ign, pruned, nil)
		if err1 != nil || err2 != nil || a.Hash != b.Hash {
			t.Fatalf("%q on %v: certain %q excludes more", text, files, ign.Certain())
		}
	}
}

func scan(t testing.TB, ignoreFile string, entries []Entry, globs ...string) Context {
	t.Helper()
	ign, err := ParseIgnore([]byte(ignoreFile))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Scan(t.Context(), ign, entries, globs)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// FuzzOneByte changes one byte of one file: the hash changes exactly if
// .dockerignore lets the file through.
func FuzzOneByte(f *testing.F) {
	f.Add("*.log", "a", "b/c.log", uint8(0), uint8(1))
	f.Add("b\n!b/c.log", "a", "b/c.log", uint8(1), uint8(7))
	f.Fuzz(func(t *testing.T, ignoreFile, p1, p2 string, which, bit uint8) {
		ign, err := ParseIgnore([]byte(ignoreFile))
		if err != nil {
			return
		}
		clean := func(p string) bool {
			return p != "" && p != "." && p[0] != '/' && path.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../") && !strings.ContainsAny(p, "\x00\\")
		}
		if !clean(p1) || !clean(p2) || p1 == p2 || strings.HasPrefix(p1, p2+"/") || strings.HasPrefix(p2, p1+"/") {
			return
		}
		content := map[string]string{p1: "one", p2: "two"}
		before, err := Scan(t.Context(), ign, tree(content), nil)
		if err != nil {
			return
		}
		changed := []string{p1, p2}[which%2]
		b := []byte(content[changed])
		b[int(bit)%3] ^= 1 << (bit % 8)
		content[changed] = string(b)
		after, err := Scan(t.Context(), ign, tree(content), nil)
		if err != nil {
			t.Fatal(err)
		}
		excluded, err := ign.match.MatchesOrParentMatches(changed)
		if err != nil {
			t.Fatal(err)
		}
		if (before.Hash == after.Hash) != excluded {
			t.Errorf(".dockerignore %q excludes %q: %v, but the hash changed: %v", ignoreFile, changed, excluded, before.Hash != after.Hash)
		}
	})
}

func TestWhatTheContentHashCovers(t *testing.T) {
	base := []Entry{{Path: "d", Kind: Dir, Mode: 0o755}, {Path: "d/f", Kind: File, Mode: 0o644, SHA256: sum("x")}, {Path: "l", Kind: Link, Mode: 0o777, Target: "d/f"}}
	seen := map[string]string{scan(t, "", base).Hash: "the tree itself"}
	for name, change := range map[string]func(e []Entry) []Entry{
		"content":       func(e []Entry) []Entry { e[1].SHA256 = sum("y"); return e },
		"mode":          func(e []Entry) []Entry { e[1].Mode = 0o755; return e },
		"directory":     func(e []Entry) []Entry { e[0].Mode = 0o700; return e },
		"link":          func(e []Entry) []Entry { e[2].Target = "d/g"; return e },
		"name":          func(e []Entry) []Entry { e[1].Path = "d/g"; return e },
		"type":          func(e []Entry) []Entry { e[2].Kind = Other; return e },
		"one more":      func(e []Entry) []Entry { return append(e, Entry{Path: "n", Kind: Dir, Mode: 0o755}) },
		"one less":      func(e []Entry) []Entry { return e[:2] },
		"name and hash": func(e []Entry) []Entry { e[1].Path, e[1].SHA256 = "d/f"+e[1].SHA256[:1], e[1].SHA256[1:]; return e },
	} {
		h := scan(t, "", change(slices.Clone(base))).Hash
		if other, ok := seen[h]; ok {
			t.Errorf("another %s hashes like %s", name, other)
		}
		seen[h] = name
	}
	same := slices.Clone(base)
	slices.Reverse(same)
	same[0].Mode = 0o755 // of the link
	if scan(t, "", same).Hash != scan(t, "", base).Hash {
		t.Error("the order of a walk, or a link's mode, makes another hash")
	}
	bad := slices.Clone(base)
	bad[1].Error = "permission denied"
	if c := scan(t, "", bad); len(c.Unreadable) != 1 {
		t.Errorf("unreadable: %v", c.Unreadable)
	}
	if c := scan(t, "d", bad); len(c.Unreadable) != 0 {
		t.Errorf("what is excluded need not be readable: %v", c.Unreadable)
	}
}

func TestDependencies(t *testing.T) {
	files := map[string]string{"uv.lock": "1", "src/main.py": "2", "web/package-lock.json": "3", "web/x/package-lock.json": "4"}
	hash := func(globs ...string) string { return scan(t, "", tree(files), globs...).Dependencies }
	if hash("poetry.lock", "*.json") != "" {
		t.Error("files that are not there count")
	}
	one, deep := hash("uv.lock"), hash("uv.lock", "**/package-lock.json")
	if one == "" || one == deep || hash("web/*.json", "uv.lock") == one || hash("web/*.json", "uv.lock") == deep {
		t.Error("globs do not tell the files apart")
	}
	files["src/main.py"] = "changed"
	if hash("uv.lock") != one {
		t.Error("another file changes the dependencies")
	}
	files["uv.lock"] = "changed"
	if hash("uv.lock") == one {
		t.Error("a changed lock file does not")
	}
	if scan(t, "uv.lock", tree(files), "uv.lock").Dependencies != "" {
		t.Error("a file that the build does not see is a dependency")
	}
}

func TestMatchGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "b/a", false}, {"**/a", "a", true}, {"**/a", "b/c/a", true}, {"b/**", "b/c/d", true}, {"b/**", "c", false},
		{"a/**/**/b", "a/b", true}, {"*.lock", "uv.lock", true}, {"*.lock", "d/uv.lock", false}, {"**", "a/b", true}, {"./a", "a", true},
	} {
		if got := matchGlob(c.pattern, c.name); got != c.want {
			t.Errorf("%s on %s: %v", c.pattern, c.name, got)
		}
	}
	long := strings.Repeat("**/a/", 12) + "b"
	if matchGlob(long, strings.Repeat("a/", 20)+"c") {
		t.Error("matched")
	}
	// What a workspace's configuration and a guest's paths may bring together.
	if matchGlob("**/a/**/a/**/b", strings.Repeat("a/", 50_000)+"c") {
		t.Error("matched")
	}
	if !matchGlob("**/a/**/a/**/b", strings.Repeat("a/", 50_000)+"b") {
		t.Error("did not match")
	}
}

// TestGitCommand holds the command against git itself.
func TestGitCommand(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("git is needed: apt-get install git")
	}
	dir := t.TempDir()
	sh := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(cmd.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CEILING_DIRECTORIES="+path.Dir(dir))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return string(out)
	}
	read := func() State {
		var s State
		s.ParseGit(sh(GitCommand))
		return s
	}
	if s := read(); s != (State{}) {
		t.Errorf("no repository: %+v", s)
	}
	sh("git init -q -b main .")
	if s := read(); s != (State{}) {
		t.Errorf("no commit: %+v", s)
	}
	commit := "git -c user.name=a -c user.email=a@b commit -q -m x"
	sh("echo 1 >a && git add a && " + commit)
	s := read()
	if s.Commit != strings.TrimSpace(sh("git rev-parse HEAD")) || s.Branch != "main" || !s.Clean() || len(s.Short()) != 8 {
		t.Errorf("clean: %+v", s)
	}
	index := sh("cksum .git/index; touch -d 2020-01-01 a")
	if s = read(); !s.Clean() || sh("cksum .git/index; true") != index {
		t.Error("looking changed the repository")
	}
	sh("echo 2 >new")
	if s = read(); s.Clean() || s.Dirty == nil {
		t.Errorf("an untracked file: %+v", s)
	}
	sh("git add new && " + commit + " && git checkout -q --detach")
	if s = read(); s.Branch != "" || !s.Clean() {
		t.Errorf("detached: %+v", s)
	}
}

func FuzzParseGit(f *testing.F) {
	f.Add(strings.Repeat("a", 40) + "\nmain\n0\n")
	f.Fuzz(func(t *testing.T, out string) {
		var s State
		s.ParseGit(out)
		if s.Commit != "" && !commitID.MatchString(s.Commit) || strings.ContainsAny(s.Branch, "\n\x00 ") {
			t.Errorf("%+v", s)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	files := map[string]string{}
	for i := range 10_000 {
		files[fmt.Sprintf("d%d/e%d/f%d", i%10, i%100, i)] = "x"
	}
	entries := tree(files)
	for b.Loop() {
		scan(b, "**/*.log\nd3", entries, "go.sum")
	}
}
