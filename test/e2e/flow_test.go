package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// TestMainJob is the product in one test: a VM with Docker for a workspace,
// the workspace in, a command, an artifact out, the VM gone.
func TestMainJob(t *testing.T) {
	sv, inst := shared(t)
	if inst.Bootstrap == nil || !inst.Bootstrap.RuntimeReady || inst.Bootstrap.Network.Status == "skipped" {
		t.Fatalf("create with wait_for_ready came back without a ready Docker and its network: %+v", inst.Bootstrap)
	}
	if inst.Status != "running" || inst.StartKind != "clone" || inst.Accelerator != accel || inst.Backend != "qemu" {
		t.Errorf("status %s, start_kind %s, accelerator %s, backend %s", inst.Status, inst.StartKind, inst.Accelerator, inst.Backend)
	}
	if inst.Bootstrap.Sync == nil || inst.Bootstrap.Sync.FilesSent == 0 || inst.Bootstrap.WorkspacePaths.Preferred != "/workspace" {
		t.Errorf("the workspace was not synced: %+v", inst.Bootstrap)
	}

	id := inst.InstanceID
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": id, "command": "pwd; id -un; ls; echo result-$((6*7)) > made.txt; cat made.txt"}, &r)
	if r.ExitCode != 0 || !strings.HasPrefix(r.Stdout, "/workspace\nsandbox\n") || !strings.HasSuffix(r.Stdout, "result-42\n") || !strings.Contains(r.Stdout, "Dockerfile") {
		t.Errorf("run_command: %+v", r)
	}

	dest := filepath.Join(sv.workspace, "out")
	var a sandbox.CollectArtifactsResult
	sv.must(t, "collect_artifacts", obj{"instance_id": id, "remote_paths": []string{"made.txt", "/nowhere/*"}, "local_dest": dest}, &a)
	want := sha256.Sum256([]byte("result-42\n"))
	if len(a.Artifacts) != 1 || a.Artifacts[0].SHA256 != hex.EncodeToString(want[:]) || len(a.Failed) != 1 {
		t.Fatalf("collect_artifacts: %+v", a)
	}
	if b, err := os.ReadFile(a.Artifacts[0].LocalPath); err != nil || string(b) != "result-42\n" {
		t.Errorf("the artifact on the host: %q, %v", b, err)
	}
	var again sandbox.CollectArtifactsResult
	sv.must(t, "collect_artifacts", obj{"instance_id": id, "remote_paths": []string{"made.txt"}, "local_dest": dest}, &again)
	if again.Artifacts[0].LocalPath == a.Artifacts[0].LocalPath {
		t.Error("a second collection took the place of the first")
	}
}

// TestDockerOffline runs what logreport's README promises: an image built
// FROM scratch without any registry, and a container of it.
func TestDockerOffline(t *testing.T) {
	sv, inst := shared(t)
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "timeout_seconds": 900, "command": strings.Join([]string{
		"set -e", "docker version --format '{{.Server.Version}}'", "docker compose version --short", "docker buildx version",
		"cd /workspace && sh scripts/image.sh",
	}, "\n")}, &r)
	if r.ExitCode != 0 || !strings.Contains(r.Stdout, "all 10 passed") {
		t.Fatalf("exit %d\nstdout %s\nstderr %s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

// TestLifeOfAnInstance makes, lists, extends and destroys one of the minimal
// image, and asks everything of it afterwards.
func TestLifeOfAnInstance(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	inst := sv.create(t, minimal(st.workspace))

	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 1 || !list.BackendAvailable || list.Backend != "qemu" || list.BackendVersion == "" {
		t.Fatalf("list_instances: %+v", list)
	}
	if i := list.Instances[0]; i.InstanceID != inst.InstanceID || i.Status != "running" || !i.LiveExists || i.LiveStatus == nil || *i.LiveStatus != "running" ||
		i.ReconciliationDrift != nil || i.BackendInstanceName != vmName(inst.InstanceID) || i.OwnerSession != "local" {
		t.Errorf("list_instances: %+v", i)
	}

	var ext sandbox.ExtendInstanceTTLResult
	sv.must(t, "extend_instance_ttl", obj{"instance_id": inst.InstanceID, "ttl_minutes": 5}, &ext)
	if ext.TTLExtendedMinutes != 5 || ext.ExpiresAt <= inst.ExpiresAt {
		t.Errorf("extend by 5: %+v after %s", ext, inst.ExpiresAt)
	}
	sv.must(t, "extend_instance_ttl", obj{"instance_id": inst.InstanceID, "ttl_minutes": 100000}, &ext)
	if ext.TTLExtendedMinutes < 84 || ext.TTLExtendedMinutes > 90 {
		t.Errorf("extend by 100000 minutes added %v, want what is left to MAX_TTL (120 minutes from now)", ext.TTLExtendedMinutes)
	}

	var d sandbox.DestroyInstanceResult
	for range 2 { // idempotent
		sv.must(t, "destroy_instance", obj{"instance_id": inst.InstanceID}, &d)
		if d.Status != "destroyed" || d.Backend != "qemu" {
			t.Errorf("destroy_instance: %+v", d)
		}
	}
	if p := st.left(); p != nil {
		t.Errorf("after destroy: %v", p)
	}
	for _, dir := range []string{"vms", "instances"} {
		if left, _ := filepath.Glob(filepath.Join(st.home, dir, "agent-*")); left != nil {
			t.Errorf("after destroy: %v", left)
		}
	}
	sv.fails(t, fault.InstanceTerminal, "run_command", obj{"instance_id": inst.InstanceID, "command": "true"})
	sv.fails(t, fault.InstanceTerminal, "extend_instance_ttl", obj{"instance_id": inst.InstanceID, "ttl_minutes": 1})
	sv.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 0 {
		t.Errorf("a destroyed instance is listed: %+v", list.Instances)
	}
	sv.must(t, "list_instances", obj{"include_expired": true}, &list)
	if len(list.Instances) != 1 || list.Instances[0].Status != "destroyed" || list.Instances[0].LiveExists {
		t.Errorf("include_expired: %+v", list.Instances)
	}
}

// TestSameRequestID makes one VM and runs one command for any number of calls
// with the same request_id, also at once.
func TestSameRequestID(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	args := minimal(st.workspace)
	args["request_id"] = "make-1"
	type made struct {
		res sandbox.CreateInstanceResult
		err error
	}
	results := make(chan made, 3)
	for range 3 {
		go func() {
			ctx, cancel := contextFor(bootDeadline)
			defer cancel()
			var m made
			m.err = sv.call(ctx, "create_instance", args, &m.res)
			results <- m
		}()
	}
	ids := map[string]bool{}
	for range 3 {
		m := <-results
		if m.err != nil {
			t.Fatal(m.err)
		}
		ids[m.res.InstanceID] = true
	}
	if len(ids) != 1 {
		t.Fatalf("one request_id made %d instances", len(ids))
	}
	var id string
	for id = range ids {
	}
	if err := sv.logBoot(t.Name(), id); err != nil {
		t.Fatal(err)
	}
	run := obj{"instance_id": id, "command": "echo x >> /tmp/times; wc -l < /tmp/times", "request_id": "run-1"}
	for range 3 {
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", run, &r)
		if strings.TrimSpace(r.Stdout) != "1" {
			t.Errorf("the command ran %s times", r.Stdout)
		}
	}
	run["command"] = "echo something else"
	sv.fails(t, fault.InvalidArgument, "run_command", run)
}
