package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// toolbox is a container image with a shell and a few tools, made of the
// guest's own files: no registry is needed.
const toolbox = "toolbox:1"

const makeToolbox = `set -e
docker image inspect toolbox:1 >/dev/null 2>&1 && exit 0
bins="/bin/sh $(which sleep cat echo ls env seq id true false head touch hostname getent tr)"
libs=$(ldd $bins 2>/dev/null | grep -o '/lib[^ )]*' | sort -u)
nss=$(ls /lib/*/libnss_dns* /lib/*/libnss_files* 2>/dev/null || true)
printf 'hosts: files dns\n' > /tmp/nsswitch.conf
tar -ch $bins $libs $nss --transform 's|^tmp/nsswitch|etc/nsswitch|' /tmp/nsswitch.conf 2>/dev/null |
	docker import --change 'ENV PATH=/usr/bin:/bin' --change 'CMD ["sh"]' - toolbox:1 >/dev/null
docker run --rm toolbox:1 true`

// dockerVM is the shared VM with the toolbox in it.
func dockerVM(t testing.TB) (*server, string) {
	t.Helper()
	sv, inst := shared(t)
	sv.output(t, inst.InstanceID, makeToolbox)
	return sv, inst.InstanceID
}

func TestContainersFromStartToEnd(t *testing.T) {
	sv, id := dockerVM(t)
	var run sandbox.DockerRunResult
	sv.must(t, "docker_run", obj{"instance_id": id, "image": toolbox, "name": "web-1", "env": obj{"COLOUR": "red & 'blue' $HOME"},
		"volumes": []string{"/etc/hostname:/host:ro"}, "workdir": "/tmp",
		"command": `echo "colour: $COLOUR"; pwd; while true; do sleep 0.2; done`}, &run)
	if run.Container != "web-1" || run.ExitCode != 0 {
		t.Fatalf("docker_run: %+v", run)
	}
	var ps sandbox.DockerPSResult
	sv.must(t, "docker_ps", obj{"instance_id": id}, &ps)
	found := false
	for _, c := range ps.Containers {
		if c.Name == "web-1" {
			found = c.State == "running" && c.Image == toolbox && strings.Join(c.Networks, ",") == "lima-net-sandbox"
		}
	}
	if !found || !strings.Contains(ps.Stdout, "web-1") {
		t.Errorf("docker_ps: %+v", ps)
	}

	var x sandbox.DockerExecResult
	sv.must(t, "docker_exec", obj{"instance_id": id, "container": "web-1", "command": `cat /host >/dev/null && echo out && echo err >&2 && exit 7`}, &x)
	if x.ExitCode != 7 || x.Stdout != "out\n" || x.Stderr != "err\n" {
		t.Errorf("docker_exec: %+v", x)
	}

	var logs sandbox.DockerLogsResult
	sv.must(t, "docker_logs", obj{"instance_id": id, "container": "web-1"}, &logs)
	if logs.Stdout != "colour: red & 'blue' $HOME\n/tmp\n" {
		t.Errorf("docker_logs: %q", logs.Stdout)
	}
	began := time.Now()
	sv.must(t, "docker_logs", obj{"instance_id": id, "container": "web-1", "follow": true, "follow_seconds": 2, "tail": 1}, &logs)
	if logs.Stdout != "/tmp\n" || logs.ExitCode != 0 || time.Since(began) < 2*time.Second {
		t.Errorf("docker_logs with follow, after %v: %+v", time.Since(began), logs)
	}
	sv.output(t, id, "docker rm -f web-1")
	sv.fails(t, fault.ContainerNotFound, "docker_logs", obj{"instance_id": id, "container": "web-1"})
	sv.fails(t, fault.ContainerNotFound, "docker_exec", obj{"instance_id": id, "container": "web-1", "command": "true"})
}

func TestForegroundContainerIsItsCommand(t *testing.T) {
	sv, id := dockerVM(t)
	before := sv.output(t, id, "docker ps -aq | wc -l")
	var r sandbox.DockerRunResult
	for _, c := range []struct {
		command string
		code    int
		out     string
	}{
		{"echo plain 'two words'", 0, "plain two words\n"},
		{"echo $((6*7)) && exit 125", 125, "42\n"},
		{"false", 1, ""},
		{"exit 3", 3, ""},
	} {
		sv.must(t, "docker_run", obj{"instance_id": id, "image": toolbox, "command": c.command, "detach": false}, &r)
		if r.ExitCode != c.code || r.Stdout != c.out || r.Container != "" {
			t.Errorf("%s: %+v", c.command, r)
		}
	}
	if after := sv.output(t, id, "docker ps -aq | wc -l"); after != before {
		t.Errorf("%s container(s) became %s", before, after)
	}
}

