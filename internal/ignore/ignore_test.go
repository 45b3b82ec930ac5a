package ignore

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		patterns string
		path     string // a trailing slash makes a directory
		want     bool
	}{
		{"", "a", false},
		{".venv", ".venv/", true},
		{".venv", ".venv/lib/x.py", true},
		{".venv", "sub/.venv/x", true},
		{".venv", ".venv2", false},
		{"/.git", ".git/config", true},
		{"/.git", "sub/.git/config", false},
		{"*.log", "a/b.log", true},
		{"*.log|!keep.log", "a/keep.log", false},
		{"*.log|!keep.log", "x.log/keep.log", true},
		{"build/", "build", false},
		{"build/", "build/", true},
		{"build/", "a/build/x", true},
		{"/a/*|!/a/b/", "a/b/c", false},
		{"/a/*|!/a/b/", "a/c/d", true},
		{"a/**", "a/", false},
		{"a/**", "a/b/c", true},
		{"a/**/z", "a/z", true},
		{"a/**/z", "a/b/c/z", true},
		{"**/z", "z", true},
		{"a/b", "x/a/b", false},
		{`\#x`, "#x", true},
		{"#x", "#x", false},
		{`\!x`, "!x", true},
		{"!!x", "!x", false},
		{"x  ", "x", true},
		{`x\ `, "x ", true},
		{"[a-c]x", "bx", true},
		{"[!a-c]x", "bx", false},
		{"[[:digit:]]", "7", true},
		{"x[", "x[", false},
		{"?", "é", false},
		{"*.d|!/a.d/", "a.d/x.d/f", true},
		{"*.d|!/a.d/", "a.d/f", false},
	} {
		m := New(strings.Split(c.patterns, "|"))
		isDir := strings.HasSuffix(c.path, "/")
		if got := m.Match(strings.TrimSuffix(c.path, "/"), isDir); got != c.want {
			t.Errorf("%q matches %q: %v, want %v", c.patterns, c.path, got, c.want)
		}
	}
}

var strayStars = regexp.MustCompile(`[^/*]\*\*|\*\*[^/*]`)

// TestAgainstGit builds a tree, lets git list what it does not ignore, and
// compares, for written and for random lists, in the root and in nested files.
func TestAgainstGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	run := func(args ...string) []byte {
		cmd := exec.Command(git, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return out
	}
	run("init", "-q")
	var files []string
	for _, f := range []string{"a", "b.log", "keep.log", "#x", "!x", "x ", `y\`, "a.d/f", "a.d/x.d/f", "d/a", "d/b", "d/d/a", "d/d/b.log", "d/keep.log", "e/d/a",
		"e/d/d/z", "build/x", "e/build/y", "e/f/build/z", "a-b", "a]b", "[ab]", "é", "d/e/f/g/h", "A", "abc", "x*y", "xzy", "b/a/b", "b/b/b", "z/ b", "0", "d-7"} {
		files = append(files, f)
		os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755)
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(files)
	check := func(root, nested []string) {
		os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(strings.Join(root, "\n")), 0o644)
		os.WriteFile(filepath.Join(dir, "d", ".gitignore"), []byte(strings.Join(nested, "\r\n")), 0o644)
		var want []string
		for f := range bytes.SplitSeq(run("ls-files", "-o", "-z", "--exclude-standard"), []byte{0}) {
			if len(f) > 0 && filepath.Base(string(f)) != ".gitignore" {
				want = append(want, string(f))
			}
		}
		slices.Sort(want)
		m := New(append(Lines([]byte(strings.Join(root, "\n"))), Scope("d", Lines([]byte(strings.Join(nested, "\r\n"))))...))
		var got []string
		for _, f := range files {
			if !m.Match(f, false) {
				got = append(got, f)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("root %q, nested %q: what is kept (-git +ours):\n%s", root, nested, d)
		}
	}
	for _, list := range []string{"*.log|!keep.log", "d/|!d/a", "d/*|!d/d", "/a", "**/a", "d/**", "d/**/a", "*.d|!/a.d/", "a[", "a[]]b", "[[]ab]", `\#x|\!x`, `x\ `,
		"x ", `y\\`, `y\`, "é", "?", "??", "**", "/**", "**/", "*/|!d/", "/*|!/d/|/d/*|!/d/e/", "d//a", "//a", "/", "!", "!a", "e/**/z", "**/d/**", "a**", "**b", "d**a", "x\\*y", "[!a]", "[^a]",
		"[a-]*", "d/e/f", "e/*/build", "build", "/build", "build/x", "e/build/", "A", "[[:upper:]]", "[[:nope:]]", "z/\\ b", "d/[de]/a", "#|a", "*|!*/|!*.log"} {
		check(strings.Split(list, "|"), nil)
		check(nil, strings.Split(list, "|"))
	}
	pieces := []string{"a", "b", "d", "e", "*", "**", "?", "/", "/", ".log", "x", "[ab]", "[!a]", "build", "f", `\`, "!", " ", "keep"}
	random := func(r *rand.Rand) []string {
		var list []string
		for range r.IntN(4) {
			p := ""
			if r.IntN(3) == 0 {
				p = "!"
			}
			for range 1 + r.IntN(5) {
				p += pieces[r.IntN(len(pieces))]
			}
			// What two stars next to other characters mean depends, in some
			// versions of git, on where the strings lie in memory.
			if !strayStars.MatchString(strings.TrimPrefix(p, "!")) {
				list = append(list, p)
			}
		}
		return list
	}
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range rounds {
		check(random(r), random(r))
		if t.Failed() {
			return
		}
	}
}

func TestMatchTakesTheSameTimeForHostilePatterns(t *testing.T) {
	m := New([]string{strings.Repeat("a*", 500) + "b", strings.Repeat("**/", 500) + "b", strings.Repeat("[", 4000)})
	m.Match(strings.Repeat("a", 255), false)
	m.Match(strings.Repeat("a/", 1000)+"c", false)
}

func FuzzMatch(f *testing.F) {
	f.Add("*.log\n!a/b", "a/b.log")
	f.Add("[a-\\]b]\n**", "x")
	f.Fuzz(func(t *testing.T, patterns, path string) {
		if !fs.ValidPath(path) || len(path) > 300 || len(patterns) > 1000 {
			return
		}
		list := Lines([]byte(patterns))
		m := New(list)
		if m.Match(path, true) && !New(append(slices.Clone(list), "*")).Match(path, true) {
			t.Error("a further exclusion brought something back")
		}
		scoped := New(Scope("s", list))
		if got, want := scoped.Match("s/"+path, false), m.Match(path, false); got != want {
			t.Errorf("scoped: %v, plain: %v", got, want)
		}
		if scoped.Match("t/"+path, false) {
			t.Error("a scoped pattern matched outside of its directory")
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	m := New([]string{"/.git", ".venv", ".pytest_cache", ".uv-cache", "__pycache__", "*.pyc", "/dist/", "docs/**/build"})
	paths := make([]string, 1000)
	for i := range paths {
		paths[i] = fmt.Sprintf("src/pkg%d/sub/file%d.go", i%50, i)
	}
	for b.Loop() {
		for _, p := range paths {
			m.MatchEntry(p, false)
		}
	}
}
