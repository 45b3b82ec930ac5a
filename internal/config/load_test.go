package config

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// world is a home and a workspace with the given files.
type world struct{ home, root string }

func newWorld(t *testing.T, files map[string]string) world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := world{filepath.Join(dir, "home"), filepath.Join(dir, "ws")}
	for _, d := range []string{w.home, w.root} {
		os.MkdirAll(d, 0o755)
	}
	for name, text := range files {
		p := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w world) load(overrides map[string]any) *Resolved {
	return Load(Input{UserHome: w.home, WorkspaceRoot: w.root, Overrides: overrides, GOOS: "linux", GOARCH: "amd64"})
}

func TestDefaultsAreGolden(t *testing.T) {
	got, err := json.MarshalIndent(newWorld(t, nil).load(nil).Tree, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		os.MkdirAll("testdata", 0o755)
		if err := os.WriteFile("testdata/defaults.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("defaults changed (-want +got):\n%s", d)
	}
}

// TestSchemaCoversTheModel: every field of Config is the target of exactly one
// key, and every key's default obeys its own rule.
func TestSchemaCoversTheModel(t *testing.T) {
	var c Config
	fields := map[uintptr]string{}
	var walk func(v reflect.Value, name string)
	walk = func(v reflect.Value, name string) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				walk(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
			return
		}
		fields[v.Addr().Pointer()] = name
	}
	walk(reflect.ValueOf(&c).Elem(), "")
	delete(fields, reflect.ValueOf(&c.Infra.Redis.Password).Pointer())
	delete(fields, reflect.ValueOf(&c.Infra.Redis.Database).Pointer())
	for _, k := range Schema() {
		p := reflect.ValueOf(k.target(&c)).Pointer()
		if _, ok := fields[p]; !ok {
			t.Errorf("%s: its field is taken by another key", k.Path)
		}
		delete(fields, p)
		if k.Doc == "" || k.Allowed == "" {
			t.Errorf("%s has no documentation", k.Path)
		}
		if k.Default != nil && k.check != nil {
			if why := k.check(k.Default); why != "" {
				t.Errorf("%s: the default is refused: %s", k.Path, why)
			}
		}
	}
	for _, name := range fields {
		t.Errorf("field %s has no key", name)
	}
}

