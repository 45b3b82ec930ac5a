package mcpserver

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The contract that existing clients rely on: names of tools, parameters and
// result fields, and which parameters must be there.
func TestContract(t *testing.T) {
	type entry struct {
		Required, Optional, Result []string
	}
	got := map[string]entry{}
	for _, tool := range catalog() {
		in, out := tool.mcp.InputSchema.(*jsonschema.Schema), tool.mcp.OutputSchema.(*jsonschema.Schema)
		var e entry
		for _, name := range slices.Sorted(maps.Keys(in.Properties)) {
			if slices.Contains(in.Required, name) {
				e.Required = append(e.Required, name)
			} else {
				e.Optional = append(e.Optional, name)
			}
		}
		e.Result = slices.Sorted(maps.Keys(out.Properties))
		got[tool.spec.Name] = e
	}
	raw, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "contract.json")
	if *update {
		if err := os.WriteFile(golden, append(raw, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.TrimSpace(string(want)), string(raw)); d != "" {
		t.Errorf("the contract has changed (-golden +now); names may be added and never renamed or removed; then run with -update:\n%s", d)
	}
}

func TestSchemasAreFitForEveryClient(t *testing.T) {
	for _, tool := range catalog() {
		in, out := tool.mcp.InputSchema.(*jsonschema.Schema), tool.mcp.OutputSchema.(*jsonschema.Schema)
		name := tool.spec.Name
		if !isFalse(in.AdditionalProperties) {
			t.Errorf("%s takes unknown parameters", name)
		}
		walk(in, func(s *jsonschema.Schema) {
			if len(s.Types) > 0 {
				t.Errorf("%s: input has a type union %v", name, s.Types)
			}
			if (s.Type == "integer" || s.Type == "number") && (s.Minimum == nil || s.Maximum == nil) {
				t.Errorf("%s: a number without bounds: %q", name, s.Description)
			}
		})
		walk(out, func(s *jsonschema.Schema) {
			if len(s.Types) > 0 {
				t.Errorf("%s: output has a type union %v", name, s.Types)
			}
		})
		for p, s := range in.Properties {
			if s.Type == "string" && s.Pattern == "" && s.Enum == nil && s.MaxLength == nil && p != "stdin" {
				t.Errorf("%s: string %s has no constraint", name, p)
			}
			if p != "exclude" && p != "overrides" && !slices.Contains(in.Required, p) && len(s.Description) < 12 {
				t.Errorf("%s: %s is hardly described: %q", name, p, s.Description)
			}
		}
		a := tool.mcp.Annotations
		if tool.spec.Title == "" || len(tool.spec.Description) < 80 || a.Title == "" || a.DestructiveHint == nil || a.OpenWorldHint == nil {
			t.Errorf("%s: title, description or annotations are missing", name)
		}
		if a.ReadOnlyHint && *a.DestructiveHint {
			t.Errorf("%s cannot be read-only and destructive", name)
		}
	}
}

// Whatever a service returns, down to a zero result, must match the schema:
// TypeScript clients throw otherwise.
func TestResultsMatchTheirSchema(t *testing.T) {
	for _, tool := range catalog() {
		for _, full := range []bool{false, true} {
			out := tool.result()
			if full {
				fill(reflect.ValueOf(out).Elem(), 0)
			}
			res := tool.success(out, "text")
			if res.IsError {
				t.Errorf("%s (full %t): %s", tool.spec.Name, full, toJSON(res.Content))
			}
			if strings.Contains(toJSON(res.StructuredContent), "null") && full {
				t.Errorf("%s: a full result has null: %s", tool.spec.Name, toJSON(res.StructuredContent))
			}
		}
	}
}

// fill gives every field some value.
func fill(v reflect.Value, depth int) {
	if depth > 6 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		elem := reflect.New(v.Type().Elem()).Elem()
		fill(elem, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), elem)
	case reflect.Interface:
		v.Set(reflect.ValueOf("anything"))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	default:
		panic(fmt.Sprintf("fill does not know %v", v.Type()))
	}
}

func toJSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func TestTypesWithoutFaithfulSchemaAreRefused(t *testing.T) {
	type inner struct {
		Data []byte `json:"data"`
	}
	for name, make := range map[string]func(){
		"raw":      func() { outputSchema[struct{ Raw json.RawMessage }]() },
		"bytes":    func() { outputSchema[struct{ In []inner }]() },
		"duration": func() { outputSchema[struct{ D *time.Duration }]() },
		"no description": func() {
			inputSchema[struct {
				X string `json:"x"`
			}](nil)
		},
		"rule for nothing": func() { inputSchema[struct{}](rules{"y": yes}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			make()
		}()
	}
}

func TestNullable(t *testing.T) {
	s := outputSchema[struct {
		Port  *int     `json:"port"`
		Maybe *int     `json:"maybe,omitempty"`
		List  []string `json:"list"`
	}]()
	if got := toJSON(s.Properties["port"]); got != `{"anyOf":[{"type":"integer"},{"type":"null"}]}` {
		t.Errorf("port: %s", got)
	}
	if got := toJSON(s.Properties["maybe"]); got != `{"type":"integer"}` {
		t.Errorf("maybe: %s", got)
	}
	if got := toJSON(s.Properties["list"]); got != `{"type":"array","items":{"type":"string"}}` {
		t.Errorf("list: %s", got)
	}
}

// A client that believes that a call can be repeated loses work, or does it
// twice: the instructions name exactly the tools that take request_id.
func TestInstructionsNameTheToolsThatTakeARequestID(t *testing.T) {
	sentence := ""
	for _, s := range strings.Split(instructions, ". ") {
		if strings.Contains(s, " take request_id") {
			sentence, _, _ = strings.Cut(s, " take request_id")
		}
	}
	named := strings.FieldsFunc(strings.ReplaceAll(sentence, " and ", ", "), func(r rune) bool { return r == ',' || r == ' ' })
	var take []string
	for _, tool := range catalog() {
		if _, ok := tool.mcp.InputSchema.(*jsonschema.Schema).Properties["request_id"]; ok {
			take = append(take, tool.spec.Name)
		}
	}
	slices.Sort(named)
	slices.Sort(take)
	if !slices.Equal(named, take) {
		t.Errorf("the instructions name %q, the tools that take request_id are %q", named, take)
	}
}
