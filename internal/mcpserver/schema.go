package mcpserver

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"sandboxforge/internal/fault"
)

// A rule is what a Go type cannot say about a parameter. The zero value of a
// field sets nothing.
type rule struct {
	min, max       *float64
	minLen, maxLen int // of strings, in characters
	minItems       int
	pattern        string
	enum           []string
	// def is the documented default. It is shown, not filled in: the service
	// knows its own defaults.
	def any
	// code is the fault for a well-typed value that breaks the rule, where the
	// contract has a more telling one than INVALID_ARGUMENT.
	code fault.Code
}

// rules maps parameter names to their rules.
type rules map[string]rule

func num(f float64) *float64 { return &f }

// inputSchema is the schema of T as a tool's parameters: closed, without null
// types, with the rules applied. It panics on a mistake in the table, which is
// found when the server is made.
func inputSchema[T any](rs rules) *jsonschema.Schema {
	s := schemaFor[T]()
	walk(s, func(s *jsonschema.Schema) { dropNull(s) })
	s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	for name, r := range rs {
		p := s
		for _, part := range strings.Split(name, ".") { // of a parameter that is an object
			if p = p.Properties[part]; p == nil {
				break
			}
		}
		if p == nil {
			panic(fmt.Sprintf("rule for %q, which %T does not have", name, *new(T)))
		}
		r.apply(p)
	}
	for name, p := range s.Properties {
		if p.Description == "" {
			panic(fmt.Sprintf("%T: parameter %q has no description", *new(T), name))
		}
	}
	return s
}

// outputSchema is the schema of T as a tool's result. A pointer that is always
// there is a value or null; slices and maps are never null, since complete
// fills them. It stays open: later versions add fields.
func outputSchema[T any]() *jsonschema.Schema {
	s := schemaFor[T]()
	walk(s, func(s *jsonschema.Schema) {
		for _, name := range s.Required {
			if p := s.Properties[name]; slices.Contains(p.Types, "null") && !slices.Contains(p.Types, "array") {
				*p = nullable(p)
			}
		}
		dropNull(s)
		if isFalse(s.AdditionalProperties) {
			s.AdditionalProperties = nil
		}
	})
	return s
}

// schemaFor infers the schema and refuses types whose JSON it would get wrong.
func schemaFor[T any]() *jsonschema.Schema {
	t := reflect.TypeFor[T]()
	if bad := mistyped(t, nil); bad != "" {
		panic(fmt.Sprintf("%v: %s has no faithful schema", t, bad))
	}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{})
	if err != nil {
		panic(fmt.Sprintf("%v: %v", t, err))
	}
	return s
}

// mistyped finds a field whose inferred schema would not match its JSON.
func mistyped(t reflect.Type, seen []reflect.Type) string {
	if slices.Contains(seen, t) {
		return ""
	}
	seen = append(seen, t)
	switch t {
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[[]byte](), reflect.TypeFor[time.Duration]():
		return t.String()
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return mistyped(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && !f.Anonymous {
				continue
			}
			if bad := mistyped(f.Type, seen); bad != "" {
				return f.Name + " " + bad
			}
		}
	}
	return ""
}

// walk visits s and everything below it, parents first.
func walk(s *jsonschema.Schema, visit func(*jsonschema.Schema)) {
	if s == nil {
		return
	}
	visit(s)
	for _, p := range s.Properties {
		walk(p, visit)
	}
	for _, p := range s.AnyOf {
		walk(p, visit)
	}
	walk(s.Items, visit)
	if s.AdditionalProperties != nil && !isFalse(s.AdditionalProperties) {
		walk(s.AdditionalProperties, visit)
	}
}

func dropNull(s *jsonschema.Schema) {
	if len(s.Types) == 0 {
		return
	}
	types := slices.DeleteFunc(slices.Clone(s.Types), func(t string) bool { return t == "null" })
	if len(types) != 1 {
		panic(fmt.Sprintf("schema with the types %v", s.Types))
	}
	s.Type, s.Types = types[0], nil
}

// nullable spells "p or null" as two alternatives, since clients that map
// schemas to a dialect with one type per value refuse a list of types.
func nullable(p *jsonschema.Schema) jsonschema.Schema {
	value := p.CloneSchemas()
	value.Description = ""
	return jsonschema.Schema{Description: p.Description, AnyOf: []*jsonschema.Schema{value, {Type: "null"}}}
}

// isFalse recognises the schema that nothing matches.
func isFalse(s *jsonschema.Schema) bool {
	return s != nil && s.Not != nil && reflect.DeepEqual(*s.Not, jsonschema.Schema{})
}

func (r rule) apply(p *jsonschema.Schema) {
	p.Minimum, p.Maximum, p.Pattern = r.min, r.max, r.pattern
	if r.minLen > 0 {
		p.MinLength = &r.minLen
	}
	if r.maxLen > 0 {
		p.MaxLength = &r.maxLen
	}
	if r.minItems > 0 {
		p.MinItems = &r.minItems
	}
	for _, e := range r.enum {
		p.Enum = append(p.Enum, e)
	}
	if r.def != nil {
		raw, err := json.Marshal(r.def)
		if err != nil {
			panic(err)
		}
		p.Default = raw
	}
}

// complete replaces nil slices and maps in the struct that v points to by
// empty ones, so that its JSON has [] and {} where the schema says array and
// object.
func complete(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			complete(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				complete(f)
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			complete(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		if v.Type().Elem().Kind() == reflect.Interface {
			return // free-form: any JSON is right
		}
		for _, k := range v.MapKeys() {
			elem := reflect.New(v.Type().Elem()).Elem()
			elem.Set(v.MapIndex(k))
			complete(elem)
			v.SetMapIndex(k, elem)
		}
	}
}

// quoteList is for messages: "a", "b" or "c".
func quoteList(values []any) string {
	var parts []string
	for _, v := range values {
		parts = append(parts, fmt.Sprintf("%q", v))
	}
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " or " + parts[len(parts)-1]
}
