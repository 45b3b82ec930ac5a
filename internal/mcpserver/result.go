package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
)

// Clients refuse results above 25,000 tokens. The text is a fraction of that,
// so that both together stay below.
const (
	maxResultTokens = 23_000
	maxTextBytes    = 4 << 10
)

// failure is the result of a tool call that failed: the fault as JSON text and
// as _meta, no structured content (it would not match the output schema, and
// some clients then hide the error).
func failure(f *fault.Error) *mcp.CallToolResult {
	obj := map[string]any{
		"error_code": string(f.Code),
		"message":    f.Error(),
		"details":    f.DetailMap(),
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		obj["details"] = map[string]any{"probable_cause": err.Error(), "next_steps": []string{}}
		raw, _ = json.Marshal(obj)
	}
	if estimateTokens(string(raw)) > maxResultTokens {
		obj, raw = shrunk(raw)
	}
	return &mcp.CallToolResult{
		Meta:    mcp.Meta(maps.Clone(obj)),
		IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: string(raw)}},
	}
}

// success is the result of a tool call that worked. out points to a struct.
func (t *tool) success(out any, text string) *mcp.CallToolResult {
	complete(reflect.ValueOf(out))
	raw, err := json.Marshal(out)
	var plain map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &plain)
	}
	if err == nil {
		err = t.output.Validate(plain)
	}
	if err != nil {
		// What was done stays done: the result goes along, or an instance
		// would be running that nobody knows of.
		return failure(fault.Wrap(err, fault.Internal, "%s worked, but its result does not have the form that it should have", t.spec.Name).
			Because("a defect in the server").
			Next("the call took effect: use details.result, do not repeat it").
			With("result", json.RawMessage(raw)))
	}
	if estimateTokens(string(raw)) > maxResultTokens {
		_, raw = shrunk(raw)
	}
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: middle(text, maxTextBytes)}},
		StructuredContent: json.RawMessage(raw),
	}
}

// shrunk is the object in raw, made small enough.
func shrunk(raw []byte) (map[string]any, []byte) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var obj map[string]any
	if err := dec.Decode(&obj); err != nil {
		return map[string]any{}, raw
	}
	shrink(obj, maxResultTokens)
	small, err := json.Marshal(obj)
	if err != nil {
		return obj, raw
	}
	return obj, small
}

// shrink makes obj fit into about so many tokens by cutting the middle out of
// its longest strings, and last by shortening its longest lists. A sibling
// "<name>_truncated" is set, so that nothing is lost silently.
func shrink(obj map[string]any, tokens int) {
	for range 64 {
		raw, err := json.Marshal(obj)
		if err != nil {
			return
		}
		over := estimateTokens(string(raw)) - tokens
		if over <= 0 {
			return
		}
		s := slot{}
		s.find(obj, nil, "")
		if s.holder == nil {
			break
		}
		switch v := s.holder[s.name].(type) {
		case string:
			// Never below a quarter in one step: several long strings share
			// the loss.
			keep := max(len(v)*3/4, 256)
			if longer := len(v) - over*3; longer > keep {
				keep = longer
			}
			s.holder[s.name] = middle(v, keep)
		case []any:
			s.holder[s.name] = v[:len(v)*3/4]
			s.holder[s.name+"_omitted"] = len(v) - len(v)*3/4 + omitted(s.holder[s.name+"_omitted"])
		}
		if !textsOnly(s.holder) {
			s.holder[s.name+"_truncated"] = true
		}
	}
	// Nothing in it is long, there is only too much of it: a guest may answer so.
	for most := 4 << 10; most >= 64; most /= 2 {
		if raw, err := json.Marshal(obj); err != nil || estimateTokens(string(raw)) <= tokens {
			return
		}
		for k := range obj {
			obj[k] = cut(obj[k], most)
		}
		obj["result_truncated"] = true
	}
}

// textsOnly reports whether an object is one of names and texts, such as labels,
// in which a mark would be of the wrong type; the text itself says that it was cut.
func textsOnly(obj map[string]any) bool {
	for _, v := range obj {
		if _, ok := v.(string); !ok {
			return false
		}
	}
	return true
}

// cut shortens the strings in v to about most bytes, and what has many elements
// to a few of them: of an object all that a schema may ask for.
func cut(v any, most int) any {
	switch v := v.(type) {
	case string:
		return middle(v, most)
	case []any:
		v = v[:min(len(v), max(most/16, 8))]
		for i := range v {
			v[i] = cut(v[i], most)
		}
		return v
	case map[string]any:
		for i, k := range slices.Sorted(maps.Keys(v)) {
			if i >= max(most/16, 32) || len(k) > most {
				delete(v, k)
				continue
			}
			v[k] = cut(v[k], most)
		}
	}
	return v
}

func omitted(v any) int { n, _ := v.(int); return n }

// slot is the place of the longest value that can be cut.
type slot struct {
	holder map[string]any
	name   string
	size   int
}

func (s *slot) find(v any, holder map[string]any, name string) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			s.find(e, v, k)
		}
	case []any:
		before := s.size
		total := 0
		for _, e := range v {
			raw, _ := json.Marshal(e)
			total += len(raw)
			s.find(e, nil, "")
		}
		// A list counts where no single string in it is most of it.
		if holder != nil && len(v) > 3 && total > s.size && s.size-before < total/2 {
			s.holder, s.name, s.size = holder, name, total
		}
	case string:
		if holder != nil && len(v) > s.size && len(v) > 256 {
			s.holder, s.name, s.size = holder, name, len(v)
		}
	}
}

// middle cuts s to about n bytes, head and tail kept.
func middle(s string, n int) string {
	if len(s) <= n {
		return s
	}
	mark := fmt.Sprintf("\n… %d bytes left out here …\n", len(s)-n)
	half := max((n-len(mark))/2, 0)
	head := strings.ToValidUTF8(s[:half], "")
	tail := strings.ToValidUTF8(s[len(s)-half:], "")
	return head + mark + tail
}

// estimateTokens is a rough and rather high count of what a model's tokenizer
// makes of s: a token per five letters of a word, per three digits, per sign.
func estimateTokens(s string) int {
	const (
		none = iota
		letter
		digit
		space
		sign
	)
	n, kind, run := 0, none, 0
	flush := func() {
		switch kind {
		case letter:
			n += (run + 4) / 5
		case digit:
			n += (run + 2) / 3
		case space:
			n += run / 8
		case sign:
			n += (run + 1) / 2
		}
		run = 0
	}
	for _, r := range s {
		k := sign
		switch {
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			k = letter
		case r >= '0' && r <= '9':
			k = digit
		case r == ' ' || r == '\n' || r == '\t':
			k = space
		case r >= 0x80:
			flush()
			kind = none
			n++
			continue
		}
		if k != kind {
			flush()
			kind = k
		}
		run++
	}
	flush()
	return n
}
