package mcpserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

// The contract with existing clients, typed by hand and never generated: what
// stands here may be added to and never renamed or removed. TestContract shows
// every change; this test shows those that break somebody.

// cmd is what every tool that runs a command returns of it.
const cmd = " command exit_code stdout stderr duration_ms stdout_truncated stderr_truncated stdout_bytes stderr_bytes task_id"

// promised are the tools: parameters, of which ! must be there and = has a
// default; the result's fields; and the fields of what lies in a field.
var promised = []struct {
	tool, parameters, result string
	nested                   map[string]string
}{
	{"create_instance", "workspace_root! ttl_minutes auto_bootstrap=true wait_for_ready=false overrides request_id",
		"instance_id backend status created_at expires_at ssh_port workspace_root workspace_id auto_bootstrap wait_for_ready bootstrap capabilities accelerator start_kind timings_ms",
		map[string]string{"bootstrap": "runtime_ready services connection_env workspace_paths sync"}},
	{"list_instances", "include_expired=false", "instances backend backend_available backend_version backend_error reconciliation_error",
		map[string]string{"instances": "instance_id backend_name profile_name workspace_root workspace_id status created_at expires_at last_used_at owner_session ssh_port backend_instance_name runtime_name runtime_ready docker_command live_exists live_status reconciliation_drift"}},
	{"destroy_instance", "instance_id! force=false", "instance_id backend status", nil},
	{"extend_instance_ttl", "instance_id! ttl_minutes!", "instance_id expires_at ttl_extended_minutes", nil},
	{"validate_workspace_config", "workspace_root! overrides", "workspace_root workspace_id sources config valid diagnostics", nil},
	{"prepare_workspace", "instance_id! include_services=true wait_for_ready=false sync_workspace=true",
		"instance_id workspace_root workspace_id runtime runtime_ready docker_command network include_services services wait_for_ready service_readiness connection_env env_injections workspace_paths sync",
		map[string]string{"network": "name status", "services": "status container image host port database", "service_readiness": "ready attempts", "env_injections": "path keys", "workspace_paths": "preferred writable"}},

	{"run_command", "instance_id! command! timeout_seconds=600 cwd env stdin user max_output_bytes=65536 request_id", "instance_id" + cmd, nil},
	{"start_background_task", "instance_id! command! cwd env request_id", "task_id instance_id status pid log_path", nil},
	{"get_task_status", "task_id! wait_seconds=0", "task_id instance_id status pid created_at started_at finished_at exit_code signal error_message log_path", nil},
	{"get_task_logs", "task_id! tail=500 stream offset max_bytes", "task_id instance_id status logs tail next_offset total_bytes dropped_bytes", nil},
	{"stop_task", "task_id! force=false", "task_id instance_id status exit_code signal", nil},
	{"list_tasks", "instance_id status kind=background", "tasks", map[string]string{"tasks": "task_id instance_id status"}},

	{"copy_to_instance", "instance_id! local_path! remote_path!", "instance_id local_path remote_path bytes files status", nil},
	{"copy_from_instance", "instance_id! local_path! remote_path!", "instance_id local_path remote_path bytes files status", nil},
	{"sync_workspace_to_instance", "instance_id! local_path remote_path exclude", "instance_id local_path remote_path archive_bytes exclude files_sent files_unchanged files_deleted conflicts status", nil},
	{"sync_instance_to_workspace", "instance_id! remote_path local_path dry_run=false on_conflict=fail", "instance_id remote_path local_path created updated deleted conflicts refused status", nil},
	{"collect_artifacts", "instance_id! remote_paths! local_dest! max_total_bytes", "instance_id local_dest artifacts failed manifest_path",
		map[string]string{"artifacts": "remote_path local_path bytes sha256 mode"}},

	{"docker_build", "instance_id! context_path! image_tag! dockerfile build_args target no_cache=false", "instance_id image_tag cached_image_tag cache_strategy cache_hit validation workspace_state" + cmd,
		map[string]string{"workspace_state": "git_commit git_short git_branch git_dirty dependencies_hash dockerfile_hash content_hash build_timestamp"}},
	{"docker_run", "instance_id! image! command name env volumes ports workdir detach=true privileged=false", "instance_id container" + cmd, nil},
	{"docker_exec", "instance_id! container! command! timeout_seconds=600", "instance_id container" + cmd, nil},
	{"docker_logs", "instance_id! container! tail=500 follow=false since", "instance_id container" + cmd, nil},
	{"docker_compose", "instance_id! project_dir! action! file services detach=true command follow=false since tail", "instance_id project_dir action compose_follow compose_since compose_tail bridge connection_env" + cmd,
		map[string]string{"bridge": "status network network_status containers_seen containers_connected containers_already_connected"}},
	{"docker_ps", "instance_id! all=false", "instance_id all containers" + cmd, nil},
	{"docker_images", "instance_id!", "instance_id images" + cmd, nil},
	{"docker_cleanup", "instance_id! mode!", "instance_id mode reclaimed_bytes" + cmd, nil},
	{"validate_image", "instance_id! image_name! workspace_root checks", "instance_id valid reasons warnings recommendation workspace_state image_metadata expected_image_tag",
		map[string]string{"image_metadata": "image_name git_commit git_branch build_timestamp dependencies_hash age_hours labels",
			"workspace_state": "git_commit git_short git_branch git_dirty dependencies_hash dockerfile_hash content_hash build_timestamp"}},
}