func TestWhatDockerCannotDoIsAnError(t *testing.T) {
	sv, id := dockerVM(t)
	e := sv.fails(t, fault.DockerCommandFailed, "docker_run", obj{"instance_id": id, "image": "no-such-image:1"})
	if e.Details["stderr"] == "" || e.Details["exit_code"] == nil || e.Details["command"] == "" {
		t.Errorf("details: %v", e.Details)
	}
	sv.fails(t, fault.DockerCommandFailed, "docker_run", obj{"instance_id": id, "image": toolbox, "name": "missing", "command": "no-such-program"})
	// The name is free again.
	var r sandbox.DockerRunResult
	sv.must(t, "docker_run", obj{"instance_id": id, "image": toolbox, "name": "missing", "command": "true", "detach": false}, &r)
	sv.fails(t, fault.DockerCommandFailed, "docker_run", obj{"instance_id": id, "image": toolbox, "name": "missing", "command": "true"})
	sv.fails(t, fault.DockerCommandFailed, "docker_exec", obj{"instance_id": id, "container": "missing", "command": "true"})
	sv.output(t, id, "docker rm missing")
	// The VM without Docker says so, and an unknown one too.
	sv.fails(t, fault.InstanceNotFound, "docker_ps", obj{"instance_id": "inst_00000000"})
}

