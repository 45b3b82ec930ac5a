package docker

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgvIsWordsWhereNoShellIsNeeded(t *testing.T) {
	for line, want := range map[string][]string{
		`echo hello`:            {"echo", "hello"},
		`  redis-server  -p 1 `: {"redis-server", "-p", "1"},
		`sh -c 'a && b | c'`:    {"sh", "-c", "a && b | c"},
		`printf "a b" c\ d ''`:  {"printf", "a b", "c d", ""},
		`say "it's \"so\""`:     {"say", `it's "so"`},
		`a=b`:                   nil,
		`A=b cmd`:               nil,
		`echo $HOME`:            nil,
		`echo "$HOME"`:          nil,
		"echo `id`":             nil,
		`a && b`:                nil,
		`a; b`:                  nil,
		`a | b`:                 nil,
		`a > f`:                 nil,
		`a &`:                   nil,
		`! a`:                   nil,
		`ls *.go`:               nil,
		`ls ~/x`:                nil,
		`exit 3`:                nil,
		`cd /x`:                 nil,
		"a\nb":                  nil,
		`echo 'unclosed`:        nil,
		`(a)`:                   nil,
		`if a; then b; fi`:      nil,
		`''`:                    nil,
	} {
		if want == nil {
			want = []string{"sh", "-c", line}
		}
		if d := cmp.Diff(want, Argv(line)); d != "" {
			t.Errorf("%q (-want +got):\n%s", line, d)
		}
	}
}

// FuzzArgv: what is taken for plain words is what a shell makes of the line.
func FuzzArgv(f *testing.F) {
	for _, s := range []string{"a b", `a "b c"`, `a 'b\c' d\ e`, "a\tb", `a ""`, "a # c", `a\
b`, "~x y", "a {b,c}", "a =b", "a !b", `"a\b"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words, ok := plainWords(line)
		if !ok || strings.ContainsRune(line, 0) {
			return
		}
		// The shell prints each word; the first one is a function's name there.
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+line).Output()
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if !slices.Equal(got, words) {
			t.Errorf("%q: %q, a shell says %q", line, words, got)
		}
	})
}
