package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Severities. An error makes the configuration invalid.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// maxDiagnostics bounds what a hostile file can make us say.
const maxDiagnostics = 200

// Diagnostic is one thing that is wrong or worth knowing.
type Diagnostic struct {
	Severity string `json:"severity"`
	File     string `json:"file"` // a path, or request_overrides
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Key      string `json:"key,omitempty"` // full path
	Message  string `json:"message"`
	Allowed  string `json:"allowed,omitempty"`
}

// String is file:line:column: severity: key: message (allowed: …).
func (d Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(d.File)
	if d.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", d.Line, d.Column)
	}
	b.WriteString(": " + d.Severity + ": ")
	if d.Key != "" {
		b.WriteString(d.Key + ": ")
	}
	b.WriteString(d.Message)
	if d.Allowed != "" {
		b.WriteString(" (allowed: " + d.Allowed + ")")
	}
	return b.String()
}

func (l *loader) diagnose(d Diagnostic) { l.out.Diagnostics = append(l.out.Diagnostics, d) }

// problem reports an error at a key of a layer.
func (l *loader) problem(y *layer, path []string, message, allowed string) {
	at := y.doc.at(path)
	l.diagnose(Diagnostic{Severity: SeverityError, File: y.file, Line: at.line, Column: at.column,
		Key: display(path), Message: message, Allowed: allowed})
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// display writes a path as TOML would, bounded in length.
func display(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		if parts[i] = p; !bareKey.MatchString(p) {
			parts[i] = quote(p)
		}
	}
	return strings.Join(parts, ".")
}

// childrenOf lists the names right below a table.
func childrenOf(table string) []string {
	names := map[string]bool{}
	for _, k := range schema {
		rest, ok := strings.CutPrefix(k.Path, table+".")
		if table == "" {
			rest, ok = k.Path, true
		}
		if ok {
			name, _, _ := strings.Cut(rest, ".")
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Masked stands for a secret in everything that is shown.
const Masked = "********"

var (
	secretName  = regexp.MustCompile(`(?i)pass|secret|token|credential|private|auth|api_?key|access_?key|_key$|^key$|_pw$|^pw$|_dsn$|salt`)
	secretValue = regexp.MustCompile(`-----BEGIN |://[^/\s:@]*:[^/\s@]+@|^(gh[opsur]_|github_pat_|glpat-|sk-|sk_live_|xox[abprs]-|AKIA|ASIA|AIza|eyJ|npm_|pypi-|hf_)`)
)

// LooksSecret reports whether a variable should be masked when it is shown: by
// its name, or because its value has the form of a credential.
func LooksSecret(name, value string) bool {
	return secretName.MatchString(name) || secretValue.MatchString(value)
}

// shown is a value as the tree displays it.
func shown(k *Key, v any) any {
	if k.Secret && v != nil {
		return Masked
	}
	switch x := v.(type) {
	case time.Duration:
		return formatDuration(x)
	case []string:
		list := make([]any, len(x))
		for i, s := range x {
			list[i] = s
		}
		return list
	case map[string]string:
		m := make(map[string]any, len(x))
		for name, value := range x {
			m[name] = value
			if LooksSecret(name, value) {
				m[name] = Masked
			}
		}
		return m
	}
	return v
}
