// Package ignore says which paths of a tree are left out, in gitignore syntax.
//
//	m := ignore.New([]string{"/.git", "__pycache__", "*.log", "!keep.log"})
//	m.Match("src/__pycache__/x.pyc", false) // true: its parent is excluded
//
// Patterns are tried in order and the last match wins; nothing below an
// excluded directory can be brought back. Host and guest use this package with
// the same list and so agree on what belongs to a sync. It is linked into the
// guest's agent and must stay small: it reads no files and knows nothing of
// git repositories.
//
// The matching of one pattern is github.com/git-pkgs/gitignore's. Two things
// are done here, because that library lets a pattern for a directory match
// whatever lies below it, which goes wrong as soon as a negation follows: each
// pattern is asked for an exact match only, and parents are tried on their
// own. Where it reads a pattern differently from git, the pattern is rewritten
// or dropped in compile. A test compares the outcome with git itself.
package ignore

import (
	"strings"

	"github.com/git-pkgs/gitignore"
)

// maxPattern bounds a pattern, in bytes; a longer one matches nothing.
const maxPattern = 4096

// Matcher is a compiled list of patterns. It is immutable and may be used by
// many goroutines.
type Matcher struct {
	rules []rule
}

// rule is one pattern. name and suffix are short cuts for the common forms
// without wildcards ("node_modules") and with one ("*.pyc"), at any depth.
type rule struct {
	negate  bool
	dirOnly bool
	name    string
	suffix  string
	glob    *gitignore.Matcher
}

// New compiles patterns. Blank lines and comments count for nothing, as do
// patterns that can never match.
func New(patterns []string) *Matcher {
	m := &Matcher{}
	for _, p := range patterns {
		if r, ok := compile(p); ok {
			m.rules = append(m.rules, r)
		}
	}
	return m
}

// Match reports whether path, relative and with forward slashes, is left out:
// itself, or because a directory above it is.
func (m *Matcher) Match(path string, isDir bool) bool {
	if len(m.rules) == 0 {
		return false
	}
	for i := range len(path) {
		if path[i] == '/' && m.MatchEntry(path[:i], true) {
			return true
		}
	}
	return m.MatchEntry(path, isDir)
}

// MatchEntry is Match for a caller that knows that nothing above path is left
// out, such as a walk that does not enter excluded directories.
func (m *Matcher) MatchEntry(path string, isDir bool) bool {
	excluded, _ := m.Decide(path, isDir)
	return excluded
}

// Decide is MatchEntry that also tells whether any pattern spoke of path, so
// that lists can be asked in turn.
func (m *Matcher) Decide(path string, isDir bool) (excluded, decided bool) {
	base := path[strings.LastIndexByte(path, '/')+1:]
	for i := len(m.rules) - 1; i >= 0; i-- {
		if r := &m.rules[i]; (isDir || !r.dirOnly) && r.matches(path, base) {
			return !r.negate, true
		}
	}
	return false, false
}

// With is m with further patterns at its end.
func (m *Matcher) With(patterns []string) *Matcher {
	return &Matcher{rules: append(m.rules[:len(m.rules):len(m.rules)], New(patterns).rules...)}
}

func (r *rule) matches(path, base string) bool {
	switch {
	case r.name != "":
		return base == r.name
	case r.suffix != "":
		return strings.HasSuffix(base, r.suffix)
	}
	// The pattern was compiled as one for directories only. Such a pattern
	// tells its exact match, which depends on what the path is, from a match
	// of a parent, which does not.
	return r.glob.MatchPath(path, true) && !r.glob.MatchPath(path, false)
}

// Lines splits the content of a .gitignore file into patterns.
func Lines(data []byte) []string {
	text := strings.TrimPrefix(string(data), "\ufeff")
	var list []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line != "" && line[0] != '#' {
			list = append(list, line)
		}
	}
	return list
}

