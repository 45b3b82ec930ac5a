package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"sandboxforge/internal/fault"
)

// A violation is one way in which arguments do not fit a tool's schema.
type violation struct {
	Field   string `json:"field"`
	Problem string `json:"problem"`
	Value   any    `json:"value,omitempty"`
	Allowed any    `json:"allowed,omitempty"`

	// ruled: the type was right and the value broke a rule.
	ruled bool
}

// validator checks arguments against the part of JSON Schema that inputSchema
// makes, and says for every violation which field, which value and what would
// be right: more than a schema library's message, because a model has to mend
// its call from it.
type validator struct {
	schema   *jsonschema.Schema
	rules    rules
	patterns map[string]*regexp.Regexp
}

func newValidator(s *jsonschema.Schema, rs rules) *validator {
	v := &validator{schema: s, rules: rs, patterns: map[string]*regexp.Regexp{}}
	walk(s, func(s *jsonschema.Schema) {
		if s.Pattern != "" {
			v.patterns[s.Pattern] = regexp.MustCompile(s.Pattern)
		}
	})
	return v
}

// decode checks raw and unmarshals it into dst, a pointer to a struct. An
// optional parameter that is null counts as left out, since many clients write
// it so.
func (v *validator) decode(raw json.RawMessage, dst any) *fault.Error {
	if len(bytes.TrimSpace(raw)) == 0 || string(bytes.TrimSpace(raw)) == "null" {
		raw = json.RawMessage("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return fault.Wrap(err, fault.InvalidArgument, "the arguments are not JSON")
	}
	if _, err := dec.Token(); err != io.EOF {
		return fault.New(fault.InvalidArgument, "the arguments are followed by something else")
	}
	args, ok := value.(map[string]any)
	if !ok {
		return v.fault([]violation{{Field: "arguments", Problem: "must be an object", Value: shown(value), Allowed: "object"}})
	}
	for name, a := range args {
		if a == nil && !slices.Contains(v.schema.Required, name) && v.schema.Properties[name] != nil {
			delete(args, name)
		}
	}
	var bad []violation
	norm := v.check("", args, v.schema, &bad)
	if len(bad) > 0 {
		return v.fault(bad)
	}
	clean, err := json.Marshal(norm)
	if err == nil {
		err = json.Unmarshal(clean, dst)
	}
	if err != nil {
		return fault.Wrap(err, fault.InvalidArgument, "the arguments do not fit")
	}
	return nil
}

// fault turns violations into the tool error. The contract's own code for a
// parameter (TTL_INVALID, …) is used when every violation has it.
func (v *validator) fault(bad []violation) *fault.Error {
	code := fault.InvalidArgument
	for i, b := range bad {
		own := fault.InvalidArgument
		if r := v.rules[b.Field]; b.ruled && r.code != "" {
			own = r.code
		}
		if i == 0 {
			code = own
		} else if code != own {
			code = fault.InvalidArgument
		}
	}
	var msgs []string
	for _, b := range bad {
		msg := b.Field + " " + b.Problem
		if b.Value != nil {
			text, _ := json.Marshal(b.Value)
			msg += fmt.Sprintf(" (got %s)", text)
		}
		msgs = append(msgs, msg)
	}
	f := fault.New(code, "%s", strings.Join(msgs, "; ")).
		Because("an argument of the call does not fit the tool's input schema").
		With("field", bad[0].Field).
		With("violations", bad)
	if bad[0].Value != nil {
		f.With("value", bad[0].Value)
	}
	if bad[0].Allowed != nil {
		f.With("allowed", bad[0].Allowed)
	}
	switch code {
	case fault.InvalidArgument:
		f.Next("correct the named parameters and repeat the call; nothing was done")
	case fault.TTLInvalid:
		f.Next("repeat the call with a ttl_minutes in the allowed range")
	}
	return f
}

// check appends what is wrong with value and returns it in the form in which
// it unmarshals into Go (1.0 for an integer becomes 1).
func (v *validator) check(path string, value any, s *jsonschema.Schema, bad *[]violation) any {
	add := func(ruled bool, allowed any, format string, args ...any) {
		*bad = append(*bad, violation{Field: path, Problem: fmt.Sprintf(format, args...), Value: shown(value), Allowed: allowed, ruled: ruled})
	}
	switch s.Type {
	case "object":
		obj, ok := value.(map[string]any)
		if !ok {
			add(false, "object", "must be an object")
			return value
		}
		for _, name := range s.Required {
			if _, ok := obj[name]; !ok {
				*bad = append(*bad, violation{Field: join(path, name), Problem: "is required"})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(obj)) {
			switch p := s.Properties[name]; {
			case p != nil:
				obj[name] = v.check(join(path, name), obj[name], p, bad)
			case isFalse(s.AdditionalProperties):
				*bad = append(*bad, violation{Field: join(path, name), Problem: "is not a parameter of this tool", Allowed: slices.Sorted(maps.Keys(s.Properties))})
			case s.AdditionalProperties != nil:
				obj[name] = v.check(join(path, name), obj[name], s.AdditionalProperties, bad)
			}
		}
		return obj
	case "array":
		list, ok := value.([]any)
		if !ok {
			add(false, "array", "must be a list")
			return value
		}
		if s.MinItems != nil && len(list) < *s.MinItems {
			add(true, fmt.Sprintf("at least %d", *s.MinItems), "needs at least %d element(s)", *s.MinItems)
		}
		for i := range list {
			if s.Items != nil {
				list[i] = v.check(fmt.Sprintf("%s[%d]", path, i), list[i], s.Items, bad)
			}
		}
		return list
	case "string":
		str, ok := value.(string)
		if !ok {
			add(false, "string", "must be a string")
			return value
		}
		n := utf8.RuneCountInString(str)
		switch {
		case len(s.Enum) > 0 && !slices.Contains(s.Enum, any(str)):
			add(true, s.Enum, "must be %s", quoteList(s.Enum))
		case s.MinLength != nil && n < *s.MinLength:
			add(true, nil, "must not be empty")
		case s.MaxLength != nil && n > *s.MaxLength:
			add(true, fmt.Sprintf("at most %d characters", *s.MaxLength), "must have at most %d characters and has %d", *s.MaxLength, n)
		case s.Pattern != "" && !v.patterns[s.Pattern].MatchString(str):
			add(true, s.Pattern, "must match %s", s.Pattern)
		}
		return str
	case "boolean":
		if _, ok := value.(bool); !ok {
			add(false, []any{true, false}, "must be true or false")
		}
		return value
	case "integer", "number":
		n, ok := value.(json.Number)
		if !ok {
			add(false, s.Type, "must be a number")
			return value
		}
		f, err := n.Float64()
		if err != nil {
			add(false, s.Type, "must be a number that a 64-bit float can hold")
			return value
		}
		var norm any = n
		if s.Type == "integer" {
			i, err := strconv.ParseInt(n.String(), 10, 64)
			if err != nil {
				if f != math.Trunc(f) || math.Abs(f) > 1<<53 {
					add(false, "integer", "must be a whole number")
					return value
				}
				i = int64(f)
			}
			norm = i
		}
		switch {
		case s.Minimum != nil && f < *s.Minimum:
			add(true, span(s), "must be at least %s", trim(*s.Minimum))
		case s.Maximum != nil && f > *s.Maximum:
			add(true, span(s), "must be at most %s", trim(*s.Maximum))
		}
		return norm
	}
	return value // free-form
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func trim(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// span says which numbers are allowed.
func span(s *jsonschema.Schema) string {
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		return trim(*s.Minimum) + " to " + trim(*s.Maximum)
	case s.Minimum != nil:
		return trim(*s.Minimum) + " or more"
	default:
		return trim(*s.Maximum) + " or less"
	}
}

// shown is value as an error shows it: short.
func shown(value any) any {
	const most = 200
	if s, ok := value.(string); ok {
		if len(s) > most {
			return strings.ToValidUTF8(s[:most], "") + "…"
		}
		return s
	}
	raw, err := json.Marshal(value)
	if err != nil || len(raw) > most {
		return fmt.Sprintf("%.*s…", most, raw)
	}
	return value
}
