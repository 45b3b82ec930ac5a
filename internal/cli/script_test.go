package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sandboxforge": func() { os.Exit(Main(os.Args[1:], System())) },
	})
}

// TestScript runs the real program, without VMs, in an empty home.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", filepath.Join(e.WorkDir, "user"))
			e.Setenv("SANDBOXFORGE_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			// For scripts that show the program another PATH.
			self, err := exec.LookPath("sandboxforge")
			if err != nil {
				return err
			}
			e.Setenv("SELF", filepath.Dir(self))
			return os.MkdirAll(filepath.Join(e.WorkDir, "user"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"json":     cmdJSON,
			"exitcode": cmdExitCode,
		},
	})
}

// cmdJSON: json stdout|stderr KEY[=JSON]... checks that the output of the last
// command is one JSON object that has the keys (a.b for nested ones), and the
// values where they are given.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: json stdout|stderr KEY[=JSON]...")
	}
	text := ts.ReadFile(args[0])
	dec := json.NewDecoder(strings.NewReader(text))
	var v map[string]any
	if err := dec.Decode(&v); err != nil {
		ts.Fatalf("%s is no JSON object: %v\n%s", args[0], err, text)
	}
	if dec.More() {
		ts.Fatalf("%s holds more than one JSON value:\n%s", args[0], text)
	}
	for _, arg := range args[1:] {
		path, want, compare := strings.Cut(arg, "=")
		var at any = v
		for key := range strings.SplitSeq(path, ".") {
			m, ok := at.(map[string]any)
			if !ok {
				ts.Fatalf("%s: no object above %s:\n%s", path, key, text)
			}
			if at, ok = m[key]; !ok {
				ts.Fatalf("no key %s in:\n%s", path, text)
			}
		}
		if got, _ := json.Marshal(at); compare && string(got) != want {
			ts.Fatalf("%s is %s, want %s", path, got, want)
		}
	}
}

// cmdExitCode: exitcode CODE ARG... runs sandboxforge and checks how it ends.
func cmdExitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: exitcode CODE ARG...")
	}
	err := ts.Exec("sandboxforge", args[1:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("sandboxforge %s ended with %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}
