package standin

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

func convertToJSON(c *invocation) ([]any, *psError) {
	depth := int64(2)
	if c.has("Depth") {
		depth = c.num("Depth")
	}
	if depth < 1 || depth > 100 {
		return nil, bindingError("ConvertTo-Json", "ParameterArgumentValidationError", "Depth is 1 to 100")
	}
	v := c.get("InputObject")
	if v == nil {
		return nil, nil // 5.1 has no output for null
	}
	if !c.on("Compress") {
		return nil, unknownHere("ConvertTo-Json without -Compress")
	}
	var b strings.Builder
	writeJSON(&b, v, depth)
	return []any{b.String()}, nil
}

// writeJSON writes a value as 5.1's ConvertTo-Json -Compress does: enumerations
// as numbers, what lies too deep as its text, <, >, & and ' escaped.
func writeJSON(b *strings.Builder, v any, depth int64) {
	switch v := v.(type) {
	case nil, noValue:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case enum:
		b.WriteString(strconv.FormatInt(v.number, 10))
	case string:
		quote(b, v)
	case guid:
		quote(b, string(v))
	case time.Time:
		fmt.Fprintf(b, `"\/Date(%d)\/"`, v.UnixMilli())
	case []any:
		if depth < 0 {
			quote(b, text(v))
			return
		}
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, item, depth-1)
		}
		b.WriteByte(']')
	case *hash:
		writeProps(b, v, v, depth)
	case *object:
		writeProps(b, v, v.props, depth)
	default:
		quote(b, text(v))
	}
}

func writeProps(b *strings.Builder, v any, h *hash, depth int64) {
	if depth < 0 {
		quote(b, text(v))
		return
	}
	b.WriteByte('{')
	for i, k := range h.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		quote(b, k)
		b.WriteByte(':')
		writeJSON(b, h.values[strings.ToLower(k)], depth-1)
	}
	b.WriteByte('}')
}

func quote(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 32 || strings.ContainsRune("'<>&\u0085\u2028\u2029", r):
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(b, `\u%04x`, u)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

func convertFromJSON(c *invocation) ([]any, *psError) {
	d := json.NewDecoder(strings.NewReader(c.str("InputObject")))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, &psError{
			id: "System.ArgumentException,Microsoft.PowerShell.Commands.ConvertFromJsonCommand", category: "NotSpecified",
			exception: "System.ArgumentException", hresult: hr(eInvalidArgument), message: err.Error(), command: "ConvertFrom-Json",
		}
	}
	v = fromJSON(v)
	if a, ok := v.([]any); ok {
		return []any{a}, nil // 5.1 hands an array on as one object
	}
	return []any{v}, nil
}

func fromJSON(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		return v.String()
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = fromJSON(item)
		}
		return out
	case map[string]any:
		o := &object{class: "PSCustomObject", props: newHash(), open: true}
		for k, item := range v {
			o.props.set(k, fromJSON(item))
		}
		return o
	}
	return v
}
