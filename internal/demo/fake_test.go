package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The fake server: this test binary, started by the demo. It speaks real MCP
// over stdio and keeps one instance as a file, so that a second server sees
// what the first one made.
const (
	fakeState = "DEMO_TEST_STATE"
	fakeMode  = "DEMO_TEST_MODE"
)

type fake struct {
	state, mode string
	server      *mcp.Server
}

type object = map[string]any

func serveFake(state string) int {
	f := &fake{state: state, mode: os.Getenv(fakeMode), server: mcp.NewServer(&mcp.Implementation{Name: "fake", Version: "0"}, nil)}
	if f.mode == "nostart" {
		fmt.Fprintln(os.Stderr, "the fake does not want to")
		return 1
	}
	if os.Getenv("MCP_ENABLE_HTTP") != "0" {
		fmt.Fprintln(os.Stderr, "HTTP was not switched off")
		return 1
	}
	f.tool("validate_workspace_config", func(object) (object, error) {
		return object{"valid": true, "sources": []string{"defaults", "file"}, "diagnostics": []any{}}, nil
	})
	f.tool("create_instance", func(args object) (object, error) {
		f.write("instance", args["workspace_root"].(string))
		return object{
			"instance_id": "inst_1", "backend": "fake", "accelerator": "none", "start_kind": "cold", "timings_ms": object{"boot": 12},
			"bootstrap": object{"runtime_ready": true, "sync": object{"files_sent": 11, "remote_path": "/workspace"}},
		}, nil
	})
	f.tool("list_instances", func(object) (object, error) {
		list := []any{}
		if root := f.read("instance"); root != "" {
			list = append(list, object{"instance_id": "inst_1", "backend_instance_name": "agent-1", "workspace_root": root, "status": "running"})
		}
		return object{"instances": list}, nil
	})
	f.tool("run_command", func(args object) (object, error) {
		out := "ok 1 - a test\nok 2 - another\nrequests   240\n"
		if strings.HasPrefix(args["command"].(string), "uname") {
			out = "Linux fake 9.9.9 x86_64\nPRETTY_NAME=\"fake\"\n"
		}
		code := 0
		if f.mode == "exit1" {
			code = 1
		}
		return object{"exit_code": code, "stdout": out, "stderr": ""}, nil
	})
	f.tool("start_background_task", func(object) (object, error) {
		return object{"task_id": "task_1", "status": "running"}, nil
	})
	f.tool("get_task_status", func(object) (object, error) { return object{"status": "succeeded"}, nil })
	f.tool("get_task_logs", func(object) (object, error) { return object{"logs": "part 1\ndone\n"}, nil })
	f.tool("collect_artifacts", func(args object) (object, error) {
		var list []any
		for _, name := range []string{"summary.txt", "summary.json"} {
			path := filepath.Join(args["local_dest"].(string), name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return nil, err
			}
			if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
				return nil, err
			}
			sum := sha256.Sum256([]byte(name))
			if f.mode == "wrongsum" {
				sum[0]++
			}
			list = append(list, object{"remote_path": "/workspace/report/" + name, "local_path": path, "bytes": len(name), "sha256": hex.EncodeToString(sum[:])})
		}
		return object{"artifacts": list, "failed": []any{}}, nil
	})
	f.tool("sync_instance_to_workspace", func(args object) (object, error) {
		if args["dry_run"] != true {
			path := filepath.Join(f.read("instance"), "report", "summary.txt")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return nil, err
			}
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				return nil, err
			}
		}
		return object{"created": []string{"report/summary.txt"}}, nil
	})
	f.tool("destroy_instance", func(args object) (object, error) {
		if f.mode != "stays" || args["force"] == true {
			os.Remove(filepath.Join(f.state, "instance"))
		}
		return object{"instance_id": "inst_1", "status": "destroyed"}, nil
	})
	if err := f.server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		return 1
	}
	return 0
}

func (f *fake) write(name, text string) {
	os.WriteFile(filepath.Join(f.state, name), []byte(text), 0o600)
}

func (f *fake) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(f.state, name))
	return string(b)
}

// tool adds a tool, with the misbehaviour that the mode asks of it.
func (f *fake) tool(name string, run func(object) (object, error)) {
	f.server.AddTool(&mcp.Tool{Name: name, InputSchema: object{"type": "object"}}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args object
		if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
			return nil, err
		}
		if token := r.Params.GetProgressToken(); token != nil {
			r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: "boot: half way", Progress: 1})
		}
		switch f.mode {
		case "fail:" + name:
			text, _ := json.Marshal(object{"error_code": "INSUFFICIENT_HOST_RESOURCES", "message": "no room",
				"details": object{"probable_cause": "it is full", "next_steps": []string{"make room"}}})
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}}, nil
		case "block:" + name:
			out, err := run(args) // what it makes is there although the answer never comes
			_, _ = out, err
			f.write("blocked", "")
			<-ctx.Done()
			return nil, ctx.Err()
		case "die:" + name:
			if f.read("died") == "" {
				f.write("died", "once")
				os.Exit(3)
			}
		}
		out, err := run(args)
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{StructuredContent: out, Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
	})
}
