package envfile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var vars = []Var{{"DB_HOST", "db"}, {"DB_PASSWORD", "AbC123"}}

func TestInject(t *testing.T) {
	block := "DB_HOST=db\nDB_PASSWORD=AbC123\n" + end
	for name, c := range map[string]struct{ in, want string }{
		"no file":              {"", begin + block},
		"other lines stay":     {"A=1\n# DB_HOST=no\n", "A=1\n# DB_HOST=no\n" + begin + block},
		"no line end":          {"A=1", "A=1\n" + joined + block},
		"ours are replaced":    {"DB_HOST=x\nB=2\n export DB_PASSWORD = y\n", replaced + "DB_HOST=x\nB=2\n" + replaced + " export DB_PASSWORD = y\n" + begin + block},
		"a quote that goes on": {"DB_HOST=\"x\ny\"\n", "DB_HOST=\"x\ny\"\n" + begin + block},
		"a closed quote":       {"DB_HOST=\"x\"\n", replaced + "DB_HOST=\"x\"\n" + begin + block},
		"an old block":         {"A=1\n" + begin + "DB_HOST=old\n" + end, "A=1\n" + begin + block},
		"lines after a block":  {"A=1\n" + begin + "X=old\n" + end + "C=3\n", "A=1\nC=3\n" + begin + block},
		"a longer name":        {"DB_HOSTS=x\n", "DB_HOSTS=x\n" + begin + block},
	} {
		got, err := Inject([]byte(c.in), vars)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
		if again, err := Inject(got, vars); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: a second time: %v\n%s", name, err, again)
		}
	}
	if got, err := Inject([]byte("A=1"), nil); err != nil || string(got) != "A=1" {
		t.Errorf("no variables: %q, %v", got, err)
	}
}

func TestDamagedBlocksAreLeftAlone(t *testing.T) {
	for _, in := range []string{begin + "A=1\n", "x" + begin + end, end, "A=1\n" + strings.TrimSuffix(begin, "\n")} {
		if got, found := Strip([]byte(in)); found || string(got) != in {
			t.Errorf("%q: %v %q", in, found, got)
		}
	}
}

// TestStripOfHostileText: a file that nobody injected into may have these lines
// all the same, in any arrangement, and what is not between them stays.
func TestStripOfHostileText(t *testing.T) {
	for text, want := range map[string]string{
		joined + end:           "",
		begin + end:            "",
		joined + end + "A=1\n": "A=1\n",
		end + begin:            end + begin,
		"A=1\n" + begin + "X=1\nB=2\n" + begin + "X=2\n" + end: "A=1\n" + begin + "X=1\nB=2\n",
		begin + "X=1\n" + end + begin + "Y=1\n":                begin + "Y=1\n",
	} {
		if got, _ := Strip([]byte(text)); string(got) != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	// A block that lost its end costs nobody a line, however often it is mended.
	file := []byte("A=1\n" + begin + "DB_HOST=old\nB=2\n")
	for range 3 {
		var err error
		if file, err = Inject(file, []Var{{"DB_HOST", "new"}}); err != nil {
			t.Fatal(err)
		}
		file, _ = Strip(file)
		if !strings.Contains(string(file), "\nB=2\n") {
			t.Fatalf("B is gone: %q", file)
		}
	}
}

// FuzzStrip: any bytes.
func FuzzStrip(f *testing.F) {
	for _, s := range []string{joined + end, begin + begin + end + end, "A" + joined, "\n" + end} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, found := Strip(in)
		if len(out) > len(in) || !found && string(out) != string(in) {
			t.Errorf("%q: %q, %v", in, out, found)
		}
	})
}

func FuzzStripUndoesInject(f *testing.F) {
	for _, s := range []string{"", "A=1", "DB_HOST=1\r\nx", "\n\n", "export DB_HOST='a'\n", replaced + "DB_HOST=1\n", begin, "\x00\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if _, found := Strip(in); found {
			return
		}
		out, err := Inject(in, vars)
		if err != nil {
			t.Fatal(err)
		}
		back, found := Strip(out)
		if bytes.Contains(in, []byte(strings.TrimSuffix(begin, "\n"))) || bytes.Contains(in, []byte("(no line end before)")) {
			return // half a block of its own
		}
		if !found || !bytes.Equal(back, in) {
			t.Fatalf("%q became %q and then %q", in, out, back)
		}
	})
}

func TestCheck(t *testing.T) {
	for _, v := range []string{"", "a", "redis://lima-redis-sandbox:6379/0", "A1+/=@%,._-"} {
		if err := Check("K", v); err != nil {
			t.Errorf("%q: %v", v, err)
		}
	}
	for _, v := range []string{"a b", `a"b`, "a'b", "a$b", "a`b", `a\b`, "a\nb", "a\tb", "a#b", "é", "a;b", "a&b", "~", "a|b", "a<b", "a>b", "a(b", "a)b"} {
		err := Check("SECRET_KEY", v)
		var ve *ValueError
		if !errors.As(err, &ve) || ve.Key != "SECRET_KEY" || strings.Contains(err.Error(), v) && len(v) > 1 {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// TestShellReadsWhatPasses holds every character that passes against the
// shells of this machine; the guest's, Docker and Compose are asked in the
// tests with real VMs.
func TestShellReadsWhatPasses(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	var all []Var
	var script strings.Builder
	script.WriteString(". ./.env\n")
	for i, v := range Samples() {
		k := "V" + string(rune('A'+i/26)) + string(rune('A'+i%26))
		all = append(all, Var{k, v})
		script.WriteString("printf '%s\\n' \"$" + k + "\"\n")
	}
	dir := t.TempDir()
	text, err := Inject([]byte("VAA=old\n"), all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".env"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sh, "-c", script.String())
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	for i, v := range all {
		if i >= len(got) || got[i] != v.Value {
			t.Errorf("%q was read as %q", v.Value, got[min(i, len(got)-1)])
		}
	}
}
