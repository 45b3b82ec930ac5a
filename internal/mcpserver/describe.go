package mcpserver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Describe is the reference of every registered tool as Markdown, made from
// the schemas that clients get.
func Describe() string {
	var b strings.Builder
	for _, t := range catalog() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", t.spec.Name, t.spec.Description)
		h := t.mcp.Annotations
		fmt.Fprintf(&b, "Hints: %s.\n\n", strings.Join(hintWords(h.ReadOnlyHint, *h.DestructiveHint, h.IdempotentHint, *h.OpenWorldHint), ", "))
		b.WriteString("| parameter | type | meaning |\n|---|---|---|\n")
		in := t.mcp.InputSchema.(*jsonschema.Schema)
		for _, name := range ordered(in) {
			p := in.Properties[name]
			label := "`" + name + "`"
			if !slices.Contains(in.Required, name) {
				label += "?"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", label, cell(typeWords(p)), cell(p.Description))
			for _, key := range ordered(p) {
				k := p.Properties[key]
				fmt.Fprintf(&b, "| `%s.%s`? | %s | %s |\n", name, key, cell(typeWords(k)), cell(k.Description))
			}
		}
		out := t.mcp.OutputSchema.(*jsonschema.Schema)
		b.WriteString("\nResult: " + strings.Join(fields(out), ", ") + ".\n")
	}
	return b.String()
}

func hintWords(readOnly, destructive, idempotent, open bool) []string {
	var w []string
	for _, h := range []struct {
		on       bool
		yes, not string
	}{{readOnly, "read-only", ""}, {destructive, "destructive", "not destructive"}, {idempotent, "idempotent", ""}, {open, "reaches the outside world", ""}} {
		switch {
		case h.on:
			w = append(w, h.yes)
		case h.not != "" && !readOnly:
			w = append(w, h.not)
		}
	}
	return w
}

// ordered is the properties with the required ones first, each group in the
// order of the Go type where the schema kept it.
func ordered(s *jsonschema.Schema) []string {
	names := s.PropertyOrder
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(s.Properties))
	}
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int {
		req := func(n string) int {
			if slices.Contains(s.Required, n) {
				return 0
			}
			return 1
		}
		return cmp.Compare(req(a), req(b))
	})
	return names
}

func fields(s *jsonschema.Schema) []string {
	var f []string
	for _, name := range ordered(s) {
		label := "`" + name + "`"
		if !slices.Contains(s.Required, name) {
			label += "?"
		}
		p := s.Properties[name]
		if p.Items != nil && len(p.Items.Properties) > 0 {
			label += " [" + strings.Join(fields(p.Items), ", ") + "]"
		} else if len(p.Properties) > 0 {
			label += " {" + strings.Join(fields(p), ", ") + "}"
		}
		f = append(f, label)
	}
	return f
}

func typeWords(s *jsonschema.Schema) string {
	w := s.Type
	if w == "" {
		w = strings.Join(s.Types, " or ")
	}
	if s.Items != nil {
		w += " of " + s.Items.Type
	}
	if len(s.Enum) > 0 {
		var vs []string
		for _, v := range s.Enum {
			vs = append(vs, fmt.Sprint(v))
		}
		w += ": " + strings.Join(vs, ", ")
	}
	if s.Minimum != nil && s.Maximum != nil {
		w += ", " + number(*s.Minimum) + " to " + number(*s.Maximum)
	}
	if len(s.Default) > 0 {
		var v any
		if json.Unmarshal(s.Default, &v) == nil {
			if f, ok := v.(float64); ok {
				v = number(f)
			}
			w += fmt.Sprintf(", default %v", v)
		}
	}
	return w
}

// number writes a number without an exponent.
func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// cell keeps a text from breaking a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}