// rules has, for every key, values that must be accepted and refused. Values
// are TOML.
var rules = map[string]struct{ good, bad []string }{
	"vm.cpus":              {[]string{"1", "4096"}, []string{"0", "-1", "1.0", "true", `"2"`, "4097", "nan", "99999999999"}},
	"vm.memory_gib":        {[]string{"1", "0.5", "1e3"}, []string{"0", "-1.0", "inf", "-inf", "nan", "true", `"2"`, "1e300"}},
	"vm.disk_gib":          {[]string{"1", "0.5"}, []string{"0", "-1.0", "inf", "nan", "false", "[]"}},
	"vm.arch":              {[]string{`"x86_64"`, `"arm64"`}, []string{`""`, "1", `"a b"`, `"-x"`}},
	"vm.vm_type":           {[]string{`"vz"`}, []string{`""`, "1", `"-x"`}},
	"vm.template":          {[]string{`"template:docker"`}, []string{`"-x"`, `"--tty"`, `""`, "1", `"a b"`}},
	"vm.allowed_templates": {[]string{`[]`, `["a","b"]`}, []string{`"a"`, `[1]`, `["-a"]`, `[["a"]]`}},
	"vm.image":             {[]string{`"minimal"`, `"a.b_c-1"`}, []string{`""`, `"../x"`, `"a/b"`, `"-a"`, "1"}},

	"docker.install_if_missing": {[]string{"true", "false"}, []string{"1", `"true"`, "0.0"}},

	"build.enable_buildkit":                              {[]string{"false"}, []string{"1"}},
	"build.min_free_gib":                                 {[]string{"0.1", "9"}, []string{"0", "true", "inf"}},
	"build.prebuilt.enabled":                             {[]string{"false"}, []string{`"no"`}},
	"build.prebuilt.validation":                          {[]string{`"strict"`, `"warn"`, `"disabled"`}, []string{`"Strict"`, `""`, "true"}},
	"build.prebuilt.staleness_check.check_git_commit":    {[]string{"false"}, []string{"0"}},
	"build.prebuilt.staleness_check.check_dependencies":  {[]string{"false"}, []string{"[]"}},
	"build.prebuilt.staleness_check.check_age_threshold": {[]string{`"24h"`, `"30m"`, `"7d"`, `"1d12h"`, "12", "1.5", `"0h"`, `"1.5h"`}, []string{`"-1h"`, "-1", "-0.5", `"1w"`, `""`, `"h"`, "true", "inf", "nan", `"inf"`, `"nan"`, `"5s"`, "1e300", `"1 h"`, `"0x10"`}},
	"build.prebuilt.staleness_check.on_stale":            {[]string{`"rebuild"`, `"warn"`, `"fail"`}, []string{`"build"`, "1"}},
	"build.image_caching.enabled":                        {[]string{"false"}, []string{"1"}},
	"build.image_caching.strategy":                       {[]string{`"content_hash"`, `"git_commit"`, `"smart"`}, []string{`"sha"`, "1"}},
	"build.image_caching.tag_format":                     {[]string{`"{image}:{content_hash}"`, `"{image}-cache:{git_short}"`}, []string{`"{image}:{nope}"`, `"{image}:{git_short"`, `"{image}: x"`, `""`, "1", `"-{image}:x"`}},
	"build.staleness_detection.check_git_commit":         {[]string{"false"}, []string{"1"}},
	"build.staleness_detection.check_git_dirty":          {[]string{"false"}, []string{"1"}},
	"build.staleness_detection.check_dockerfile":         {[]string{"false"}, []string{"1"}},
	"build.staleness_detection.check_dependencies":       {[]string{`["go.sum"]`, `["**/*.lock"]`, "[]"}, []string{`["/etc/passwd"]`, `["../x"]`, `["a/../../b"]`, `"go.sum"`, `["[a"]`, `[""]`, `[true]`, `["C:/x"]`}},
	"build.staleness_detection.max_age_threshold":        {[]string{`"24h"`, "0"}, []string{`"-24h"`, "nan"}},
	"build.staleness_detection.on_stale":                 {[]string{`"warn"`}, []string{`"warn_and_rebuild"`}},
	"build.staleness_detection.on_dirty_workspace":       {[]string{`"warn_and_rebuild"`, `"rebuild"`, `"warn"`, `"fail"`}, []string{`"build"`}},
	"build.staleness_detection.on_missing":               {[]string{`"build"`, `"warn"`, `"fail"`}, []string{`"rebuild"`}},

	"infra.ensure_network":                 {[]string{"false"}, []string{"1"}},
	"infra.bridge_to_compose_network":      {[]string{"false"}, []string{"1"}},
	"infra.include_services_by_default":    {[]string{"false"}, []string{"1"}},
	"infra.network_name":                   {[]string{`"my_net"`}, []string{`""`, `"-x"`, `"a b"`, "1"}},
	"infra.network_name_prefix":            {[]string{`"net"`}, []string{`""`, `"--x"`}},
	"infra.mysql.enabled":                  {[]string{"true", "false"}, []string{"1"}},
	"infra.mysql.image":                    {[]string{`"mysql:8.4"`, `"ghcr.io/a/b:1"`, `"localhost:5000/x@sha256:` + strings.Repeat("a", 64) + `"`}, []string{`""`, `"-x"`, `"MySQL"`, `"a b"`, `"a:"`, "1"}},
	"infra.mysql.root_password":            {[]string{`"s3cret"`}, []string{`""`, "1", `"a\nb"`}},
	"infra.mysql.database":                 {[]string{`"app_1"`}, []string{`""`, `"a b"`, `"a;b"`, "1", `"-x"`}},
	"infra.mysql.container_name_prefix":    {[]string{`"db"`}, []string{`"my_db"`, `""`, `"-a"`, `"a-"`, "1"}},
	"infra.mysql.extra_env":                {[]string{`{A="1"}`, "{}"}, []string{`{A=1}`, `{"A B"="1"}`, `[]`, `"A=1"`, `{A="\u0000"}`}},
	"infra.mysql.inject_env_to":            {[]string{`".env"`, `""`, `"cfg/db.env"`}, []string{`"/etc/env"`, `"../.env"`, `"a/../../b"`, `"C:/x"`, `"a\\b"`, `"dir/"`, `"~/x"`, "1", "false"}},
	"infra.redis.enabled":                  {[]string{"true"}, []string{`"yes"`}},
	"infra.redis.image":                    {[]string{`"redis:7"`}, []string{`":7"`}},
	"infra.redis.container_name_prefix":    {[]string{`"cache"`}, []string{`"my_cache"`}},
	"infra.redis.extra_env":                {[]string{`{A="1"}`}, []string{`{A=true}`}},
	"infra.redis.inject_env_to":            {[]string{`""`}, []string{`".."`}},
	"infra.postgres.enabled":               {[]string{"true"}, []string{`"yes"`}},
	"infra.postgres.image":                 {[]string{`"postgres:17"`}, []string{`":7"`}},
	"infra.postgres.password":              {[]string{`"s3cret"`}, []string{`""`, "1", `"a\nb"`}},
	"infra.postgres.database":              {[]string{`"app_1"`}, []string{`""`, `"a b"`, `"-x"`, `"` + strings.Repeat("x", 64) + `"`}},
	"infra.postgres.container_name_prefix": {[]string{`"pg"`}, []string{`"my_pg"`}},
	"infra.postgres.extra_env":             {[]string{`{A="1"}`}, []string{`{A=true}`}},
	"infra.postgres.inject_env_to":         {[]string{`""`}, []string{`".."`}},
	"infra.inject_env_on_host":             {[]string{"true"}, []string{"1"}},

	"sync.include_git":      {[]string{"true"}, []string{"1"}},
	"sync.exclude_patterns": {[]string{`["node_modules", "!keep"]`, "[]"}, []string{`"node_modules"`, `[""]`, `["a\nb"]`, `[1]`}},
	"sync.use_gitignore":    {[]string{"true"}, []string{"1"}},
	"sync.allow_refused":    {[]string{`[".vscode", "docs/AGENTS.md"]`}, []string{`["/x"]`, `["../x"]`, `""`}},
}

