package mcpserver

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"sandboxforge/internal/fault"
)

type sample struct {
	ID      string            `json:"id" jsonschema:"an id"`
	Count   *int              `json:"count,omitempty" jsonschema:"a count"`
	Ratio   float64           `json:"ratio,omitempty" jsonschema:"a ratio"`
	Mode    string            `json:"mode,omitempty" jsonschema:"a mode"`
	On      *bool             `json:"on,omitempty" jsonschema:"a switch"`
	Env     map[string]string `json:"env,omitempty" jsonschema:"variables"`
	Paths   []string          `json:"paths,omitempty" jsonschema:"paths"`
	Tree    map[string]any    `json:"tree,omitempty" jsonschema:"anything"`
	Minutes *float64          `json:"minutes,omitempty" jsonschema:"minutes"`
}

var sampleRules = rules{
	"id":      {pattern: `^x_[0-9]+$`, code: fault.InstanceNotFound},
	"count":   {min: num(1), max: num(10)},
	"ratio":   {min: num(0), max: num(1)},
	"mode":    {enum: []string{"fast", "slow"}},
	"paths":   {minItems: 1},
	"minutes": {min: num(1), max: num(60), code: fault.TTLInvalid},
}

func sampleValidator() *validator { return newValidator(inputSchema[sample](sampleRules), sampleRules) }

func TestArgumentsThatFit(t *testing.T) {
	v := sampleValidator()
	three := 3
	on := true
	for args, want := range map[string]sample{
		`{"id":"x_1"}`:                            {ID: "x_1"},
		`{"id":"x_1","count":3.0}`:                {ID: "x_1", Count: &three},
		`{"id":"x_1","count":0.3e1}`:              {ID: "x_1", Count: &three},
		`{"id":"x_1","count":null,"env":null}`:    {ID: "x_1"},
		`{"id":"x_1","on":true}`:                  {ID: "x_1", On: &on},
		`{"id":"x_1","env":{"A":"b"}}`:            {ID: "x_1", Env: map[string]string{"A": "b"}},
		`{"id":"x_1","tree":{"a":{"b":[1,"c"]}}}`: {ID: "x_1", Tree: map[string]any{"a": map[string]any{"b": []any{1.0, "c"}}}},
	} {
		var got sample
		if f := v.decode(json.RawMessage(args), &got); f != nil {
			t.Errorf("%s: %v", args, f)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v", args, got)
		}
	}
}

func TestArgumentsThatDoNotFit(t *testing.T) {
	v := sampleValidator()
	for _, c := range []struct {
		args  string
		code  fault.Code
		field string
		says  string
	}{
		{``, fault.InvalidArgument, "id", "is required"},
		{`null`, fault.InvalidArgument, "id", "is required"},
		{`[]`, fault.InvalidArgument, "arguments", "must be an object"},
		{`"x"`, fault.InvalidArgument, "arguments", "must be an object"},
		{`{"id":`, fault.InvalidArgument, "", "not JSON"},
		{`{"id":"x_1"} {}`, fault.InvalidArgument, "", "followed"},
		{`{"id":7}`, fault.InvalidArgument, "id", "must be a string (got 7)"},
		{`{"id":null}`, fault.InvalidArgument, "id", "must be a string"},
		{`{"id":"nope"}`, fault.InstanceNotFound, "id", "must match"},
		{`{"id":"x_1","count":0}`, fault.InvalidArgument, "count", "at least 1"},
		{`{"id":"x_1","count":1e9}`, fault.InvalidArgument, "count", "at most 10"},
		{`{"id":"x_1","count":2.5}`, fault.InvalidArgument, "count", "whole number"},
		{`{"id":"x_1","count":99999999999999999999}`, fault.InvalidArgument, "count", "whole number"},
		{`{"id":"x_1","count":1e999999999}`, fault.InvalidArgument, "count", "64-bit float"},
		{`{"id":"x_1","count":"3"}`, fault.InvalidArgument, "count", "must be a number"},
		{`{"id":"x_1","count":true}`, fault.InvalidArgument, "count", "must be a number"},
		{`{"id":"x_1","mode":"Fast"}`, fault.InvalidArgument, "mode", `"fast" or "slow"`},
		{`{"id":"x_1","on":"yes"}`, fault.InvalidArgument, "on", "true or false"},
		{`{"id":"x_1","env":{"A":1}}`, fault.InvalidArgument, "env.A", "must be a string"},
		{`{"id":"x_1","env":[]}`, fault.InvalidArgument, "env", "must be an object"},
		{`{"id":"x_1","paths":[]}`, fault.InvalidArgument, "paths", "at least 1"},
		{`{"id":"x_1","paths":["a",2]}`, fault.InvalidArgument, "paths[1]", "must be a string"},
		{`{"id":"x_1","minutes":0}`, fault.TTLInvalid, "minutes", "at least 1"},
		{`{"id":"x_1","minutes":"0"}`, fault.InvalidArgument, "minutes", "must be a number"},
		{`{"id":"x_1","minutes":0,"bogus":1}`, fault.InvalidArgument, "bogus", "not a parameter"},
		{`{"id":"x_1","ID":"x_1"}`, fault.InvalidArgument, "ID", "not a parameter"},
	} {
		var got sample
		f := v.decode(json.RawMessage(c.args), &got)
		if f == nil {
			t.Errorf("%s: accepted", c.args)
			continue
		}
		field, _ := f.DetailMap()["field"].(string)
		if f.Code != c.code || field != c.field || !strings.Contains(f.Error(), c.says) {
			t.Errorf("%s: %s on %q: %s", c.args, f.Code, field, f.Error())
		}
	}
}

func TestViolationsNameValueAndWhatIsAllowed(t *testing.T) {
	var got sample
	f := sampleValidator().decode(json.RawMessage(`{"id":"x_1","count":11,"mode":"x"}`), &got)
	d := f.DetailMap()
	if d["field"] != "count" || d["allowed"] != "1 to 10" || toJSON(d["value"]) != "11" || len(d["violations"].([]violation)) != 2 {
		t.Errorf("details: %s", toJSON(d))
	}
	long := strings.Repeat("x", 1<<20)
	f = sampleValidator().decode(json.RawMessage(`{"id":"`+long+`"}`), &got)
	if n := len(toJSON(f.DetailMap())); n > 4096 {
		t.Errorf("the error repeats %d bytes of a bad value", n)
	}
}

// What the validator accepts is valid for a schema library too, and always
// unmarshals.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"id":"x_1","count":3.0,"ratio":0.5,"mode":"fast","on":false,"env":{"A":"b"},"paths":["p"],"tree":{"a":1}}`,
		`{"id":"x_1","count":1e1}`, `{"id":"x_1","minutes":1e-400}`, `[]`, `{"id":"\ud800"}`, `{"id":"x_1","tree":{"":null}}`,
	} {
		f.Add(s)
	}
	v := sampleValidator()
	lib, err := v.schema.Resolve(&jsonschema.ResolveOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var got sample
		if bad := v.decode(json.RawMessage(raw), &got); bad != nil {
			if bad.Code == "" || bad.Message == "" {
				t.Fatalf("%q: an empty fault", raw)
			}
			return
		}
		var again map[string]any
		if err := json.Unmarshal([]byte(toJSON(got)), &again); err != nil {
			t.Fatal(err)
		}
		if err := lib.Validate(again); err != nil {
			t.Fatalf("%q was accepted as %s, which is invalid: %v", raw, toJSON(got), err)
		}
	})
}
