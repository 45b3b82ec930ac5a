package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

func toolNamed(t *testing.T, name string) *tool {
	t.Helper()
	for _, tool := range catalog() {
		if tool.spec.Name == name {
			return tool
		}
	}
	t.Fatalf("no tool %s", name)
	return nil
}

func TestFailureHasOneObjectInTwoPlaces(t *testing.T) {
	res := failure(fault.Wrap(errors.New("disk full"), fault.InsufficientDisk, "no room").With("free", 7))
	if !res.IsError || res.StructuredContent != nil || len(res.Content) != 1 {
		t.Fatalf("result: %s", toJSON(res))
	}
	var said map[string]any
	if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &said); err != nil {
		t.Fatal(err)
	}
	if toJSON(said) != toJSON(res.Meta) {
		t.Errorf("text %s, _meta %s", toJSON(said), toJSON(res.Meta))
	}
	details, _ := said["details"].(map[string]any)
	if said["error_code"] != "INSUFFICIENT_DISK" || said["message"] != "no room: disk full" || details["probable_cause"] == nil || details["next_steps"] == nil || details["free"] != 7.0 {
		t.Errorf("said %s", toJSON(said))
	}
}

func TestFailureWithDetailsThatAreNoJSON(t *testing.T) {
	res := failure(fault.New(fault.Internal, "odd").With("f", func() {}))
	if !strings.Contains(res.Content[0].(*mcp.TextContent).Text, `"error_code":"INTERNAL"`) {
		t.Errorf("result: %s", toJSON(res))
	}
}

func TestLongFailureIsCut(t *testing.T) {
	res := failure(fault.New(fault.CommandTimedOut, "late").With("stdout", strings.Repeat("some output ", 40000)))
	text := res.Content[0].(*mcp.TextContent).Text
	if n := estimateTokens(text); n > maxResultTokens || !strings.Contains(text, "left out here") || !strings.Contains(text, `"stdout_truncated":true`) {
		t.Errorf("%d tokens", n)
	}
}

func TestResultsStayBelowWhatClientsRefuse(t *testing.T) {
	run := toolNamed(t, "run_command")
	for name, out := range map[string]*sandbox.RunCommandResult{
		"both streams": {CommandResult: sandbox.CommandResult{Stdout: strings.Repeat("a line\n", 30000), Stderr: strings.Repeat("0f3c", 50000)}},
		"wide":         {CommandResult: sandbox.CommandResult{Stdout: strings.Repeat("漢字", 50000)}},
		"escapes":      {CommandResult: sandbox.CommandResult{Stdout: strings.Repeat("\x01", 60000)}},
	} {
		res := run.success(out, "short")
		raw := toJSON(res.StructuredContent)
		if n := estimateTokens(raw); n > maxResultTokens {
			t.Errorf("%s: %d tokens", name, n)
		}
		var got sandbox.RunCommandResult
		if err := json.Unmarshal([]byte(raw), &got); err != nil {
			t.Fatal(err)
		}
		if !got.StdoutTruncated || !strings.Contains(got.Stdout, "left out here") {
			t.Errorf("%s: the cut is not marked", name)
		}
	}
	// The contract's default bound passes as it is.
	plain := &sandbox.RunCommandResult{CommandResult: sandbox.CommandResult{Stdout: strings.Repeat("compiling package number one two\n", 65536/33)}}
	if res := run.success(plain, ""); strings.Contains(toJSON(res.StructuredContent), "left out here") {
		t.Error("64 KiB of ordinary output was cut")
	}
}

func TestLongListsAreCut(t *testing.T) {
	out := &sandbox.SyncFromInstanceResult{}
	for range 20000 {
		out.Created = append(out.Created, "some/path/to/a/file.txt")
	}
	res := toolNamed(t, "sync_instance_to_workspace").success(out, "")
	raw := toJSON(res.StructuredContent)
	var got map[string]any
	if err := json.Unmarshal([]byte(raw), &got); err != nil {
		t.Fatal(err)
	}
	kept := len(got["created"].([]any))
	if n := estimateTokens(raw); n > maxResultTokens || kept == 0 || got["created_omitted"] != float64(20000-kept) {
		t.Errorf("%d tokens, %d kept, %v omitted", n, kept, got["created_omitted"])
	}
}