func TestEveryKeysRule(t *testing.T) {
	for _, k := range Schema() {
		r, ok := rules[k.Path]
		if !ok {
			t.Errorf("%s has no table of values", k.Path)
			continue
		}
		for _, v := range r.good {
			w := newWorld(t, map[string]string{"home/.config/sandboxforge-mcp/config.toml": k.Path + " = " + v + "\n"})
			if got := w.load(nil); !got.Valid() {
				t.Errorf("%s = %s is refused: %v", k.Path, v, got.Diagnostics)
			}
		}
		for _, v := range r.bad {
			w := newWorld(t, map[string]string{"home/.config/sandboxforge-mcp/config.toml": "\n  " + k.Path + " = " + v + "\n"})
			got := w.load(nil)
			if len(got.Diagnostics) != 1 {
				t.Errorf("%s = %s: diagnostics %v, want one", k.Path, v, got.Diagnostics)
				continue
			}
			d := got.Diagnostics[0]
			_, last := split(k.Path)
			want := Diagnostic{Severity: SeverityError, File: filepath.Join(w.home, ".config/sandboxforge-mcp/config.toml"), Line: 2,
				Column: 3 + len(k.Path) - len(last), Key: k.Path, Allowed: k.Allowed}
			d.Message = ""
			if diff := cmp.Diff(want, d); diff != "" {
				t.Errorf("%s = %s (-want +got):\n%s", k.Path, v, diff)
			}
			// A table with an error in it is still a table that is there.
			parent, _ := split(k.Path)
			base := newWorld(t, map[string]string{"home/.config/sandboxforge-mcp/config.toml": "[" + parent + "]\n"})
			if diff := cmp.Diff(base.load(nil).Tree, got.Tree); diff != "" {
				t.Errorf("%s = %s: a refused value changed the result: %s", k.Path, v, diff)
			}
		}
		for _, untrusted := range []bool{true, false} {
			w := newWorld(t, map[string]string{"ws/.sandboxforge.toml": k.Path + " = " + r.good[0] + "\n"})
			var over map[string]any
			if !untrusted {
				os.Remove(filepath.Join(w.root, ".sandboxforge.toml"))
				over = overrideOf(t, k.Path, r.good[0])
			}
			got := w.load(over)
			if got.Valid() == k.Operator {
				t.Errorf("%s in untrusted layer: valid %v; operator key %v: %v", k.Path, got.Valid(), k.Operator, got.Diagnostics)
			}
			if k.Operator && !strings.Contains(got.Diagnostics[0].Allowed, "sandboxforge-mcp") {
				t.Errorf("%s: the diagnostic does not say where to put it: %v", k.Path, got.Diagnostics)
			}
		}
	}
	if len(rules) != len(Schema()) {
		t.Errorf("%d tables of values for %d keys", len(rules), len(Schema()))
	}
}

