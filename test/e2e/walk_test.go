package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/sandbox"
)

// walkCall is a tool call as an example's README shows it: on a line of its own,
// indented, the tool's name and its arguments as JSON.
type walkCall struct {
	tool string
	args obj
}

var callLine = regexp.MustCompile(`(?m)^ {4,}([a-z_]+) (\{.*\})$`)

// walkCalls reads the calls of a README in their order.
func walkCalls(t testing.TB, dir string) []walkCall {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var calls []walkCall
	for _, m := range callLine.FindAllStringSubmatch(string(text), -1) {
		c := walkCall{tool: m[1]}
		if err := json.Unmarshal([]byte(m[2]), &c.args); err != nil {
			t.Fatalf("%s: %v", m[0], err)
		}
		calls = append(calls, c)
	}
	return calls
}

// walkStep is what a README promises of one of its calls.
type walkStep struct {
	tool  string
	check func(w *walk, r json.RawMessage) error
}

// walk makes the calls of an example's README, word for word but for the path
// and the ids, which nobody can know beforehand.
type walk struct {
	*server
	instance, task string
}

func (sv *server) walk(t testing.TB, dir string, steps []walkStep) {
	t.Helper()
	w := &walk{server: sv}
	calls := walkCalls(t, dir)
	for i := range max(len(calls), len(steps)) {
		if i >= len(calls) {
			t.Fatalf("the README no longer has the %s that this test expects", steps[i].tool)
		}
		c := calls[i]
		if i >= len(steps) || c.tool != steps[i].tool {
			t.Fatalf("call %d of the README is %s %v: this test does not know what comes of it", i+1, c.tool, c.args)
		}
		for k, v := range c.args {
			switch v {
			case "/path/to/" + filepath.Base(dir):
				c.args[k] = w.workspace
			case "inst_…":
				c.args[k] = w.instance
			case "task_…":
				c.args[k] = w.task
			}
		}
		var r json.RawMessage
		sv.must(t, c.tool, c.args, &r)
		var ids struct {
			InstanceID string `json:"instance_id"`
			TaskID     string `json:"task_id"`
			ExitCode   int    `json:"exit_code"`
		}
		if err := json.Unmarshal(r, &ids); err != nil {
			t.Fatal(err)
		}
		if ids.ExitCode != 0 {
			t.Fatalf("%s %v: exit code %d: %s", c.tool, c.args, ids.ExitCode, r)
		}
		switch c.tool {
		case "create_instance":
			w.instance = ids.InstanceID
			if err := sv.logBoot(t.Name(), w.instance); err != nil {
				t.Fatal(err)
			}
		case "start_background_task":
			w.task = ids.TaskID
		}
		if check := steps[i].check; check != nil {
			if err := check(w, r); err != nil {
				t.Fatalf("%s %v: %v\n%s", c.tool, c.args, err, r)
			}
		}
	}
}

// as is a check of a decoded result.
func as[T any](ok func(w *walk, r T) bool) func(*walk, json.RawMessage) error {
	return func(w *walk, raw json.RawMessage) error {
		var r T
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		if !ok(w, r) {
			return fmt.Errorf("not what the README promises")
		}
		return nil
	}
}

// has is a check of what a command printed.
func has(parts ...string) func(*walk, json.RawMessage) error {
	return as(func(_ *walk, r struct{ Stdout, Stderr string }) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(r.Stdout+r.Stderr, p) })
	})
}