// TestResultsOfAHostileGuestAreCut: much of what is short each, where no list or
// text is the longest.
func TestResultsOfAHostileGuestAreCut(t *testing.T) {
	labels, long := map[string]string{}, map[string]string{}
	for i := range 100_000 {
		labels[fmt.Sprint("label", i)] = ""
	}
	for i := range 1000 {
		long[fmt.Sprint("label", i)] = strings.Repeat("long ", 1000)
	}
	for name, c := range map[string]sandbox.Container{
		"many labels": {ID: "1", Labels: labels},
		"long labels": {ID: "1", Labels: long},
		"long names":  {ID: "1", Labels: map[string]string{strings.Repeat("name ", 100_000): ""}},
	} {
		tool := toolNamed(t, "docker_ps")
		res := tool.success(&sandbox.DockerPSResult{Containers: []sandbox.Container{c}}, "")
		raw := toJSON(res.StructuredContent)
		if n := estimateTokens(raw); res.IsError || n > maxResultTokens {
			t.Errorf("%s: %d tokens", name, n)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(raw), &got); err != nil {
			t.Fatal(err)
		}
		if err := tool.output.Validate(got); err != nil || got["result_truncated"] != true || len(got["containers"].([]any)) != 1 {
			t.Errorf("%s: %v, %.300s", name, err, raw)
		}
	}
}

func TestResultThatBreaksItsSchemaIsNotLost(t *testing.T) {
	odd := toolNamed(t, "run_command")
	res := odd.success(&sandbox.DestroyInstanceResult{InstanceID: "inst_12345678"}, "")
	text := res.Content[0].(*mcp.TextContent).Text
	if !res.IsError || !strings.Contains(text, "inst_12345678") || !strings.Contains(text, "INTERNAL") {
		t.Errorf("result: %s", text)
	}
}

func TestMiddle(t *testing.T) {
	for _, c := range []struct {
		s string
		n int
	}{{"short", 100}, {strings.Repeat("ä", 1000), 301}, {strings.Repeat("漢", 1000), 400}, {"", 0}} {
		got := middle(c.s, c.n)
		if len(got) > max(c.n, len(c.s)) || strings.ContainsRune(got, '\uFFFD') {
			t.Errorf("middle(%d bytes, %d): %q", len(c.s), c.n, got)
		}
		if len(c.s) > c.n && (len(got) > c.n+8 || !strings.Contains(got, "left out here")) {
			t.Errorf("middle(%d bytes, %d) has %d bytes", len(c.s), c.n, len(got))
		}
	}
}

// logService serves one log by offsets, as the real service does.
type logService struct {
	Service
	log string
}

func (s logService) GetTaskLogs(_ context.Context, r sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error) {
	end := min(*r.Offset+*r.MaxBytes, int64(len(s.log)))
	return &sandbox.GetTaskLogsResult{Logs: s.log[*r.Offset:end], NextOffset: end, TotalBytes: int64(len(s.log))}, nil
}

func TestLogsReadByOffsetsAreWhole(t *testing.T) {
	for name, log := range map[string]string{
		"numbers":        strings.Repeat("1 2 3\n", 30_000),
		"escapes":        strings.Repeat("\x1b[0m\t\"", 20_000),
		"words":          strings.Repeat("word ", 100_000),
		"no ASCII":       strings.Repeat("äöü", 50_000),
		"a single large": strings.Repeat("x", 300_000),
	} {
		var whole strings.Builder
		for off, size := int64(0), int64(1<<20); off < int64(len(log)); {
			at, n := off, size
			res, err := taskLogs(logService{log: log}, t.Context(), sandbox.GetTaskLogsRequest{Offset: &at, MaxBytes: &n})
			if err != nil || res.NextOffset <= off {
				t.Fatalf("%s: at %d: next %d, %v", name, off, res.NextOffset, err)
			}
			if raw, _ := json.Marshal(res); estimateTokens(string(raw)) > maxResultTokens {
				t.Fatalf("%s: %d tokens", name, estimateTokens(string(raw)))
			}
			whole.WriteString(res.Logs)
			off = res.NextOffset
		}
		if whole.String() != log {
			t.Errorf("%s: %d bytes came, want %d", name, whole.Len(), len(log))
		}
	}
}

func TestDiagnosticsOfAWholeFileHaveNoLine(t *testing.T) {
	text := textValidate(&sandbox.ValidateWorkspaceConfigResult{Diagnostics: []sandbox.Diagnostic{
		{Severity: "warning", File: ".old.toml", Message: "rename it"},
		{Severity: "error", File: ".new.toml", Line: 3, Column: 7, Message: "no"},
	}})
	if !strings.Contains(text, "warning: .old.toml: rename it") || !strings.Contains(text, "error: .new.toml:3:7: no") {
		t.Error(text)
	}
}
