//go:build unix

package workspace

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// private is the part of a side's own in these tests: a last line that begins
// with "!".
func private(content []byte) ([]byte, bool, error) {
	if bytes.Contains(content, []byte("leak")) {
		return nil, false, errors.New("it still holds a secret")
	}
	i := bytes.IndexByte(content, '!')
	if i < 0 {
		return content, false, nil
	}
	return content[:i], true, nil
}

// TestPrivateParts: whatever either side does, what is private to it stays
// there, is no conflict, and hides no change of the rest.
func TestPrivateParts(t *testing.T) {
	type files = map[string]string
	for name, c := range map[string]struct {
		before      string // on the host at the first sync, "-" for no such file
		host, guest string // what each writes afterwards; "" leaves it, "-" removes it
		down        bool
		wantHost    string // "-" for no such file
		wantGuest   string
		conflicts   int
	}{
		"injected, up":                                       {before: "A=1\n", guest: "A=1\n!x", wantHost: "A=1\n", wantGuest: "A=1\n!x"},
		"injected, down":                                     {before: "A=1\n", guest: "A=1\n!x", down: true, wantHost: "A=1\n", wantGuest: "A=1\n!x"},
		"only private, up":                                   {before: "-", guest: "!x", wantHost: "-", wantGuest: "!x"},
		"only private, down":                                 {before: "-", guest: "!x", down: true, wantHost: "-", wantGuest: "!x"},
		"only private, the host makes it, up":                {before: "-", guest: "!x", host: "B=2\n", wantHost: "B=2\n", wantGuest: "B=2\n"},
		"only private, the host makes it":                    {before: "-", guest: "!x", host: "B=2\n", down: true, wantHost: "B=2\n", wantGuest: "!x"},
		"an empty file, down":                                {before: "", guest: "!x", down: true, wantHost: "", wantGuest: "!x"},
		"an empty file, up":                                  {before: "", guest: "!x", wantHost: "", wantGuest: "!x"},
		"the host changes it, up":                            {before: "A=1\n", guest: "A=1\n!x", host: "A=2\n", wantHost: "A=2\n", wantGuest: "A=2\n"},
		"the host changes it, down":                          {before: "A=1\n", guest: "A=1\n!x", host: "A=2\n", down: true, wantHost: "A=2\n", wantGuest: "A=1\n!x"},
		"the guest changes the rest, down":                   {before: "A=1\n", guest: "A=3\n!x", down: true, wantHost: "A=3\n", wantGuest: "A=3\n!x"},
		"the guest changes the rest, up":                     {before: "A=1\n", guest: "A=3\n!x", wantHost: "A=1\n", wantGuest: "A=3\n!x"},
		"both change the rest, down":                         {before: "A=1\n", guest: "A=3\n!x", host: "A=2\n", down: true, wantHost: "A=2\n", wantGuest: "A=3\n!x", conflicts: 1},
		"both change the rest, up":                           {before: "A=1\n", guest: "A=3\n!x", host: "A=2\n", wantHost: "A=2\n", wantGuest: "A=3\n!x", conflicts: 1},
		"the host removes it, up":                            {before: "A=1\n", guest: "A=1\n!x", host: "-", wantHost: "-", wantGuest: "-"},
		"the guest removes it, up":                           {before: "A=1\n", guest: "-", wantHost: "A=1\n", wantGuest: "A=1\n"},
		"private on both, up":                                {before: "A=1\n", guest: "A=1\n!x", host: "A=1\n!y", wantHost: "A=1\n!y", wantGuest: "A=1\n!x"},
		"private on both, down":                              {before: "A=1\n", guest: "A=1\n!x", host: "A=1\n!y", down: true, wantHost: "A=1\n!y", wantGuest: "A=1\n!x"},
		"private on both, changed, up":                       {before: "A=1\n", guest: "A=1\n!x", host: "A=2\n!y", wantHost: "A=2\n!y", wantGuest: "A=2\n"},
		"private on both, changed, down":                     {before: "A=1\n", guest: "A=3\n!x", host: "A=1\n!y", down: true, wantHost: "A=3\n", wantGuest: "A=3\n!x"},
		"private on both and nothing else":                   {before: "-", guest: "!x", host: "!y", wantHost: "!y", wantGuest: "!x"},
		"only private on the host, up":                       {before: "-", host: "!y", wantHost: "!y", wantGuest: "-"},
		"only private on the host, the guest makes it, down": {before: "-", host: "!y", guest: "C=1\n", down: true, wantHost: "C=1\n", wantGuest: "C=1\n"},
		"a secret outside its part, down":                    {before: "A=1\n", guest: "A=leak\n", down: true, wantHost: "A=1\n", wantGuest: "A=leak\n"},
	} {
		for _, at := range []string{".env", "config/db/.env"} {
			t.Run(name+" "+at, func(t *testing.T) {
				p := newPair(t)
				p.req.Strip = map[string]func([]byte) ([]byte, bool, error){at: private}
				write(t, p.host, "other", "1")
				if c.before != "-" {
					write(t, p.host, at, c.before)
				}
				p.up()
				for dir, text := range (files{p.host: c.host, p.guest: c.guest}) {
					switch text {
					case "":
					case "-":
						if err := os.Remove(filepath.Join(dir, at)); err != nil {
							t.Fatal(err)
						}
					default:
						write(t, dir, at, text)
					}
				}
				check := func(round string) {
					t.Helper()
					for dir, want := range (files{p.host: c.wantHost, p.guest: c.wantGuest}) {
						got, err := os.ReadFile(filepath.Join(dir, at))
						if want == "-" {
							if err == nil {
								t.Errorf("%s: %s is there: %q", round, dir, got)
							}
							if _, err := os.Stat(filepath.Dir(filepath.Join(dir, at))); err == nil && strings.Contains(at, "/") && c.before == "-" {
								t.Errorf("%s: its directory is on the other side", round)
							}
						} else if err != nil || string(got) != want {
							t.Errorf("%s: %s has %q, %v; want %q", round, dir, got, err, want)
						}
					}
				}
				for _, round := range []string{"first", "second"} {
					var found int
					if c.down {
						found = len(p.down(DownOptions{}).Conflicts)
					} else {
						found = len(p.up().Conflicts)
					}
					check(round)
					if found != c.conflicts {
						t.Errorf("%s: %d conflicts", round, found)
					}
				}
			})
		}
	}
}