// Scope rewrites the patterns of a .gitignore file in the directory dir
// (relative, "." or "" for the root) so that they mean the same in a list for
// the root. Lists of deeper directories belong after those above them.
func Scope(dir string, patterns []string) []string {
	if dir == "" || dir == "." {
		return patterns
	}
	prefix := "/" + escape(dir) + "/"
	var list []string
	for _, p := range patterns {
		p, negate, ok := clean(p)
		if !ok || p == "/" {
			continue
		}
		bang := ""
		if negate {
			bang = "!"
		}
		switch body := strings.TrimSuffix(p, "/"); {
		case strings.HasPrefix(p, "/"):
			p = prefix + p[1:]
		case strings.Contains(body, "/"):
			p = prefix + p
		default:
			p = prefix + "**/" + p
		}
		list = append(list, bang+p)
	}
	return list
}

func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch s[i] {
		case '*', '?', '[', ']', '\\':
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// clean does what git does to a line before it looks at the pattern: comments
// and blank lines go, trailing spaces go unless they are escaped, and a
// leading exclamation mark negates.
func clean(line string) (pattern string, negate, ok bool) {
	if line == "" || line[0] == '#' || len(line) > maxPattern || strings.ContainsAny(line, "\n\x00") {
		return "", false, false
	}
	end := len(line)
	for end > 0 && line[end-1] == ' ' && !escaped(line, end-1) {
		end--
	}
	line = line[:end]
	if strings.HasPrefix(line, "!") {
		negate, line = true, line[1:]
	}
	return line, negate, line != ""
}

// escaped reports whether an odd number of backslashes stands before i.
func escaped(s string, i int) bool {
	n := 0
	for i > 0 && s[i-1] == '\\' {
		n++
		i--
	}
	return n%2 == 1
}

func compile(line string) (rule, bool) {
	p, negate, ok := clean(line)
	if !ok {
		return rule{}, false
	}
	r := rule{negate: negate}
	if strings.HasSuffix(p, "/") {
		r.dirOnly = true
		p = p[:len(p)-1]
	}
	if p == "" || p == "/" || strings.HasPrefix(p, `\/`) || escaped(p, len(p)) || !wellFormed(p) {
		return rule{}, false
	}
	p = plainStars(plainSlashes(p))
	if !strings.ContainsAny(p, `/*?[\`) {
		r.name = p
		return r, true
	}
	if rest, ok := strings.CutPrefix(p, "*"); ok && rest != "" && !strings.ContainsAny(rest, `/*?[\`) {
		r.suffix = rest
		return r, true
	}
	// "dir/**" is everything in dir, not dir itself.
	if strings.HasSuffix(p, "/**") {
		p += "/*"
	}
	if p[0] == '#' || p[0] == '!' {
		p = `\` + p
	}
	r.glob = &gitignore.Matcher{}
	r.glob.AddPatterns([]byte(p+"/"), "")
	return r, len(r.glob.Errors()) == 0
}

// plainSlashes drops the backslash of an escaped slash, which means the same.
func plainSlashes(p string) string {
	if !strings.Contains(p, `\/`) {
		return p
	}
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if p[i] == '\\' && i+1 < len(p) {
			if i++; p[i] != '/' {
				b.WriteByte('\\')
			}
		}
		b.WriteByte(p[i])
	}
	return b.String()
}

// plainStars writes a component of more than two stars as two.
func plainStars(p string) string {
	if !strings.Contains(p, "***") {
		return p
	}
	parts := strings.Split(p, "/")
	for i, c := range parts {
		if len(c) > 2 && strings.Trim(c, "*") == "" {
			parts[i] = "**"
		}
	}
	return strings.Join(parts, "/")
}

// wellFormed reports whether every bracket is closed, and in the component
// where it opens. For git a pattern with an open bracket matches nothing.
func wellFormed(p string) bool {
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '[':
			j := i + 1
			if j < len(p) && (p[j] == '!' || p[j] == '^') {
				j++
			}
			for first := true; ; first = false {
				if j >= len(p) || p[j] == '/' {
					return false
				}
				if p[j] == ']' && !first {
					break
				}
				if p[j] == '[' && j+1 < len(p) && p[j+1] == ':' {
					if end := strings.Index(p[j+2:], ":]"); end >= 0 {
						j += 2 + end + 2
						continue
					}
				}
				if p[j] == '\\' {
					j++
				}
				j++
			}
			i = j
		}
	}
	return true
}
