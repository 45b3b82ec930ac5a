// Package envfile puts variables into a file such as .env, in a block of its
// own that can be taken out again without a trace.
//
//	text, err := envfile.Inject(old, []envfile.Var{{"DB_HOST", "db"}})
//	old, found := envfile.Strip(text)
//
// Three programs read such files, each with rules of its own: a POSIX shell
// (". ./.env"), Docker (--env-file) and Compose. A value is written only if all
// three read the same; there is no quoting that they agree on, so what needs
// quotes is refused.
//
// Invariant: Strip(Inject(x, any)) is x, byte for byte, for every x that has no
// block yet. The package knows nothing but texts.
package envfile

import (
	"bytes"
	"fmt"
	"strings"
)

// Var is a variable.
type Var struct{ Key, Value string }

// The lines of a block. A line that a variable of the block replaces is kept
// behind replaced.
const (
	begin    = "# BEGIN sandboxforge: connection variables, replaced by prepare_workspace\n"
	joined   = "# BEGIN sandboxforge: connection variables, replaced by prepare_workspace (no line end before)\n"
	end      = "# END sandboxforge\n"
	replaced = "#sandboxforge replaces# "
)

// MaxSize bounds the files that are worked on, in bytes.
const MaxSize = 512 << 10

// Inject returns content with a block that sets the variables, at the end, so
// that they win wherever the last one does; other lines that set them are made
// comments. A block that is there already is replaced; no variables take it
// out. The error names the variable whose value cannot be written.
func Inject(content []byte, vars []Var) ([]byte, error) {
	content, _ = Strip(content)
	if len(vars) == 0 {
		return content, nil
	}
	ours := map[string]bool{}
	for _, v := range vars {
		if err := Check(v.Key, v.Value); err != nil {
			return nil, err
		}
		ours[v.Key] = true
	}
	var b bytes.Buffer
	for line := range bytes.Lines(content) {
		if ours[keyOf(line)] || bytes.HasPrefix(line, []byte(replaced)) {
			b.WriteString(replaced)
		}
		b.Write(line)
	}
	first := begin
	if len(content) > 0 && content[len(content)-1] != '\n' {
		b.WriteByte('\n')
		first = joined
	}
	b.WriteString(first)
	for _, v := range vars {
		b.WriteString(v.Key + "=" + v.Value + "\n")
	}
	b.WriteString(end)
	return b.Bytes(), nil
}

// Strip takes the block out again and reports whether there was one. A file
// without a block, and one whose block somebody has damaged, stays as it is: a
// block begins at the last line that begins one before the line that ends it,
// since what follows one without an end is somebody else's.
func Strip(content []byte) (rest []byte, found bool) {
	head, tail, noEnd, whole := block(content)
	if !whole {
		return content, false
	}
	var b bytes.Buffer
	for line := range bytes.Lines(head) {
		b.Write(bytes.TrimPrefix(line, []byte(replaced)))
	}
	if noEnd && len(tail) == 0 && b.Len() > 0 {
		b.Truncate(b.Len() - 1)
	}
	b.Write(tail)
	return b.Bytes(), true
}

// block finds the first whole block: what is before and after it, and whether
// what is before had no line end.
func block(content []byte) (head, tail []byte, noEnd, whole bool) {
	start, at := -1, 0
	for line := range bytes.Lines(content) {
		next := at + len(line)
		switch string(line) {
		case begin:
			start, noEnd = at, false
		case joined:
			start, noEnd = at, true
		case end:
			if start >= 0 {
				return content[:start], content[next:], noEnd, true
			}
		}
		at = next
	}
	return content, nil, false, false
}

// keyOf is the variable that a line sets by itself, "" for none. A quote that
// goes on in the next line is left alone: the block comes later and wins.
func keyOf(line []byte) string {
	s := strings.TrimSpace(string(line))
	if rest, ok := strings.CutPrefix(s, "export "); ok {
		s = strings.TrimSpace(rest)
	}
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return ""
	}
	if v := strings.TrimSpace(value); v != "" && strings.ContainsRune(`"'`, rune(v[0])) && strings.Count(v, v[:1]) < 2 {
		return ""
	}
	return strings.TrimSpace(key)
}

// unsafe are the printable ASCII characters that the three readers take for
// something, anywhere in a value; first, those that they do at its beginning.
const (
	unsafe = " \"#$&'();<>\\`|~"
	first  = ""
)

// Check reports why a value cannot be written so that a shell, Docker and
// Compose read the same.
func Check(key, value string) error {
	for i, r := range value {
		if r < 0x20 || r > 0x7e || strings.ContainsRune(unsafe, r) || i == 0 && strings.ContainsRune(first, r) {
			return &ValueError{Key: key, Rune: r}
		}
	}
	return nil
}

// ValueError: a value holds a character that is not read alike everywhere.
type ValueError struct {
	Key  string
	Rune rune
}

// Error never shows the value, which may be a secret.
func (e *ValueError) Error() string {
	return fmt.Sprintf("the value of %s contains %s, which a shell, docker --env-file and Compose do not all read as it is", e.Key, runeName(e.Rune))
}

func runeName(r rune) string {
	switch {
	case r == ' ':
		return "a space"
	case r == '\n', r == '\r':
		return "a line end"
	case r < 0x20 || r == 0x7f:
		return "a control character"
	case r > 0x7f:
		return "a character that is not ASCII"
	}
	return string(r)
}