func TestHostileNamesNeverReachDocker(t *testing.T) {
	sv, id := dockerVM(t)
	before := sv.output(t, id, "docker ps -aq | sort; docker images -q | sort; ls /tmp")
	for _, bad := range []string{"--privileged", "-v", "a;touch /tmp/x", "a$(touch /tmp/x)", "a\nb", "a b", "`id`", "", "../x", strings.Repeat("a", 600)} {
		sv.fails(t, fault.InvalidArgument, "docker_run", obj{"instance_id": id, "image": bad})
		sv.fails(t, fault.InvalidArgument, "docker_run", obj{"instance_id": id, "image": toolbox, "name": bad + "\x00"})
		sv.fails(t, fault.InvalidArgument, "docker_exec", obj{"instance_id": id, "container": bad, "command": "true"})
		sv.fails(t, fault.InvalidArgument, "docker_logs", obj{"instance_id": id, "container": bad})
		sv.fails(t, fault.InvalidArgument, "docker_compose", obj{"instance_id": id, "project_dir": ".", "action": "ps", "services": []string{bad}})
	}
	for _, args := range []obj{{"volumes": []string{""}}, {"ports": []string{"80\n81"}}, {"env": obj{"A=B": "c"}}, {"workdir": "--privileged"}} {
		args["instance_id"], args["image"] = id, toolbox
		sv.fails(t, fault.InvalidArgument, "docker_run", args)
	}
	// Values that look like options are values.
	e := sv.fails(t, fault.DockerCommandFailed, "docker_run", obj{"instance_id": id, "image": toolbox, "volumes": []string{"--privileged"}, "ports": []string{"--net=host"}})
	if strings.Contains(fmt.Sprint(e.Details["stderr"]), "unknown flag") {
		t.Errorf("a value became an option: %v", e.Details["stderr"])
	}
	var r sandbox.DockerRunResult
	sv.must(t, "docker_run", obj{"instance_id": id, "image": toolbox, "command": "echo --rm -- --name=x", "detach": false}, &r)
	if r.Stdout != "--rm -- --name=x\n" {
		t.Errorf("%+v", r)
	}
	if after := sv.output(t, id, "docker ps -aq | sort; docker images -q | sort; ls /tmp"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A timeout and a cancelled call end what runs in the container: also what
// left its session and what ignores TERM. The container itself goes on.
func TestEndOfAnExecEndsItsProcesses(t *testing.T) {
	sv, id := dockerVM(t)
	var run sandbox.DockerRunResult
	sv.must(t, "docker_run", obj{"instance_id": id, "image": toolbox, "name": "stays", "command": "sleep 3600"}, &run)
	t.Cleanup(func() {
		_ = sv.call(context.Background(), "run_command", obj{"instance_id": id, "command": "docker rm -f stays"}, nil)
	})
	script := `trap "" TERM; (trap "" TERM HUP; sleep 1201) & env -i sleep 1202 & while true; do sleep 1203; done`
	e := sv.fails(t, fault.CommandTimedOut, "docker_exec", obj{"instance_id": id, "container": "stays", "command": script, "timeout_seconds": 4})
	if e.Details["container_processes_killed"] != true {
		t.Errorf("details: %v", e.Details)
	}
	const left = `ps -eo args | grep -c '^sleep 12[0-9][0-9]' || true`
	if n := sv.output(t, id, left); n != "0\n" {
		t.Errorf("%s process(es) of the exec go on", n)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- sv.call(ctx, "docker_exec", obj{"instance_id": id, "container": "stays", "command": script}, nil)
	}()
	sv.until(t, id, `ps -eo args | grep -q '^sleep 1203'`)
	cancel()
	<-ended
	sv.until(t, id, `! ps -eo args | grep -q '^sleep 12[0-9][0-9]'`)
	var ps sandbox.DockerPSResult
	sv.must(t, "docker_ps", obj{"instance_id": id}, &ps)
	if !strings.Contains(ps.Stdout, "stays") {
		t.Error("the container ended with the exec")
	}
}

// until waits, in the VM, for a condition.
func (sv *server) until(t testing.TB, id, condition string) {
	t.Helper()
	sv.output(t, id, `for i in $(seq 600); do if `+condition+`; then exit 0; fi; sleep 0.1; done; exit 1`)
}

// A cancelled docker_run and one that takes too long leave no container, also
// one that ignores TERM.
func TestEndOfARunRemovesItsContainer(t *testing.T) {
	sv, id := dockerVM(t)
	script := `trap "" TERM; while true; do sleep 1301; done`
	sv.fails(t, fault.CommandTimedOut, "docker_run", obj{"instance_id": id, "image": toolbox, "command": script, "detach": false, "name": "stubborn", "timeout_seconds": 8})
	if out := sv.output(t, id, "docker ps -a --format '{{.Names}}'"); strings.Contains(out, "stubborn") {
		t.Errorf("left after a timeout: %s", out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- sv.call(ctx, "docker_run", obj{"instance_id": id, "image": toolbox, "command": script, "detach": false, "name": "stubborn"}, nil)
	}()
	sv.until(t, id, `docker ps --format '{{.Names}}' | grep -q stubborn`)
	cancel()
	<-ended
	sv.until(t, id, `! docker ps -a --format '{{.Names}}' | grep -q stubborn`)
}

func TestCleanupFreesWhatNothingUses(t *testing.T) {
	sv, id := dockerVM(t)
	sv.fails(t, fault.InvalidArgument, "docker_cleanup", obj{"instance_id": id, "mode": "everything"})
	// An image without a name and one with; a container that ended.
	sv.output(t, id, `set -e; cd "$(mktemp -d)"; head -c 3000000 /dev/urandom > junk
		tar -c junk | docker import - tagged:1 >/dev/null; head -c 3000000 /dev/urandom > junk; tar -c junk | docker import - >/dev/null
		docker run --name ended toolbox:1 true; docker run -d --name goes-on toolbox:1 sleep 3600`)
	const state = `docker images -qf dangling=true | wc -l; docker images -q tagged:1 | wc -l; docker ps -aqf name=ended | wc -l; docker ps -qf name=goes-on | wc -l; docker network ls -qf name=lima-net-sandbox | wc -l`
	var r sandbox.DockerCleanupResult
	sv.must(t, "docker_cleanup", obj{"instance_id": id, "mode": "safe"}, &r)
	if got := sv.output(t, id, state); got != "0\n1\n1\n1\n1\n" || r.ReclaimedBytes < 2_900_000 {
		t.Errorf("safe freed %d bytes and left %q", r.ReclaimedBytes, got)
	}
	sv.must(t, "docker_cleanup", obj{"instance_id": id, "mode": "aggressive"}, &r)
	if got := sv.output(t, id, state); got != "0\n0\n0\n1\n1\n" || r.ReclaimedBytes < 2_900_000 {
		t.Errorf("aggressive freed %d bytes and left %q", r.ReclaimedBytes, got)
	}
	sv.output(t, id, "docker rm -f goes-on")
}

// composeProject writes a project into the workspace and syncs it in.
func composeProject(t testing.TB, sv *server, id, dir, file string) {
	t.Helper()
	path := filepath.Join(sv.workspace, dir, "compose.yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	sv.must(t, "sync_workspace_to_instance", obj{"instance_id": id}, nil)
}

func TestComposeFromUpToDown(t *testing.T) {
	sv, id := dockerVM(t)
	composeProject(t, sv, id, "shop", `
services:
  front:
    image: toolbox:1
    command: sh -c 'echo front is up; sleep 3600'
    stop_grace_period: 1s
  back:
    image: toolbox:1
    command: sleep 3600
    stop_grace_period: 1s
    networks: [inner]
  alone:
    image: toolbox:1
    command: sleep 3600
    stop_grace_period: 1s
    network_mode: none
networks:
  inner: {}
`)
	var r sandbox.DockerComposeResult
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "up"}, &r)
	want := sandbox.Bridge{Status: "connected", Network: "lima-net-sandbox", NetworkStatus: "existing", ContainersSeen: 3, ContainersConnected: 2}
	if r.Bridge != want || r.ProjectDir != "/workspace/shop" || r.ExitCode != 0 {
		t.Errorf("up: %+v", r)
	}
	// On the instance's network and still on their own.
	nets := sv.output(t, id, `docker inspect -f '{{.Name}}{{range $k, $v := .NetworkSettings.Networks}} {{$k}}{{end}}' $(docker ps -q -f label=com.docker.compose.project=shop) | sort`)
	if nets != "/shop-alone-1 none\n/shop-back-1 lima-net-sandbox shop_inner\n/shop-front-1 lima-net-sandbox shop_default\n" {
		t.Errorf("networks: %s", nets)
	}
	// A container beside the project finds the service by its name.
	var x sandbox.DockerRunResult
	sv.must(t, "docker_run", obj{"instance_id": id, "image": toolbox, "command": "getent hosts back", "detach": false}, &x)
	if x.ExitCode != 0 {
		t.Errorf("the service's name is not known on the instance's network: %+v", x)
	}
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "up"}, &r)
	if r.Bridge.ContainersAlreadyConnected != 2 || r.Bridge.ContainersConnected != 0 {
		t.Errorf("second up: %+v", r.Bridge)
	}
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "logs", "tail": 10, "services": []string{"front"}}, &r)
	if !strings.Contains(r.Stdout, "front is up") || r.ComposeTail == nil || *r.ComposeTail != 10 {
		t.Errorf("logs: %+v", r)
	}
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "logs", "follow": true, "follow_seconds": 2}, &r)
	if !r.ComposeFollow || r.ExitCode != 0 {
		t.Errorf("logs with follow: %+v", r)
	}
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "exec", "services": []string{"front"}, "command": "echo in; exit 4"}, &r)
	if r.ExitCode != 4 || r.Stdout != "in\n" {
		t.Errorf("exec: %+v", r)
	}
	sv.fails(t, fault.DockerCommandFailed, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "exec", "services": []string{"nobody"}, "command": "true"})
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "ps"}, &r)
	if !strings.Contains(r.Stdout, `"Service":"front"`) {
		t.Errorf("ps: %s", r.Stdout)
	}
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "stop", "services": []string{"front"}}, &r)
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "restart", "services": []string{"front"}}, &r)
	sv.must(t, "docker_compose", obj{"instance_id": id, "project_dir": "shop", "action": "down"}, &r)
	if out := sv.output(t, id, "docker ps -aq -f label=com.docker.compose.project=shop; ls /run/sandboxforge-compose"); out != "" {
		t.Errorf("left after down: %s", out)
	}
}

