package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
)

// envReader reads variables and collects what is wrong with them.
type envReader struct {
	getenv   func(string) string
	goos     string
	userHome string
	base     string // where relative paths start
	problems []envProblem
}

type envProblem struct{ variable, value, allowed string }

func (e *envReader) bad(variable, value, allowed string) {
	e.problems = append(e.problems, envProblem{variable, strings.ToValidUTF8(value, "�"), allowed})
}

func (e *envReader) text(name, def string) string {
	v := e.getenv(name)
	if v == "" {
		return def
	}
	if strings.TrimSpace(v) == "" || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		e.bad(name, v, "text without control characters")
		return def
	}
	return v
}

func (e *envReader) choice(name, def string, allowed ...string) string {
	v := strings.ToLower(strings.TrimSpace(e.getenv(name)))
	if v == "" {
		return def
	}
	for _, a := range allowed {
		if v == a {
			return v
		}
	}
	e.bad(name, e.getenv(name), strings.Join(allowed, ", "))
	return def
}

func parseBool(s string) (value, ok bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}

const boolSpellings = "1, true, yes, on, 0, false, no, off"

func (e *envReader) boolean(name string, def bool) bool {
	v := e.getenv(name)
	if v == "" {
		return def
	}
	b, ok := parseBool(v)
	if !ok {
		e.bad(name, v, boolSpellings)
		return def
	}
	return b
}

func (e *envReader) autoBoolean(name string) string {
	v := e.getenv(name)
	if v == "" || strings.EqualFold(strings.TrimSpace(v), "auto") {
		return "auto"
	}
	b, ok := parseBool(v)
	switch {
	case !ok:
		e.bad(name, v, "auto, "+boolSpellings)
		return "auto"
	case b:
		return "on"
	}
	return "off"
}

func (e *envReader) integer(name string, def, low, high int) int {
	v := strings.TrimSpace(e.getenv(name))
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		e.bad(name, e.getenv(name), fmt.Sprintf("a whole number from %d to %d", low, high))
		return def
	}
	return n
}

// expand checks a path and replaces a leading ~.
func (e *envReader) expand(name, v string) (string, bool) {
	if strings.ContainsRune(v, 0) {
		e.bad(name, v, "a path without NUL bytes")
		return "", false
	}
	if v == "~" || strings.HasPrefix(v, "~/") || e.goos == "windows" && strings.HasPrefix(v, `~\`) {
		if e.userHome == "" {
			e.bad(name, v, "an absolute path, since the home directory is not known")
			return "", false
		}
		v = filepath.Join(e.userHome, v[1:])
	}
	return v, true
}

// path reads a path; a relative one starts at the state directory. An empty
// default stays empty.
func (e *envReader) path(name, def string) string {
	v := e.getenv(name)
	if v == "" {
		v = def
	}
	if v == "" {
		return ""
	}
	v, ok := e.expand(name, v)
	if !ok {
		return ""
	}
	if !filepath.IsAbs(v) {
		v = filepath.Join(e.base, v)
	}
	return filepath.Clean(v)
}

// absolute reads a path that must be absolute.
func (e *envReader) absolute(name, def string) string {
	v := e.getenv(name)
	if v == "" {
		return def
	}
	v, ok := e.expand(name, v)
	if ok && !filepath.IsAbs(v) {
		e.bad(name, v, "an absolute path")
		ok = false
	}
	if !ok {
		return def
	}
	return filepath.Clean(v)
}

func (e *envReader) pathList(name string) []string {
	v := e.getenv(name)
	if v == "" {
		return nil
	}
	sep := ":"
	if e.goos == "windows" {
		sep = ";"
	}
	list := []string{} // set but empty: nothing is allowed, which is not the same as unset
	for p := range strings.SplitSeq(v, sep) {
		if p == "" {
			continue
		}
		p, ok := e.expand(name, p)
		if !ok {
			continue
		}
		if !filepath.IsAbs(p) {
			p = filepath.Join(e.base, p)
		}
		list = append(list, filepath.Clean(p))
	}
	return list
}

// stateHome finds SANDBOXFORGE_HOME or the platform's default for it.
func (e *envReader) stateHome(homeVar string) string {
	if e.getenv("SANDBOXFORGE_HOME") != "" {
		return e.absolute("SANDBOXFORGE_HOME", string(filepath.Separator))
	}
	var base string
	switch e.goos {
	case "windows":
		if base = e.absolute("LOCALAPPDATA", ""); base == "" && e.userHome != "" {
			base = filepath.Join(e.userHome, "AppData", "Local")
		}
	case "darwin":
		if e.userHome != "" {
			base = filepath.Join(e.userHome, "Library", "Application Support")
		}
	default:
		if base = e.absolute("XDG_STATE_HOME", ""); base == "" && e.userHome != "" {
			base = filepath.Join(e.userHome, ".local", "state")
		}
	}
	if base == "" {
		e.bad(homeVar, "", "the user's home directory, or SANDBOXFORGE_HOME set to an absolute path")
		return string(filepath.Separator)
	}
	return filepath.Join(base, "sandboxforge")
}

func notTokenRune(r rune) bool { return r <= ' ' || r > '~' }