// choices are the values that a parameter takes.
var choices = map[string]string{
	"docker_compose.action":                  "up down ps logs pull build restart stop exec",
	"get_task_logs.stream":                   "stdout stderr both",
	"list_tasks.kind":                        "background command all",
	"list_tasks.status":                      "running succeeded failed stopped",
	"sync_instance_to_workspace.on_conflict": "fail keep_host keep_guest",
	"docker_cleanup.mode":                    "safe aggressive",
}

const promisedCodes = "BACKEND_UNAVAILABLE BACKEND_COMMAND_FAILED WORKSPACE_CONFIG_INVALID WORKSPACE_BINDING_REQUIRED WORKSPACE_BOOTSTRAP_FAILED WORKSPACE_ENV_INJECTION_FAILED " +
	"TTL_INVALID INSTANCE_LIMIT_EXCEEDED INSTANCE_NOT_FOUND INSTANCE_TERMINAL INSUFFICIENT_HOST_RESOURCES INSUFFICIENT_DISK RUNTIME_NOT_READY DOCKER_COMMAND_FAILED CONTAINER_NOT_FOUND " +
	"SERVICE_NOT_READY PREBUILT_IMAGE_INVALID TASK_NOT_FOUND TASK_ALREADY_FINISHED INVALID_ARGUMENT PATH_NOT_ALLOWED COMMAND_TIMED_OUT CANCELLED OUTCOME_UNKNOWN SYNC_CONFLICT " +
	"UNSUPPORTED_BY_BACKEND IMAGE_NOT_FOUND INSTANCE_LOST INTERNAL"

// promisedVariables are the environment's, with the defaults that are one value.
var promisedVariables = map[string]string{
	"SANDBOXFORGE_HOME": "*", "MCP_HTTP_HOST": "127.0.0.1", "MCP_HTTP_ALLOW_NON_LOOPBACK": "0", "MCP_HTTP_TOKEN": "", "MCP_HTTP_TOKEN_FILE": "", "MCP_HTTP_PORT": "8765",
	"MCP_ENABLE_HTTP": "1", "MCP_ENABLE_STDIO": "auto", "LEASE_DB_PATH": "state/leases.db", "MAX_INSTANCES": "3", "DEFAULT_TTL_MINUTES": "30", "MAX_TTL_MINUTES": "120",
	"SANDBOX_SWEEPER_INTERVAL_SECONDS": "60", "LIMA_SWEEPER_INTERVAL_SECONDS": "", "SANDBOX_BACKEND": "auto", "SANDBOX_ACCEL": "auto", "SANDBOX_WARM_POOL": "0",
	"SANDBOX_WORKSPACE_ROOTS": "", "SANDBOX_ALLOWED_ROOTS": "", "SANDBOX_LOG_LEVEL": "info", "SANDBOX_LOG_FORMAT": "text", "MCP_SESSION_ID": "local",
	"HYPERV_SWITCH_NAME": "Default Switch", "HYPERV_BASE_VHDX": "", "HYPERV_STORAGE_DIR": "state/hyperv", "HYPERV_SSH_USER": "ubuntu", "HYPERV_SSH_KEY_PATH": "", "HYPERV_SSH_PORT": "22",
	"HYPERV_BOOT_TIMEOUT_SECONDS": "180",
}

