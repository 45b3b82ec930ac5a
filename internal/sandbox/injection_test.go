package sandbox

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sandboxforge/internal/config"
	"sandboxforge/internal/envfile"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
	"sandboxforge/internal/workspace"
)

func TestInjectHost(t *testing.T) {
	vars := []envfile.Var{{Key: "PGHOST", Value: "db"}}
	block, err := envfile.Inject(nil, vars)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file   string
		before string // "-" for none
		vars   []envfile.Var
		harm   func(t *testing.T, root string)
		want   string // "-" for none
		code   fault.Code
	}{
		"a new file":             {".env", "-", vars, nil, string(block), ""},
		"a file below":           {"config/db/.env", "-", vars, nil, string(block), ""},
		"other lines stay":       {".env", "A=1\n", vars, nil, "A=1\n" + string(block), ""},
		"the block goes":         {".env", "A=1\n" + string(block), nil, nil, "A=1\n", ""},
		"the file goes with it":  {".env", string(block), nil, nil, "-", ""},
		"no file and no block":   {".env", "-", nil, nil, "-", ""},
		"a place that is obeyed": {".envrc", "-", vars, nil, "-", fault.WorkspaceEnvInjectionFailed},
		"in one":                 {".vscode/.env", "-", vars, nil, "-", fault.WorkspaceEnvInjectionFailed},
		"a symbolic link": {".env", "-", vars, func(t *testing.T, root string) {
			if err := os.Symlink("elsewhere", filepath.Join(root, ".env")); err != nil {
				t.Fatal(err)
			}
		}, "-", fault.WorkspaceEnvInjectionFailed},
		"through a symbolic link": {"d/.env", "-", vars, func(t *testing.T, root string) {
			if err := os.Symlink(t.TempDir(), filepath.Join(root, "d")); err != nil {
				t.Fatal(err)
			}
		}, "-", fault.WorkspaceEnvInjectionFailed},
		"a directory": {".env", "-", vars, func(t *testing.T, root string) {
			if err := os.Mkdir(filepath.Join(root, ".env"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "-", fault.WorkspaceEnvInjectionFailed},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(root, c.file)
			if c.before != "-" {
				if err := os.WriteFile(file, []byte(c.before), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			if c.harm != nil {
				c.harm(t, root)
			}
			s := &Service{settings: &config.Settings{}}
			err = s.injectHost(store.Lease{WorkspaceRoot: root}, config.Config{}, c.file, c.vars)
			if fault.CodeOf(err) != c.code && (err != nil || c.code != "") {
				t.Fatalf("%v", err)
			}
			got, err := os.ReadFile(file)
			if c.want == "-" {
				if err == nil {
					t.Errorf("it has %q", got)
				}
				return
			}
			if err != nil || string(got) != c.want {
				t.Errorf("%v: %q", err, got)
			}
			if info, err := os.Stat(file); err == nil && runtime.GOOS != "windows" {
				want := os.FileMode(0o600)
				if c.before != "-" {
					want = 0o640
				}
				if info.Mode().Perm() != want {
					t.Errorf("mode %o", info.Mode().Perm())
				}
			}
		})
	}
}

// TestStripInjected holds which files a sync strips, and that a generated
// password never passes.
func TestStripInjected(t *testing.T) {
	rec := connectionRecord{
		Env:   map[string]string{"PGPASSWORD": "generated-one", "DB_PASSWORD": "configured-one", "PGHOST": "db"},
		Files: map[string][]string{".env": {"PGPASSWORD"}, "api/.env": {"PGHOST"}}, Passwords: map[string]string{"lima-postgres-sandbox": "generated-one"},
	}
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	l := store.Lease{RemotePath: "/workspace", Connection: text}
	for remote, want := range map[string]string{"/workspace": ".env api/.env", "/workspace/api": ".env", "/workspace/other": "", "/": "workspace/.env workspace/api/.env", "/work": ""} {
		req := workspace.Request{Remote: remote}
		(&Service{}).stripInjected(l, &req)
		var got []string
		for _, p := range []string{".env", "api/.env", "workspace/.env", "workspace/api/.env"} {
			if req.Strip[p] != nil {
				got = append(got, p)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", remote, got, want)
		}
	}
	req := workspace.Request{Remote: "/workspace"}
	(&Service{}).stripInjected(l, &req)
	strip := req.Strip[".env"]
	whole, err := envfile.Inject([]byte("A=1\n"), rec.vars(".env"))
	if err != nil {
		t.Fatal(err)
	}
	if rest, found, err := strip(whole); err != nil || !found || string(rest) != "A=1\n" {
		t.Errorf("%q %v %v", rest, found, err)
	}
	if _, _, err := strip(append(whole, "COPY=generated-one\n"...)); err == nil || strings.Contains(err.Error(), "generated-one") {
		t.Errorf("a password outside the block: %v", err)
	}
	if _, _, err := strip([]byte("DB_PASSWORD=configured-one\n")); err != nil {
		t.Errorf("the user's own password: %v", err)
	}
	if c := connection(l); len(c) != 3 || c["PGHOST"] != "db" {
		t.Errorf("variables: %v", c)
	}
}

func TestCheckInjection(t *testing.T) {
	c := config.ServiceConfig{Enabled: true, Image: "mysql:8.0", Database: "app", Password: "a$b", ContainerNamePrefix: "x", InjectEnvTo: ".env"}
	for to, bad := range map[string]bool{".env": true, "": false} {
		c.InjectEnvTo = to
		list, err := services.Wanted(config.InfraConfig{MySQL: c})
		if err != nil {
			t.Fatal(err)
		}
		err = checkInjection(list[0])
		if (err != nil) != bad {
			t.Errorf("%q: %v", to, err)
		}
		if f := fault.From(err); bad && (f.Code != fault.WorkspaceEnvInjectionFailed || f.Details["key"] != "DB_PASSWORD" || strings.Contains(f.Error(), "a$b")) {
			t.Errorf("%+v", f)
		}
	}
}

func TestServiceTimeout(t *testing.T) {
	for v, ok := range map[float64]bool{0: false, -1: false, 0.1: true, 3600: true, 3601: false} {
		if err := checkServiceTimeout(&v); (err == nil) != ok {
			t.Errorf("%v: %v", v, err)
		}
	}
	if err := checkServiceTimeout(nil); err != nil {
		t.Error(err)
	}
}