// TestSampleWalk makes the calls of the sample workspace's README on a VM that
// has these, word for word.
func TestSampleWalk(t *testing.T) {
	// The template with services, which prepare_workspace would have made in the
	// background, is another test's.
	st := newState(t, "SANDBOX_TEMPLATES=plain")
	buildStandins(t, st)
	sample := filepath.Join(repo, "examples", "sample-workspace")
	if err := os.CopyFS(st.workspace, os.DirFS(sample)); err != nil {
		t.Fatal(err)
	}
	// The operator's file, so that the calls can stay as they are.
	write(t, filepath.Dir(st.home), ".config/sandboxforge-mcp/config.toml", "[vm]\nimage = \""+withStandins+"\"\n")
	sv := st.start(t)
	var built string
	sv.walk(t, sample, []walkStep{
		{"validate_workspace_config", as(func(_ *walk, r sandbox.ValidateWorkspaceConfigResult) bool {
			return r.Valid && len(r.Diagnostics) == 0 && len(r.Sources) == 3
		})},
		{"create_instance", as(func(_ *walk, r sandbox.CreateInstanceResult) bool { return r.Status == "running" && r.Bootstrap == nil })},
		{"prepare_workspace", as(func(_ *walk, r sandbox.PrepareWorkspaceResult) bool {
			return r.RuntimeReady && r.Sync != nil && r.Sync.FilesSent >= 10 && len(r.Services) == 2 && r.ServiceReadiness["mysql"].Ready && r.ServiceReadiness["redis"].Ready &&
				r.ConnectionEnv["DB_NAME"] == "links" && r.WorkspacePaths.Preferred == "/workspace"
		})},
		{"run_command", has("lima-mysql-sandbox redis://lima-redis-sandbox:6379/0\n", "REDIS_URL=")},
		{"docker_build", as(func(_ *walk, r sandbox.DockerBuildResult) bool {
			built = r.ImageID
			return !r.CacheHit && built != "" && r.ImageTag == "links:dev"
		})},
		{"validate_image", as(func(_ *walk, r sandbox.ValidateImageResult) bool { return r.Valid && r.Recommendation == "reuse" })},
		{"docker_compose", as(func(_ *walk, r sandbox.DockerComposeResult) bool {
			return r.Bridge.Network == "lima-net-sandbox" && r.Bridge.ContainersConnected == 1
		})},
		{"docker_compose", has("Ran 6 tests", "\nOK\n")},
		{"run_command", nil},
		{"docker_logs", has("GET /healthz", "POST /links")},
		{"collect_artifacts", as(func(w *walk, r sandbox.CollectArtifactsResult) bool {
			if len(r.Artifacts) != 1 || len(r.Failed) != 0 {
				return false
			}
			text, err := os.ReadFile(r.Artifacts[0].LocalPath)
			return err == nil && strings.HasPrefix(r.Artifacts[0].LocalPath, filepath.Join(w.workspace, "artifacts")) &&
				strings.Contains(string(text), `healthz {"mysql": "ok", "redis": "ok"}`) && strings.Contains(string(text), "redirect 302 https://example.com/docs")
		})},
		{"docker_compose", func(w *walk, _ json.RawMessage) error {
			// It ran what docker_build had built, beside the services, which stay.
			out := w.output(t, w.instance, "docker images -q --no-trunc links:dev; docker ps -a --format '{{.Names}}' | sort")
			if want := built + "\nlima-mysql-sandbox\nlima-redis-sandbox\n"; out != want {
				return fmt.Errorf("afterwards there are %q, want %q", out, want)
			}
			if _, err := os.Lstat(filepath.Join(w.workspace, ".env")); !os.IsNotExist(err) {
				return fmt.Errorf("the host has a .env (%v)", err)
			}
			// What the page says about a change on the host.
			return w.changeAndRebuild(t)
		}},
		{"destroy_instance", as(func(_ *walk, r sandbox.DestroyInstanceResult) bool { return r.Status == "destroyed" })},
	})
	if p := st.left(); p != nil {
		t.Errorf("after destroy: %v", p)
	}
}

// changeAndRebuild does what the sample's README says about a change: unchanged
// a build is a cache hit, afterwards it is not, and what runs is new.
func (w *walk) changeAndRebuild(t testing.TB) error {
	args := obj{"instance_id": w.instance, "context_path": ".", "image_tag": "links:dev"}
	var b sandbox.DockerBuildResult
	w.must(t, "docker_build", args, &b)
	if !b.CacheHit {
		return fmt.Errorf("built again although nothing changed: %+v", b.Validation)
	}
	path := filepath.Join(w.workspace, "app", "server.py")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed := strings.Replace(string(text), `{"mysql": "ok", "redis": "ok"}`, `{"mysql": "ok", "redis": "ok", "version": 2}`, 1)
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		return err
	}
	w.must(t, "sync_workspace_to_instance", obj{"instance_id": w.instance}, nil)
	w.must(t, "docker_build", args, &b)
	if b.CacheHit {
		return fmt.Errorf("a changed workspace was not built")
	}
	w.must(t, "docker_compose", obj{"instance_id": w.instance, "project_dir": ".", "action": "up"}, nil)
	if out := w.output(t, w.instance, "sh tests/smoke.sh http://localhost:8080"); !strings.Contains(out, `"version": 2`) {
		return fmt.Errorf("what runs is old: %s", out)
	}
	w.must(t, "docker_compose", obj{"instance_id": w.instance, "project_dir": ".", "action": "down"}, nil)
	return nil
}