// overrideOf makes the overrides that a JSON request would carry.
func overrideOf(t *testing.T, path, value string) map[string]any {
	t.Helper()
	doc, _, err := parseTOML([]byte(path + " = " + value))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(doc.values)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	json.Unmarshal(text, &m)
	return m
}

func TestLayers(t *testing.T) {
	w := newWorld(t, map[string]string{
		"home/.config/lima-mcp/config.toml":         "vm.cpus = 2\nvm.memory_gib = 3\nvm.allowed_templates = ['a','b']\n[infra.mysql.extra_env]\nA='1'\nB='1'\n",
		"home/.config/orbitforge-mcp/config.toml":   "vm.cpus = 3\n",
		"home/.config/sandboxforge-mcp/config.toml": "[vm]\ncpus = 4\n[sync]\nexclude_patterns=['x']\n",
		"ws/.lima-mcp.toml":                         "vm.cpus = 5\n",
		"ws/.orbitforge.toml":                       "vm = {cpus = 6, disk_gib = 20}\n",
		"ws/.sandboxforge.toml":                     "vm.cpus = 7\nvm.template='b'\n[infra.mysql.extra_env]\nB='2'\n[sync]\nexclude_patterns=['y','z']\n",
	})
	got := w.load(map[string]any{"vm": map[string]any{"cpus": json.Number("8")}})
	if !got.Valid() {
		t.Fatal(got.Err())
	}
	c := got.Config
	if c.VM.CPUs != 8 || c.VM.MemoryGiB != 3 || c.VM.DiskGiB != 20 || c.VM.Template != "b" {
		t.Errorf("vm = %+v", c.VM)
	}
	if d := cmp.Diff(map[string]string{"A": "1", "B": "2"}, c.Infra.MySQL.ExtraEnv); d != "" {
		t.Error("tables merge deeply:", d)
	}
	if d := cmp.Diff([]string{"y", "z"}, c.Sync.ExcludePatterns); d != "" {
		t.Error("lists replace:", d)
	}
	if d := cmp.Diff([]string{"/.git", "y", "z"}, c.Sync.Excludes()); d != "" {
		t.Error(d)
	}
	cfg := filepath.Join(w.home, ".config")
	want := []string{"defaults", cfg + "/lima-mcp/config.toml", cfg + "/orbitforge-mcp/config.toml", cfg + "/sandboxforge-mcp/config.toml",
		w.root + "/.lima-mcp.toml", w.root + "/.orbitforge.toml", w.root + "/.sandboxforge.toml", "request_overrides"}
	if d := cmp.Diff(want, got.Sources); d != "" {
		t.Error(d)
	}
	if len(got.Diagnostics) != 4 {
		t.Errorf("want one warning for each legacy name: %v", got.Diagnostics)
	}
	for _, d := range got.Diagnostics {
		if d.Severity != SeverityWarning || !strings.Contains(d.Message, "name it") && !strings.Contains(d.Message, "move it") {
			t.Errorf("%v", d)
		}
	}
}