// promisedKeys are the configuration's, with their defaults as JSON on Linux;
// "…" at the end of a list: more may follow; *: the host's own.
var promisedKeys = map[string]string{
	"vm.cpus": "1", "vm.memory_gib": "2", "vm.disk_gib": "15", "vm.arch": "*", "vm.vm_type": `"qemu"`, "vm.template": `"template:docker"`, "vm.allowed_templates": `["template:docker"]`, "vm.image": "null",
	"docker.install_if_missing": "true",
	"build.enable_buildkit":     "true", "build.min_free_gib": "3", "build.prebuilt.enabled": "true", "build.prebuilt.validation": `"strict"`,
	"build.prebuilt.staleness_check.check_git_commit": "true", "build.prebuilt.staleness_check.check_dependencies": "true",
	"build.prebuilt.staleness_check.check_age_threshold": `"24h"`, "build.prebuilt.staleness_check.on_stale": `"rebuild"`,
	"build.image_caching.enabled": "true", "build.image_caching.strategy": `"smart"`, "build.image_caching.tag_format": `"{image}:{git_short}-{deps_hash}"`,
	"build.staleness_detection.check_git_commit": "true", "build.staleness_detection.check_git_dirty": "true", "build.staleness_detection.check_dockerfile": "true",
	"build.staleness_detection.check_dependencies": `["pyproject.toml","uv.lock",…`, "build.staleness_detection.max_age_threshold": `"24h"`,
	"build.staleness_detection.on_stale": `"rebuild"`, "build.staleness_detection.on_dirty_workspace": `"warn_and_rebuild"`, "build.staleness_detection.on_missing": `"build"`,
	"infra.ensure_network": "true", "infra.bridge_to_compose_network": "true", "infra.include_services_by_default": "true", "infra.network_name": "null", "infra.network_name_prefix": `"lima-net"`,
	"infra.mysql.enabled": "false", "infra.mysql.image": `"mysql:8.0"`, "infra.mysql.root_password": "null", "infra.mysql.database": `"app"`, "infra.mysql.container_name_prefix": `"lima-mysql"`,
	"infra.mysql.extra_env": "{}", "infra.mysql.inject_env_to": `".env"`,
	"infra.redis.enabled": "false", "infra.redis.image": `"redis:7-alpine"`, "infra.redis.container_name_prefix": `"lima-redis"`, "infra.redis.extra_env": "{}", "infra.redis.inject_env_to": `".env"`,
	"infra.inject_env_on_host": "false",
	"sync.include_git":         "false", "sync.exclude_patterns": `[".venv",".pytest_cache",".uv-cache","__pycache__"]`, "sync.use_gitignore": "false",
}

// operatorKeys may only be set in the operator's files.
var operatorKeys = []string{"vm.allowed_templates", "infra.inject_env_on_host"}

// schemaOf is a schema as a client sees it.
type schemaOf struct {
	Required   []string             `json:"required"`
	Properties map[string]*schemaOf `json:"properties"`
	Items      *schemaOf            `json:"items"`
	AnyOf      []*schemaOf          `json:"anyOf"`
	Additional json.RawMessage      `json:"additionalProperties"`
	Default    json.RawMessage      `json:"default"`
	Enum       []string             `json:"enum"`
}

// fields are the properties of an object, of the objects in a list or a map, or
// of what may be null.
func (s *schemaOf) fields() map[string]*schemaOf {
	all := map[string]*schemaOf{}
	if s == nil {
		return all
	}
	for k, v := range s.Properties {
		all[k] = v
	}
	inner := append([]*schemaOf{s.Items}, s.AnyOf...)
	var more schemaOf
	if json.Unmarshal(s.Additional, &more) == nil {
		inner = append(inner, &more)
	}
	for _, i := range inner {
		if i != nil {
			for k, v := range i.fields() {
				all[k] = v
			}
		}
	}
	return all
}

func readSchema(t *testing.T, v any) *schemaOf {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var s schemaOf
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return &s
}

// TestToolsKeepTheContract asks a server for its tools, as a client does.
func TestToolsKeepTheContract(t *testing.T) {
	everyLink(t, func(t *testing.T, _ *fake, c *mcp.ClientSession, _ func(*mcp.ClientSession)) {
		listed, err := c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		tools := map[string]*mcp.Tool{}
		for _, tool := range listed.Tools {
			tools[tool.Name] = tool
		}
		for _, p := range promised {
			tool := tools[p.tool]
			if tool == nil {
				t.Errorf("%s is gone", p.tool)
				continue
			}
			in, out := readSchema(t, tool.InputSchema), readSchema(t, tool.OutputSchema)
			var required []string
			for _, word := range strings.Fields(p.parameters) {
				name, def, hasDefault := strings.Cut(strings.TrimSuffix(word, "!"), "=")
				if strings.HasSuffix(word, "!") {
					required = append(required, name)
				}
				s := in.Properties[name]
				if s == nil {
					t.Errorf("%s no longer takes %s", p.tool, name)
					continue
				}
				if got := strings.Trim(string(s.Default), `"`); hasDefault && got != def {
					t.Errorf("%s: %s is %s unless given, want %s", p.tool, name, got, def)
				}
				if want := choices[p.tool+"."+name]; want != "" && !slices.Equal(s.Enum, strings.Fields(want)) {
					t.Errorf("%s: %s takes %v, want %s", p.tool, name, s.Enum, want)
				}
			}
			slices.Sort(required)
			slices.Sort(in.Required)
			if d := cmp.Diff(required, in.Required); d != "" {
				t.Errorf("%s: what must be given (-promised +now):\n%s", p.tool, d)
			}
			missing := func(where, want string, have map[string]*schemaOf) {
				for _, name := range strings.Fields(want) {
					if have[name] == nil {
						t.Errorf("%s: the result's %s no longer has %s", p.tool, where, name)
					}
				}
			}
			missing("top", p.result, out.Properties)
			for field, want := range p.nested {
				missing(field, want, out.Properties[field].fields())
			}
		}
	})
}