func TestComposeFilesThatMustNotBeTaken(t *testing.T) {
	sv, id := dockerVM(t)
	composeProject(t, sv, id, "broken", "services: [this is no map\n")
	e := sv.fails(t, fault.DockerCommandFailed, "docker_compose", obj{"instance_id": id, "project_dir": "broken", "action": "up"})
	if e.Details["stderr"] == "" {
		t.Errorf("details: %v", e.Details)
	}
	sv.output(t, id, `mkdir -p /tmp/elsewhere && cd /tmp/elsewhere && printf 'services: {a: {image: "toolbox:1"}}\n' > compose.yaml &&
		mkdir -p /workspace/linked && ln -sf /tmp/elsewhere/compose.yaml /workspace/linked/compose.yaml && ln -sfn /tmp/elsewhere /workspace/linkdir`)
	before := sv.output(t, id, "docker ps -aq")
	for _, args := range []obj{
		{"project_dir": "/tmp/elsewhere"},
		{"project_dir": "../tmp/elsewhere"},
		{"project_dir": "linked"},
		{"project_dir": "linkdir"},
		{"project_dir": ".", "file": "/tmp/elsewhere/compose.yaml"},
		{"project_dir": ".", "file": "../tmp/elsewhere/compose.yaml"},
		{"project_dir": ".", "file": "no-such.yaml"},
		{"project_dir": "no-such-dir"},
		{"project_dir": "data"}, // no Compose file in it
	} {
		args["instance_id"], args["action"] = id, "up"
		sv.fails(t, fault.InvalidArgument, "docker_compose", args)
	}
	if after := sv.output(t, id, "docker ps -aq"); after != before {
		t.Errorf("containers before %q, after %q", before, after)
	}
	sv.output(t, id, "rm -rf /workspace/linked /workspace/linkdir /tmp/elsewhere")
}