// TestSmokeKnowsWhetherTheAppIsUp: the sample's smoke.sh waits for a service that
// starts, and not for one that nobody has started. sleep ends the script here:
// that it is called is all that matters.
func TestSmokeKnowsWhetherTheAppIsUp(t *testing.T) {
	for name, c := range map[string]struct {
		docker string // the body of the docker that it asks
		waits  bool
	}{
		"no container":          {"exit 0", false},
		"a container starts":    {"echo 5f2c1d", true},
		"no docker to be asked": {"exit 1", true},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			for program, body := range map[string]string{"docker": c.docker, "sleep": "echo it sleeps >&2; exit 1"} {
				if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			// Port 0 refuses every connection.
			cmd := exec.CommandContext(t.Context(), "sh", "tests/smoke.sh", "http://127.0.0.1:0")
			cmd.Dir = filepath.Join(repo, "examples", "sample-workspace")
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("it succeeded: %s", out)
			}
			want, not := "is the app up? docker compose ps; docker compose logs app", "it sleeps"
			if c.waits {
				want, not = "it sleeps", want
			}
			if !strings.Contains(string(out), want) || strings.Contains(string(out), not) {
				t.Errorf("it says %q", out)
			}
			if c.waits && !strings.Contains(string(out), "waiting for http://127.0.0.1:0, ") {
				t.Errorf("it waits in silence: %q", out)
			}
		})
	}
}

// TestLogreportWalk does the same with the README of the demo's workspace, which
// needs nothing but the default image.
func TestLogreportWalk(t *testing.T) {
	st := newState(t)
	dir := filepath.Join(repo, "examples", "logreport")
	if err := os.CopyFS(st.workspace, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	st.start(t).walk(t, dir, []walkStep{
		{"validate_workspace_config", as(func(_ *walk, r sandbox.ValidateWorkspaceConfigResult) bool { return r.Valid })},
		{"create_instance", as(func(_ *walk, r sandbox.CreateInstanceResult) bool {
			return r.Bootstrap != nil && r.Bootstrap.RuntimeReady
		})},
		{"run_command", has("# all 10 passed")},
		{"run_command", has("# all 10 passed", "requests   240")},
		{"start_background_task", nil},
		{"get_task_status", as(func(_ *walk, r sandbox.Task) bool { return r.Status == "succeeded" })},
		{"get_task_logs", as(func(_ *walk, r sandbox.GetTaskLogsResult) bool {
			return strings.Contains(r.Logs, "part 5 of 5: requests   237") && strings.Contains(r.Logs, "\ndone\n")
		})},
		{"run_command", nil},
		{"collect_artifacts", as(func(_ *walk, r sandbox.CollectArtifactsResult) bool { return len(r.Artifacts) == 2 })},
		{"sync_instance_to_workspace", as(func(w *walk, r sandbox.SyncFromInstanceResult) bool {
			_, err := os.Stat(filepath.Join(w.workspace, "report"))
			return slices.Contains(r.Created, "report/summary.txt") && os.IsNotExist(err)
		})},
		{"sync_instance_to_workspace", as(func(w *walk, r sandbox.SyncFromInstanceResult) bool {
			_, err := os.Stat(filepath.Join(w.workspace, "report", "summary.txt"))
			return err == nil
		})},
		{"destroy_instance", nil},
	})
}

// TestExamplesListTheirFiles: the tables of files name what is there.
func TestExamplesListTheirFiles(t *testing.T) {
	name := regexp.MustCompile("`([^`]+)`")
	for _, dir := range []string{"sample-workspace", "logreport"} {
		root := filepath.Join(repo, "examples", dir)
		text, err := os.ReadFile(filepath.Join(root, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for line := range strings.Lines(string(text)) {
			if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| `") {
				for _, m := range name.FindAllStringSubmatch(cell, -1) {
					named++
					if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
						t.Errorf("%s: %v", dir, err)
					}
				}
			}
		}
		if named < 6 {
			t.Errorf("%s names %d files", dir, named)
		}
	}
}
