package buildcache

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Dockerfile is what a Dockerfile says about its inputs. A file that Docker
// would refuse is read as far as it makes sense: the build itself reports what
// is wrong with it.
type Dockerfile struct {
	Hash   string   // sha256 of its text
	Args   []string // every name that an ARG declares
	Stages []string // names, "" for a stage without one
	global []arg    // ARG before the first FROM
	images []string // as they are written, in order, without stages
}

type arg struct {
	name, value string
	set         bool
}

// maxImages bounds how many images a Dockerfile is believed to need.
const maxImages = 100

var (
	mountFrom = regexp.MustCompile(`(?:^|,)"?from=([^,"]+)`)
	stageName = regexp.MustCompile(`^[a-z][a-z0-9_.-]*$`)
)

// ParseDockerfile reads a Dockerfile's text.
func ParseDockerfile(text []byte) Dockerfile {
	sum := sha256.Sum256(text)
	f := Dockerfile{Hash: hex.EncodeToString(sum[:])}
	lines, syntax := instructions(string(text))
	if syntax != "" {
		f.need(syntax)
	}
	for _, line := range lines {
		f.instruction(line)
	}
	return f
}

func (f *Dockerfile) instruction(line string) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return
	}
	verb, words := strings.ToUpper(words[0]), words[1:]
	if verb == "ONBUILD" {
		return // it is for images that are built from this one
	}
	switch verb {
	case "ARG":
		for _, w := range words {
			name, value, set := strings.Cut(w, "=")
			f.Args = append(f.Args, name)
			if len(f.Stages) == 0 {
				f.global = append(f.global, arg{name, unquote(value), set})
			}
		}
	case "FROM":
		for len(words) > 0 && strings.HasPrefix(words[0], "--") {
			words = words[1:]
		}
		if len(words) == 0 {
			return
		}
		f.need(unquote(words[0]))
		name := ""
		if len(words) >= 3 && strings.EqualFold(words[1], "as") {
			name = strings.ToLower(words[2])
		}
		f.Stages = append(f.Stages, name)
	case "COPY", "ADD", "RUN":
		for _, w := range words {
			if !strings.HasPrefix(w, "--") {
				break
			}
			if from, ok := strings.CutPrefix(w, "--from="); ok {
				f.need(unquote(from))
			}
			if mount, ok := strings.CutPrefix(w, "--mount="); ok {
				for _, m := range mountFrom.FindAllStringSubmatch(mount, -1) {
					f.need(m[1])
				}
			}
		}
	}
}

// need notes an image unless it is a stage of this file.
func (f *Dockerfile) need(ref string) {
	if ref == "" || ref == "scratch" || len(f.images) >= maxImages || slices.Contains(f.images, ref) {
		return
	}
	if stageName.MatchString(strings.ToLower(ref)) && slices.Contains(f.Stages, strings.ToLower(ref)) {
		return
	}
	if n, err := strconv.Atoi(ref); err == nil && n >= 0 && n < len(f.Stages) {
		return
	}
	f.images = append(f.images, ref)
}

// Declares reports whether an ARG declares name.
func (f Dockerfile) Declares(name string) bool { return slices.Contains(f.Args, name) }

// Images is what the file builds on, with the variables in it replaced by the
// caller's build arguments or the file's defaults. Where that cannot be told
// the text stays as it is written.
func (f Dockerfile) Images(args map[string]string) []string {
	vars := map[string]string{}
	for _, a := range f.global {
		v, ok := args[a.name]
		if !ok && a.set {
			v, ok = expand(a.value, vars)
		}
		if ok {
			vars[a.name] = v
		}
	}
	var list []string
	for _, raw := range f.images {
		ref, ok := expand(raw, vars)
		if !ok {
			ref = raw
		}
		// Only now it shows where a variable stands for a stage.
		stage := ref != raw && (ref == "scratch" || slices.Contains(f.Stages, strings.ToLower(ref)))
		if !stage && !slices.Contains(list, ref) {
			list = append(list, ref)
		}
	}
	return list
}

var variable = regexp.MustCompile(`\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}$]*))?\})`)

// maxExpanded bounds what variables make of a text, in bytes: each ARG can
// double the one before it, and no image has so long a name.
const maxExpanded = 4 << 10

// expand replaces $A, ${A}, ${A:-default} and ${A:+other}; ok is false if
// something is not known or not understood, or becomes too long.
func expand(s string, vars map[string]string) (out string, ok bool) {
	var b strings.Builder
	at := 0
	for _, m := range variable.FindAllStringSubmatchIndex(s, -1) {
		part := func(n int) string {
			if m[2*n] < 0 {
				return ""
			}
			return s[m[2*n]:m[2*n+1]]
		}
		value, set := vars[part(1)+part(2)]
		op, other := part(3), part(4)
		if strings.HasPrefix(op, ":") {
			set = value != ""
		}
		switch {
		case strings.HasSuffix(op, "-") && !set:
			value = other
		case strings.HasSuffix(op, "+") && set:
			value = other
		case strings.HasSuffix(op, "+"):
			value = ""
		case !set && op == "":
			return s, false
		}
		b.WriteString(s[at:m[0]])
		b.WriteString(value)
		if at = m[1]; b.Len() > maxExpanded {
			return s, false
		}
	}
	b.WriteString(s[at:])
	out = b.String()
	return out, len(out) <= maxExpanded && !strings.Contains(out, "$")
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

var directive = regexp.MustCompile(`^#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$`)

// instructions is a Dockerfile's logical lines, without comments and the
// bodies of here-documents, and the image of its syntax directive.
func instructions(text string) (list []string, syntax string) {
	text = strings.TrimPrefix(text, "\ufeff")
	escape, head := `\`, true
	var whole strings.Builder
	var ends []string // of here-documents that are open
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if len(ends) > 0 {
			if strings.TrimLeft(line, "\t") == ends[0] {
				ends = ends[1:]
			}
			continue
		}
		trimmed := strings.TrimSpace(line)
		if head {
			m := directive.FindStringSubmatch(trimmed)
			switch {
			case m == nil:
				head = false
			case strings.EqualFold(m[1], "escape") && (m[2] == "`" || m[2] == `\`):
				escape = m[2]
			case strings.EqualFold(m[1], "syntax"):
				syntax, _, _ = strings.Cut(m[2], " ")
			}
		}
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue // also within a continued instruction
		}
		if part, goes := strings.CutSuffix(trimmed, escape); goes {
			whole.WriteString(part + " ")
			continue
		}
		whole.WriteString(trimmed)
		list = append(list, whole.String())
		ends = hereDocuments(whole.String())
		whole.Reset()
	}
	if whole.Len() > 0 {
		list = append(list, whole.String())
	}
	return list, syntax
}

var hereDocument = regexp.MustCompile(`^[0-9]*<<-?(?:"([^"<]+)"|'([^'<]+)'|([^\s"'<]+))$`)

// hereDocuments is the words that end the here-documents of an instruction.
func hereDocuments(line string) []string {
	words := strings.Fields(line)
	if len(words) > 0 && strings.EqualFold(words[0], "ONBUILD") {
		words = words[1:]
	}
	if len(words) == 0 || !slices.Contains([]string{"RUN", "COPY", "ADD"}, strings.ToUpper(words[0])) {
		return nil
	}
	var ends []string
	for _, w := range words[1:] {
		if m := hereDocument.FindStringSubmatch(w); m != nil {
			ends = append(ends, m[1]+m[2]+m[3])
		}
	}
	return ends
}