func TestAllProblemsAtOnceWithTheirPlaces(t *testing.T) {
	w := newWorld(t, map[string]string{"ws/.sandboxforge.toml": `
[vm]
cpus = true
memroy_gib = 2
template = "evil"
[build.prebuilt]
staleness_check = 3
[inffra]
x = 1
[[docker]]
install_if_missing = true
[infra.mysql]
"root.password" = "x"
`})
	got := w.load(map[string]any{"vm.cpus": 2.0, "sync": "x", "vm": map[string]any{"cpus": 1.5, "disk_gib": math.Inf(1)}})
	var lines []string
	for _, d := range got.Diagnostics {
		lines = append(lines, strings.Replace(d.String(), w.root+"/", "", 1))
	}
	want := []string{
		".sandboxforge.toml:3:1: error: vm.cpus: found a boolean where an integer is expected (allowed: a whole number from 1 to 4096)",
		".sandboxforge.toml:4:1: error: vm.memroy_gib: unknown key; did you mean vm.memory_gib? (allowed: keys: allowed_templates, arch, cpus, disk_gib, image, memory_gib, template, vm_type)",
		`.sandboxforge.toml:5:1: error: vm.template: "evil" is not a template that the operator allows a workspace to choose (allowed: template:docker (vm.allowed_templates in the operator's file))`,
		".sandboxforge.toml:7:1: error: build.prebuilt.staleness_check: found an integer where a table is expected (allowed: a table with the keys check_age_threshold, check_dependencies, check_git_commit, on_stale)",
		".sandboxforge.toml:8:2: error: inffra: unknown key; did you mean infra? (allowed: keys: build, docker, infra, sync, vm)",
		".sandboxforge.toml:10:3: error: docker: found a list where a table is expected (allowed: a table with the keys install_if_missing)",
		`.sandboxforge.toml:13:1: error: infra.mysql."root.password": unknown key; did you mean infra.mysql.root_password? (allowed: keys: container_name_prefix, database, enabled, extra_env, image, inject_env_to, root_password)`,
		"request_overrides: error: sync: found a string where a table is expected (allowed: a table with the keys allow_refused, exclude_patterns, include_git, use_gitignore)",
		"request_overrides: error: vm.cpus: found a fraction where an integer is expected (allowed: a whole number from 1 to 4096)",
		"request_overrides: error: vm.disk_gib: inf and nan are not allowed (allowed: a number greater than 0)",
		`request_overrides: error: "vm.cpus": unknown key: overrides are nested tables, not dotted names (allowed: keys: build, docker, infra, sync, vm)`,
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	err := got.Err()
	if !fault.Is(err, fault.WorkspaceConfigInvalid) {
		t.Fatalf("%v", err)
	}
	if n := len(fault.From(err).Details["diagnostics"].([]Diagnostic)); n != len(want) {
		t.Errorf("the fault carries %d diagnostics", n)
	}
}

func TestSyntaxErrorsHaveAPlace(t *testing.T) {
	for text, want := range map[string]string{
		"[vm\ncpus=1":                       ":1:",
		"[vm]\ncpus = 1\ncpus= 2":           ":3:",
		"[vm]\nx = \xff":                    ":2:5: error: the file is not UTF-8",
		"a = " + strings.Repeat("[", 1<<19): ":1:",
	} {
		got := newWorld(t, map[string]string{"ws/.sandboxforge.toml": text}).load(nil)
		if len(got.Diagnostics) != 1 || !strings.Contains(got.Diagnostics[0].String(), want) {
			t.Errorf("%.30q: %.300v", text, got.Diagnostics)
		}
	}
}

func TestHostileWorkspaceFiles(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, w world, p string){
		"symlink": func(t *testing.T, w world, p string) {
			os.WriteFile(filepath.Join(w.home, "secret"), []byte("vm.cpus = 9\n"), 0o600)
			os.Symlink(filepath.Join(w.home, "secret"), p)
		},
		"symlink inside": func(t *testing.T, w world, p string) {
			os.WriteFile(filepath.Join(w.root, "real"), []byte("vm.cpus = 9\n"), 0o600)
			os.Symlink("real", p)
		},
		"fifo": func(t *testing.T, w world, p string) {
			if err := mkfifo(p); err != nil {
				t.Skip(err)
			}
		},
		"directory": func(t *testing.T, w world, p string) { os.Mkdir(p, 0o700) },
		"huge":      func(t *testing.T, w world, p string) { os.WriteFile(p, make([]byte, maxFile+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			prepare(t, w, filepath.Join(w.root, ".sandboxforge.toml"))
			done := async(func() *Resolved { return w.load(nil) })
			select {
			case got := <-done:
				if got.Valid() || got.Config.VM.CPUs != 1 || len(got.Diagnostics) != 1 {
					t.Errorf("valid %v, cpus %d, %v", got.Valid(), got.Config.VM.CPUs, got.Diagnostics)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the load hangs")
			}
		})
	}
}

func async(f func() *Resolved) <-chan *Resolved {
	c := make(chan *Resolved, 1)
	go func() { c <- f() }()
	return c
}

func TestServicesAreOnWhereTheirTableIs(t *testing.T) {
	for name, c := range map[string]struct {
		files        map[string]string
		over         map[string]any
		mysql, redis bool
	}{
		"nowhere":          {nil, nil, false, false},
		"workspace":        {map[string]string{"ws/.sandboxforge.toml": "[infra.mysql]\n"}, nil, true, false},
		"operator":         {map[string]string{"home/.config/lima-mcp/config.toml": "[infra.redis]\nimage='redis:6'\n"}, nil, false, true},
		"inline":           {map[string]string{"ws/.lima-mcp.toml": "infra = {redis = {}}"}, nil, false, true},
		"override":         {nil, map[string]any{"infra": map[string]any{"mysql": map[string]any{}}}, true, false},
		"explicit off":     {map[string]string{"home/.config/lima-mcp/config.toml": "[infra.mysql]\nenabled=false", "ws/.sandboxforge.toml": "[infra.mysql]\ndatabase='x'\n"}, nil, false, false},
		"other infra keys": {map[string]string{"ws/.sandboxforge.toml": "[infra]\nensure_network=false"}, nil, false, false},
	} {
		got := newWorld(t, c.files).load(c.over)
		if got.Config.Infra.MySQL.Enabled != c.mysql || got.Config.Infra.Redis.Enabled != c.redis {
			t.Errorf("%s: mysql %v, redis %v", name, got.Config.Infra.MySQL.Enabled, got.Config.Infra.Redis.Enabled)
		}
	}
}

func TestSecretsAreMaskedInWhatIsShown(t *testing.T) {
	w := newWorld(t, map[string]string{"ws/.sandboxforge.toml": `
[infra.mysql]
root_password = "hunter2-root"
[infra.mysql.extra_env]
API_TOKEN = "hunter2-token"
PLAIN = "visible"
URL = "mysql://root:hunter2-url@db/x"
[infra.redis]
extra_env = { REDIS_PASSWORD = "hunter2-redis" }
`, "home/.config/sandboxforge-mcp/config.toml": "infra.mysql.root_password = ['hunter2-list']\n"})
	got := w.load(map[string]any{"infra": map[string]any{"mysql": map[string]any{"root_password": "hunter2\x00bad"}}})
	text, _ := json.Marshal(map[string]any{"tree": got.Tree, "diagnostics": got.Diagnostics, "err": got.Err().Error()})
	if strings.Contains(string(text), "hunter2") {
		t.Errorf("a secret is shown: %s", text)
	}
	if !strings.Contains(string(text), "visible") {
		t.Errorf("what is no secret is masked: %s", text)
	}
	if got.Config.Infra.MySQL.Password != "hunter2-root" || got.Config.Infra.MySQL.ExtraEnv["API_TOKEN"] != "hunter2-token" {
		t.Error("the configuration itself lost its secrets")
	}
}

func TestKeysOfAnotherBackendAreHints(t *testing.T) {
	w := newWorld(t, map[string]string{"ws/.sandboxforge.toml": "[vm]\nvm_type='qemu'\ntemplate='template:docker'\nimage='minimal'\n"})
	in := Input{UserHome: w.home, WorkspaceRoot: w.root, Backend: "qemu"}
	got := Load(in)
	if !got.Valid() || len(got.Diagnostics) != 2 || got.Diagnostics[0].Line == 0 {
		t.Errorf("%v", got.Diagnostics)
	}
	in.Backend = "lima"
	if got = Load(in); !got.Valid() || len(got.Diagnostics) != 1 || got.Diagnostics[0].Key != "vm.image" {
		t.Errorf("%v", got.Diagnostics)
	}
}

func TestNullInOverridesMeansAbsent(t *testing.T) {
	w := newWorld(t, nil)
	got := w.load(map[string]any{"vm": map[string]any{"arch": nil}})
	if !got.Valid() || got.Config.VM.Arch != "" || got.Tree["vm"].(map[string]any)["arch"] != nil {
		t.Errorf("%v %q", got.Diagnostics, got.Config.VM.Arch)
	}
	if got = w.load(map[string]any{"vm": map[string]any{"cpus": nil}}); got.Valid() {
		t.Error("null for a key that has a default is not an error")
	}
}

func TestDiagnosticsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		b.WriteString(strings.Repeat("k", 1+i%50) + strings.Repeat("x", i/50) + " = 1\n")
	}
	got := newWorld(t, map[string]string{"ws/.sandboxforge.toml": b.String()}).load(nil)
	if got.Valid() || len(got.Diagnostics) != maxDiagnostics+1 {
		t.Errorf("%d diagnostics", len(got.Diagnostics))
	}
}

func FuzzLoad(f *testing.F) {
	for _, s := range []string{"", "[vm]\ncpus = 2\n", "vm.cpus = 1\nvm.cpus = 2", "vm = {cpus = 1}\n", "[[vm]]\n", "infra.mysql.extra_env.A = 'x'",
		"\"\\u0000\" = 1", "a.b.c.d.e.f.g.h.i.j = 1", "build.prebuilt.staleness_check.check_age_threshold = '1d'", "x = [[[{a=1}]]]", "vm.memory_gib = nan"} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, ".sandboxforge.toml"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		got := Load(Input{WorkspaceRoot: dir})
		if _, err := json.Marshal(got.Tree); err != nil {
			t.Fatal(err)
		}
		for _, d := range got.Diagnostics {
			if d.Message == "" || len(d.String()) > 4000 {
				t.Errorf("a useless diagnostic: %+v", d)
			}
		}
		if got.Valid() {
			if c := got.Config; c.VM.CPUs < 1 || c.VM.MemoryMiB() < 1 || c.VM.DiskBytes() < 1 || strings.HasPrefix(c.VM.Template, "-") || c.Infra.InjectEnvOnHost {
				t.Errorf("a rule was broken: %+v", c)
			}
		}
	})
}
