package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Names of the sources that are no files.
const (
	sourceDefaults  = "defaults"
	sourceOverrides = "request_overrides"
)

// operatorDirs and workspaceFiles are the layers, the strongest last. All but
// the last of each are legacy names.
var (
	operatorDirs   = []string{"lima-mcp", "orbitforge-mcp", "sandboxforge-mcp"}
	workspaceFiles = []string{".lima-mcp.toml", ".orbitforge.toml", ".sandboxforge.toml"}
)

// Input is what Load works on.
type Input struct {
	UserHome   string // for ConfigHome's default
	ConfigHome string // "" is UserHome/.config
	// WorkspaceRoot is a resolved root; "" leaves the workspace's files out.
	WorkspaceRoot string
	Overrides     map[string]any // decoded JSON
	Backend       string         // for hints about keys that it does not read; "" gives none
	GOOS, GOARCH  string         // "" is this host's
}

// Resolved is the outcome of Load.
type Resolved struct {
	Config Config
	// Sources are "defaults", the files that exist, and "request_overrides",
	// the weakest first.
	Sources []string
	// Diagnostics are all problems, never nil.
	Diagnostics []Diagnostic
	// Tree is the whole resolved configuration for display: nested, with null
	// for what is absent, secrets masked.
	Tree map[string]any
}

// Valid reports whether there is no error among the diagnostics.
func (r *Resolved) Valid() bool {
	return !slices.ContainsFunc(r.Diagnostics, func(d Diagnostic) bool { return d.Severity == SeverityError })
}

// Err is nil for a valid configuration, else a fault WORKSPACE_CONFIG_INVALID
// that carries every diagnostic.
func (r *Resolved) Err() error {
	if r.Valid() {
		return nil
	}
	var bad []string
	for _, d := range r.Diagnostics {
		if d.Severity == SeverityError {
			bad = append(bad, d.String())
		}
	}
	shown := bad[:min(len(bad), 10)]
	e := fault.New(fault.WorkspaceConfigInvalid, "the workspace configuration has %d error(s): %s", len(bad), strings.Join(shown, "; "))
	return e.Because("a configuration file or the request's overrides contain a key or value that is not allowed").
		Next("correct what the diagnostics name; validate_workspace_config checks again without an instance").
		With("diagnostics", r.Diagnostics)
}

// loader is one run of Load.
type loader struct {
	in       Input
	values   map[string]any    // normalised, by path; no entry: absent
	origins  map[string]origin // of values that are not defaults
	mentions map[string]bool   // tables that some layer has
	out      *Resolved
}

type origin struct {
	file string
	position
	untrusted bool
}

// Load resolves the configuration. Values with errors are left out, so that
// the rest of the result is still meaningful.
func Load(in Input) *Resolved {
	in.GOOS = hostOS(in.GOOS)
	if in.GOARCH == "" {
		in.GOARCH = runtime.GOARCH
	}
	if in.ConfigHome == "" && in.UserHome != "" {
		in.ConfigHome = filepath.Join(in.UserHome, ".config")
	}
	l := &loader{
		in: in, values: map[string]any{}, origins: map[string]origin{}, mentions: map[string]bool{},
		out: &Resolved{Sources: []string{sourceDefaults}, Diagnostics: []Diagnostic{}},
	}
	l.defaults()
	if in.ConfigHome != "" {
		for _, dir := range operatorDirs {
			l.operatorFile(dir)
		}
	}
	if in.WorkspaceRoot != "" {
		l.workspaceFiles()
	}
	if in.Overrides != nil {
		l.out.Sources = append(l.out.Sources, sourceOverrides)
		values, _ := fromJSON(in.Overrides).(map[string]any)
		l.apply(&layer{file: sourceOverrides, untrusted: true, doc: &document{values: values}})
	}
	l.finish()
	return l.out
}

func (l *loader) defaults() {
	for i := range schema {
		k := &schema[i]
		def := k.defaultFor(l.in.GOOS)
		if k.Path == "vm.arch" {
			def = l.in.GOARCH
		}
		if k.Kind == Duration {
			def, _ = parseDuration(def.(string))
		}
		if def != nil {
			l.values[k.Path] = def
		}
	}
}

