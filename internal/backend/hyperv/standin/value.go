package standin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A value is nil, noValue, string, int64, bool, []byte, []any (an array),
// guid, enum, *hash, *object, *block, or a .NET object of dotnet.go.

// noValue is what a pipeline without output gives: null, but no element.
type noValue struct{}

type guid string

// enum is a member of an enumeration: its name and number.
type enum struct {
	kind   string
	name   string
	number int64
}

// hash is a hashtable; its order is that of insertion, which a real one has not.
type hash struct {
	keys   []string
	values map[string]any // by lower-case key
}

func newHash() *hash { return &hash{values: map[string]any{}} }

func (h *hash) set(key string, v any) {
	k := strings.ToLower(key)
	if _, ok := h.values[k]; !ok {
		h.keys = append(h.keys, key)
	}
	h.values[k] = v
}

// object is an instance of a class, or a PSCustomObject.
type object struct {
	class string
	props *hash
	// open objects have null for what they have not, as PowerShell does. Of
	// others, a property that the class has not is an error: a script that
	// names one is wrong, which PowerShell would not tell.
	open bool
	// of the world
	ref any
}

func newObject(class string, pairs ...any) *object {
	o := &object{class: class, props: newHash()}
	for i := 0; i+1 < len(pairs); i += 2 {
		o.props.set(pairs[i].(string), pairs[i+1])
	}
	return o
}

func isNull(v any) bool {
	if v == nil {
		return true
	}
	_, none := v.(noValue)
	return none
}

// text is what a value is as a string.
func text(v any) string {
	switch v := v.(type) {
	case nil, noValue:
		return ""
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case bool:
		if v {
			return "True"
		}
		return "False"
	case guid:
		return string(v)
	case enum:
		return v.name
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = text(e)
		}
		return strings.Join(parts, " ")
	case []byte:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = strconv.Itoa(int(e))
		}
		return strings.Join(parts, " ")
	case *hash:
		return "System.Collections.Hashtable"
	case *object:
		if v.class == "PSCustomObject" {
			var parts []string
			for _, k := range v.props.keys {
				parts = append(parts, k+"="+text(v.props.values[strings.ToLower(k)]))
			}
			return "@{" + strings.Join(parts, "; ") + "}"
		}
		return v.class
	case *block:
		return v.text
	}
	return fmt.Sprintf("%v", v)
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, noValue:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case int64:
		return v != 0
	case []any:
		switch len(v) {
		case 0:
			return false
		case 1:
			return truth(v[0])
		}
	}
	return true
}

// elements is what a value is in a pipeline.
func elements(v any) []any {
	switch v := v.(type) {
	case noValue:
		return nil
	case []any:
		return v
	}
	return []any{v}
}

// collect makes a value of outputs.
func collect(out []any) any {
	switch len(out) {
	case 0:
		return noValue{}
	case 1:
		return out[0]
	}
	return slices.Clone(out)
}

func equal(a, b any) bool {
	if isNull(a) || isNull(b) {
		return isNull(a) && isNull(b)
	}
	switch a := a.(type) {
	case bool:
		return a == truth(b)
	case int64:
		n, err := number(b)
		return err == nil && n == a
	}
	return strings.EqualFold(text(a), text(b))
}

func number(v any) (int64, error) {
	switch v := v.(type) {
	case nil, noValue:
		return 0, nil
	case int64:
		return v, nil
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	case enum:
		return v.number, nil
	case string:
		return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
	}
	return 0, fmt.Errorf("a %T is no number", v)
}

// like matches * and ?, ignoring case.
func like(s, pattern string) bool {
	s, pattern = strings.ToLower(s), strings.ToLower(pattern)
	var match func(s, p string) bool
	match = func(s, p string) bool {
		for len(p) > 0 {
			switch p[0] {
			case '*':
				for i := 0; i <= len(s); i++ {
					if match(s[i:], p[1:]) {
						return true
					}
				}
				return false
			case '?':
				if s == "" {
					return false
				}
			default:
				if s == "" || s[0] != p[0] {
					return false
				}
			}
			s, p = s[1:], p[1:]
		}
		return s == ""
	}
	return match(s, pattern)
}
