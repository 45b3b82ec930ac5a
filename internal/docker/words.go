package docker

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// builtins are commands that only a shell has, or that only make sense in one.
var builtins = map[string]bool{
	"exit": true, "cd": true, "export": true, "set": true, "unset": true, ".": true, "source": true, "exec": true,
	"eval": true, "return": true, "trap": true, "ulimit": true, "umask": true, "wait": true, "alias": true,
	"command": true, "type": true, "read": true, "shift": true,
}

// Argv is a command line as the argument list of a container: its words, if it
// is nothing but words and quotes, so that an image without a shell and one
// with an entrypoint of its own work as with the docker program; otherwise
// `sh -c` and the line.
func Argv(line string) []string {
	if words, ok := plainWords(line); ok {
		return words
	}
	return Shell(line)
}

// Shell has a command line executed by the container's own shell.
func Shell(line string) []string { return []string{"sh", "-c", line} }

// plainWords splits a line that a shell would take as one command without any
// expansion, redirection or assignment.
func plainWords(line string) ([]string, bool) {
	// Shells differ in what they make of other control characters.
	if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
		return nil, false
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(line), "")
	if err != nil || len(f.Stmts) != 1 {
		return nil, false
	}
	st := f.Stmts[0]
	call, ok := st.Cmd.(*syntax.CallExpr)
	if !ok || st.Negated || st.Background || len(st.Redirs) > 0 || len(call.Assigns) > 0 || len(call.Args) == 0 {
		return nil, false
	}
	for _, w := range call.Args {
		if !literal(w.Parts) {
			return nil, false
		}
	}
	words, err := expand.Fields(nil, call.Args...)
	return words, err == nil && words[0] != "" && !builtins[words[0]]
}

// literal reports whether a shell takes a word as it stands.
func literal(parts []syntax.WordPart) bool {
	for i, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(p.Value, "*?[{") || i == 0 && strings.HasPrefix(p.Value, "~") {
				return false
			}
		case *syntax.SglQuoted:
			if p.Dollar {
				return false
			}
		case *syntax.DblQuoted:
			for _, q := range p.Parts {
				if _, ok := q.(*syntax.Lit); !ok || p.Dollar {
					return false
				}
			}
		default:
			return false
		}
	}
	return true
}