// operatorFile reads a file of the operator, who may keep it behind a symlink.
func (l *loader) operatorFile(dir string) {
	name := filepath.Join(l.in.ConfigHome, dir, "config.toml")
	data, err := readBounded(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return
	}
	l.file(name, data, err, false)
	if want := operatorDirs[len(operatorDirs)-1]; dir != want {
		l.diagnose(Diagnostic{Severity: SeverityWarning, File: name,
			Message: "this file has a name of an earlier version; it still works: move it to " + filepath.Join(l.in.ConfigHome, want, "config.toml")})
	}
}

func (l *loader) workspaceFiles() {
	root, err := hostpath.OpenRoot(l.in.WorkspaceRoot)
	if err != nil {
		l.diagnose(Diagnostic{Severity: SeverityError, File: l.in.WorkspaceRoot, Message: "the workspace cannot be opened: " + err.Error()})
		return
	}
	defer root.Close()
	for _, name := range workspaceFiles {
		data, err := root.ReadFile(name, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		full := filepath.Join(l.in.WorkspaceRoot, name)
		l.file(full, data, err, true)
		if want := workspaceFiles[len(workspaceFiles)-1]; name != want {
			l.diagnose(Diagnostic{Severity: SeverityWarning, File: full,
				Message: "this file has a name of an earlier version; it still works: rename it to " + want})
		}
	}
}

func (l *loader) file(name string, data []byte, err error, untrusted bool) {
	l.out.Sources = append(l.out.Sources, name)
	if err != nil {
		l.diagnose(Diagnostic{Severity: SeverityError, File: name, Message: "the file cannot be read: " + reason(err),
			Allowed: "a regular file of at most 1 MiB, not a symbolic link"})
		return
	}
	doc, at, err := parseTOML(data)
	if err != nil {
		l.diagnose(Diagnostic{Severity: SeverityError, File: name, Line: at.line, Column: at.column, Message: err.Error(), Allowed: "TOML 1.0"})
		return
	}
	l.apply(&layer{file: name, untrusted: untrusted, doc: doc})
}

func reason(err error) string {
	for _, kind := range []error{hostpath.ErrSymlink, hostpath.ErrSpecial, hostpath.ErrSwapped} {
		if errors.Is(err, kind) {
			return "it is " + kind.Error()
		}
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// readBounded reads a regular file of at most max bytes without ever blocking
// on a FIFO. Symlinks are followed.
func readBounded(name string, max int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(data)) > max {
		err = fmt.Errorf("it is larger than %d bytes", max)
	}
	return data, err
}

// layer is one source of values.
type layer struct {
	file      string
	untrusted bool
	doc       *document
}

// apply takes over a layer's values. What is wrong with it is told in the
// order of its lines.
func (l *loader) apply(y *layer) {
	before := len(l.out.Diagnostics)
	l.table(y, nil, y.doc.values)
	slices.SortStableFunc(l.out.Diagnostics[before:], func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

func (l *loader) table(y *layer, path []string, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		p := append(path[:len(path):len(path)], name)
		dotted, v := display(p), values[name]
		plain := !strings.Contains(name, ".")
		if k := byPath[dotted]; k != nil && plain {
			l.value(y, k, p, v)
			continue
		}
		if tables[dotted] && plain {
			sub, ok := v.(map[string]any)
			if !ok {
				l.problem(y, p, fmt.Sprintf("found %s where a table is expected", nameOf(v)), "a table with the keys "+join(childrenOf(dotted)))
				continue
			}
			l.mentions[dotted] = true
			l.table(y, p, sub)
			continue
		}
		message := "unknown key"
		if near := nearestKey(dotted); near != "" {
			message = fmt.Sprintf("unknown key; did you mean %s?", near)
		}
		if byPath[name] != nil && y.file == sourceOverrides {
			message = "unknown key: overrides are nested tables, not dotted names"
		}
		l.problem(y, p, message, "keys: "+join(childrenOf(display(path))))
	}
}

func (l *loader) value(y *layer, k *Key, path []string, v any) {
	if k.Operator && y.untrusted {
		l.problem(y, path, "only the operator may set this key: it is not allowed in a workspace's file or in overrides",
			"set it in "+filepath.Join(l.in.ConfigHome, operatorDirs[len(operatorDirs)-1], "config.toml"))
		return
	}
	at := y.doc.at(path)
	here := origin{y.file, at, y.untrusted}
	if v == nil && y.file == sourceOverrides && k.defaultFor(l.in.GOOS) == nil {
		delete(l.values, k.Path)
		l.origins[k.Path] = here
		return
	}
	value, bad := normalise(k.Kind, v)
	if bad == "" && k.check != nil {
		bad = k.check(value)
	}
	if bad == "" && k.Path == "vm.template" && y.untrusted && !slices.Contains(l.values["vm.allowed_templates"].([]string), value.(string)) {
		l.problem(y, path, quote(value.(string))+" is not a template that the operator allows a workspace to choose",
			join(l.values["vm.allowed_templates"].([]string))+" (vm.allowed_templates in the operator's file)")
		return
	}
	if bad != "" {
		l.problem(y, path, bad, k.Allowed)
		return
	}
	if k.Kind == Map {
		merged := maps.Clone(l.values[k.Path].(map[string]string))
		maps.Copy(merged, value.(map[string]string))
		value = merged
	}
	l.values[k.Path] = value
	l.origins[k.Path] = here
}

// finish applies the rules that need all layers and builds the result.
func (l *loader) finish() {
	for _, table := range []string{"infra.mysql", "infra.redis", "infra.postgres"} {
		if _, set := l.origins[table+".enabled"]; !set && l.mentions[table] {
			l.values[table+".enabled"] = true
		}
	}
	if b := l.in.Backend; b != "" {
		for i := range schema {
			k := &schema[i]
			if o, set := l.origins[k.Path]; set && k.Only != "" && k.Only != b && !k.Operator {
				l.diagnose(Diagnostic{Severity: SeverityWarning, File: o.file, Line: o.line, Column: o.column, Key: k.Path,
					Message: fmt.Sprintf("only the %s backend reads this key; the backend here is %s and ignores it", k.Only, b)})
			}
		}
	}
	tree := map[string]any{}
	for i := range schema {
		k := &schema[i]
		v, ok := l.values[k.Path]
		if !ok {
			v = nil
		}
		store(k.target(&l.out.Config), v)
		plant(tree, strings.Split(k.Path, "."), shown(k, v))
	}
	l.out.Tree = tree
	if len(l.out.Diagnostics) > maxDiagnostics {
		more := len(l.out.Diagnostics) - maxDiagnostics
		// Errors must not be cut off by warnings.
		slices.SortStableFunc(l.out.Diagnostics, func(a, b Diagnostic) int { return strings.Compare(a.Severity, b.Severity) })
		l.out.Diagnostics = append(l.out.Diagnostics[:maxDiagnostics:maxDiagnostics],
			Diagnostic{Severity: SeverityError, File: sourceDefaults, Message: fmt.Sprintf("%d more problems are not shown", more)})
	}
}

// store sets the field that target points to; nil leaves it at its zero value.
func store(target, v any) {
	if v == nil {
		return
	}
	switch t := target.(type) {
	case *bool:
		*t = v.(bool)
	case *int:
		*t = int(v.(int64))
	case *float64:
		*t = v.(float64)
	case *string:
		*t = v.(string)
	case *time.Duration:
		*t = v.(time.Duration)
	case *[]string:
		*t = slices.Clone(v.([]string))
	case *map[string]string:
		*t = maps.Clone(v.(map[string]string))
	default:
		panic(fmt.Sprintf("config: schema points to a %T", target))
	}
}

func plant(tree map[string]any, path []string, v any) {
	for _, p := range path[:len(path)-1] {
		sub, ok := tree[p].(map[string]any)
		if !ok {
			sub = map[string]any{}
			tree[p] = sub
		}
		tree = sub
	}
	tree[path[len(path)-1]] = v
}