// TestNoToolIsForgotten: each is in the table, or new since the earlier version.
func TestNoToolIsForgotten(t *testing.T) {
	known := []string{"fork_instance", "snapshot_instance", "restore_instance", "list_snapshots", "delete_snapshot"}
	for _, p := range promised {
		known = append(known, p.tool)
	}
	var have []string
	for _, tool := range catalog() {
		have = append(have, tool.spec.Name)
	}
	slices.Sort(known)
	slices.Sort(have)
	if d := cmp.Diff(known, have); d != "" {
		t.Errorf("tools (-known +now):\n%s", d)
	}
}

// TestReadmeListsEveryTool: README.md's table of tools is the catalog's.
func TestReadmeListsEveryTool(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Tools\n")
	if !ok {
		t.Fatal("README.md has no section Tools")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var listed, have []string
	for line := range strings.Lines(section) {
		if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| `") {
			for _, name := range strings.Split(cell, ", ") {
				listed = append(listed, strings.Trim(name, "`"))
			}
		}
	}
	for _, tool := range catalog() {
		have = append(have, tool.spec.Name)
	}
	slices.Sort(listed)
	slices.Sort(have)
	if d := cmp.Diff(have, listed); d != "" {
		t.Errorf("tools (-catalog +README.md):\n%s", d)
	}
}

func TestErrorCodesKeepTheContract(t *testing.T) {
	for _, code := range strings.Fields(promisedCodes) {
		if !slices.Contains(fault.Codes(), fault.Code(code)) {
			t.Errorf("%s is gone", code)
		}
	}
}

func TestVariablesKeepTheContract(t *testing.T) {
	got := map[string]string{}
	for _, v := range config.EnvVars() {
		got[v.Name] = v.Default
	}
	for name, def := range promisedVariables {
		if have, ok := got[name]; !ok || def != "*" && have != def {
			t.Errorf("%s: default %q (there: %t), want %q", name, have, ok, def)
		}
		// A bad value shows that somebody reads it; the other way round, a value
		// that is taken would show nothing.
		if _, err := config.LoadSettings(func(k string) string {
			return map[string]string{"HOME": "/h", name: "\x00"}[k]
		}, "linux"); err == nil || !strings.Contains(fmt.Sprint(fault.From(err).Details), name) {
			t.Errorf("%s is not read: %v", name, err)
		}
	}
}

func TestConfigurationKeepsTheContract(t *testing.T) {
	keys := map[string]config.Key{}
	for _, k := range config.Schema() {
		keys[k.Path] = k
	}
	home := t.TempDir()
	if runtime.GOOS != "linux" {
		delete(promisedKeys, "vm.vm_type") // differs by platform
	}
	resolved, err := json.Marshal(config.Load(config.Input{UserHome: home, ConfigHome: home, WorkspaceRoot: t.TempDir(), Backend: "qemu"}).Tree)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(resolved, &tree); err != nil {
		t.Fatal(err)
	}
	for path, want := range promisedKeys {
		k, ok := keys[path]
		if !ok {
			t.Errorf("%s is gone", path)
			continue
		}
		if k.Operator != slices.Contains(operatorKeys, path) {
			t.Errorf("%s: the operator's: %t", path, k.Operator)
		}
		var at any = tree
		for part := range strings.SplitSeq(path, ".") {
			m, _ := at.(map[string]any)
			at = m[part]
		}
		b, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		if start, open := strings.CutSuffix(want, "…"); want != "*" && string(b) != want && (!open || !strings.HasPrefix(string(b), start)) {
			t.Errorf("%s is %s unless set, want %s", path, b, want)
		}
	}
}
