package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

const bootDeadline = 8 * time.Minute

func TestCommands(t *testing.T) {
	sv, inst := shared(t)
	for name, c := range map[string]struct {
		args obj
		want func(r sandbox.RunCommandResult) bool
	}{
		"exit code":    {obj{"command": "exit 7"}, func(r sandbox.RunCommandResult) bool { return r.ExitCode == 7 }},
		"both streams": {obj{"command": "echo out; echo err >&2"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "out\n" && r.Stderr == "err\n" }},
		"signal":       {obj{"command": "kill -TERM $$"}, func(r sandbox.RunCommandResult) bool { return r.Signal == "SIGTERM" && r.ExitCode == 143 }},
		"exit 143":     {obj{"command": "exit 143"}, func(r sandbox.RunCommandResult) bool { return r.Signal == "" && r.ExitCode == 143 }},
		"not found":    {obj{"command": "no-such-program"}, func(r sandbox.RunCommandResult) bool { return r.ExitCode == 127 }},
		"stdin":        {obj{"command": "cat; echo end", "stdin": "give\n"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "give\nend\n" }},
		"no stdin":     {obj{"command": "cat; echo end"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "end\n" }},
		"env":          {obj{"command": `printf %s "$A"`, "env": obj{"A": "x 'y' $z \"w\"\n"}}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "x 'y' $z \"w\"\n" }},
		"cwd":          {obj{"command": "pwd", "cwd": "/usr/share"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "/usr/share\n" }},
		"root":         {obj{"command": "id -u", "user": "root"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "0\n" }},
		"sudo":         {obj{"command": "sudo -n id -u"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "0\n" }},
		"login PATH": {obj{"command": "echo $HOME:$PATH"}, func(r sandbox.RunCommandResult) bool {
			return strings.HasPrefix(r.Stdout, "/home/sandbox:/usr/local/bin")
		}},
		"not UTF-8": {obj{"command": `printf 'a\377b\000c'`}, func(r sandbox.RunCommandResult) bool {
			return r.NotUTF8 && r.Stdout == "a\uFFFDb\u2400c" && r.StdoutBytes == 5
		}},
		"detached child":            {obj{"command": "sleep 300 >/dev/null 2>&1 & echo started"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "started\n" && r.DurationMS < 60_000 }},
		"child that keeps the pipe": {obj{"command": "setsid sleep 30 & echo started"}, func(r sandbox.RunCommandResult) bool { return r.Stdout == "started\n" && r.DurationMS < 25_000 }},
		"20 MB": {obj{"command": "echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last"}, func(r sandbox.RunCommandResult) bool {
			return r.StdoutTruncated && r.StdoutBytes == 20_000_012 && len(r.Stdout) < 70_000 && strings.HasPrefix(r.Stdout, "first\n") && strings.HasSuffix(r.Stdout, "\nlast\n")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c.args["instance_id"] = inst.InstanceID
			var r sandbox.RunCommandResult
			sv.must(t, "run_command", c.args, &r)
			if !c.want(r) {
				r.Stdout, r.Stderr = r.Stdout[:min(len(r.Stdout), 300)], r.Stderr[:min(len(r.Stderr), 300)]
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestFullOutputStaysReadable reads 20 MB of a command's output back by
// offsets; what the spool had to drop is said.
func TestFullOutputStaysReadable(t *testing.T) {
	sv, inst := shared(t)
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "seq 1 100000"}, &r)
	if !r.StdoutTruncated {
		t.Fatal("600 kB came back whole")
	}
	var whole strings.Builder
	for off := int64(0); ; {
		var l sandbox.GetTaskLogsResult
		sv.must(t, "get_task_logs", obj{"task_id": r.TaskID, "stream": "stdout", "offset": off, "max_bytes": 60_000}, &l)
		whole.WriteString(l.Logs)
		if l.DroppedBytes != 0 || l.TotalBytes != r.StdoutBytes {
			t.Fatalf("at %d: dropped %d of %d", off, l.DroppedBytes, l.TotalBytes)
		}
		if off = l.NextOffset; off >= l.TotalBytes {
			break
		}
	}
	var want strings.Builder
	for i := 1; i <= 100000; i++ {
		fmt.Fprintln(&want, i)
	}
	if whole.String() != want.String() {
		t.Errorf("%d bytes came back, want %d", whole.Len(), want.Len())
	}
}

func TestTimeoutKillsTheTree(t *testing.T) {
	sv, inst := shared(t)
	te := sv.fails(t, fault.CommandTimedOut, "run_command", obj{
		"instance_id": inst.InstanceID, "timeout_seconds": 2,
		"command": "echo before; (setsid sleep 4242 &) ; sleep 4243",
	})
	if !strings.Contains(fmt.Sprint(te.Details["stdout"]), "before") {
		t.Errorf("the partial output is missing: %v", te.Details)
	}
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "ps -eo args | grep -c '[s]leep 424' || true"}, &r)
	if strings.TrimSpace(r.Stdout) != "0" {
		t.Errorf("%s processes of the tree survived", strings.TrimSpace(r.Stdout))
	}
}

func TestCancelKillsTheTree(t *testing.T) {
	sv, inst := shared(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- sv.call(ctx, "run_command", obj{"instance_id": inst.InstanceID, "command": "touch /tmp/began; exec sleep 4545"}, nil)
	}()
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "until [ -e /tmp/began ]; do sleep 0.05; done"}, &r)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call: %v", err)
	}
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "timeout_seconds": 60,
		"command": "while ps -eo args | grep -q '[s]leep 4545'; do sleep 0.05; done"}, &r)
}

func TestBackgroundTask(t *testing.T) {
	sv, inst := shared(t)
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "mkfifo /tmp/fifo-bg"}, nil)
	var s sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": inst.InstanceID, "command": "echo one; read x < /tmp/fifo-bg; echo two $x; exit 3", "cwd": "/tmp", "env": obj{"A": "b"}}, &s)
	if s.Status != "running" || s.PID == 0 || !strings.HasPrefix(s.LogPath, "/") {
		t.Errorf("start_background_task: %+v", s)
	}
	var st sandbox.Task
	sv.must(t, "get_task_status", obj{"task_id": s.TaskID}, &st)
	if st.Status != "running" || st.ExitCode != nil || st.FinishedAt != nil {
		t.Errorf("while it runs: %+v", st)
	}
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "echo go > /tmp/fifo-bg"}, nil)
	sv.must(t, "get_task_status", obj{"task_id": s.TaskID, "wait_seconds": 60}, &st)
	if st.Status != "failed" || st.ExitCode == nil || *st.ExitCode != 3 || st.FinishedAt == nil {
		t.Errorf("at the end: %+v", st)
	}
	var l sandbox.GetTaskLogsResult
	sv.must(t, "get_task_logs", obj{"task_id": s.TaskID, "stream": "stdout"}, &l)
	if l.Logs != "one\ntwo go\n" {
		t.Errorf("get_task_logs: %+v", l)
	}
	sv.must(t, "get_task_logs", obj{"task_id": s.TaskID, "tail": 1, "stream": "stdout"}, &l)
	if l.Logs != "two go\n" {
		t.Errorf("tail 1: %q", l.Logs)
	}
	sv.fails(t, fault.TaskAlreadyFinished, "stop_task", obj{"task_id": s.TaskID})
	var list sandbox.ListTasksResult
	sv.must(t, "list_tasks", obj{"instance_id": inst.InstanceID, "status": "failed"}, &list)
	if len(list.Tasks) == 0 || list.Tasks[0].Kind != "background" {
		t.Errorf("list_tasks: %+v", list)
	}
}

func TestStopTask(t *testing.T) {
	sv, inst := shared(t)
	for name, c := range map[string]struct {
		command string
		force   bool
		signal  string
		code    int
	}{
		"ends at TERM":       {"exec sleep 4646", false, "SIGTERM", 143},
		"cleans up and ends": {"trap 'echo bye; exit 5' TERM; while :; do sleep 0.1; done", false, "", 5},
		"ignores TERM":       {"trap '' TERM; while :; do sleep 0.1; done", false, "SIGKILL", 137},
		"by force":           {"trap 'exit 5' TERM; while :; do sleep 0.1; done", true, "SIGKILL", 137},
	} {
		t.Run(name, func(t *testing.T) {
			var s sandbox.StartBackgroundTaskResult
			sv.must(t, "start_background_task", obj{"instance_id": inst.InstanceID, "command": "echo up; " + c.command}, &s)
			waitForLog(t, sv, s.TaskID, "up")
			var r sandbox.StopTaskResult
			sv.must(t, "stop_task", obj{"task_id": s.TaskID, "force": c.force}, &r)
			got := ""
			if r.Signal != nil {
				got = *r.Signal
			}
			if r.Status != "stopped" || r.ExitCode == nil || *r.ExitCode != c.code || got != c.signal {
				t.Errorf("%+v (signal %q)", r, got)
			}
		})
	}
}

// waitForLog waits until a task has printed something.
func waitForLog(t testing.TB, sv *server, task, text string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		var l sandbox.GetTaskLogsResult
		sv.must(t, "get_task_logs", obj{"task_id": task}, &l)
		if strings.Contains(l.Logs, text) {
			return
		}
		sv.must(t, "get_task_status", obj{"task_id": task, "wait_seconds": 0.05}, nil)
	}
	t.Fatalf("task %s never printed %q", task, text)
}

// TestTwentyAtOnce runs twenty commands on one instance while a slow one runs:
// none waits for another.
func TestTwentyAtOnce(t *testing.T) {
	sv, inst := shared(t)
	slow := make(chan error, 1)
	go func() {
		slow <- sv.call(t.Context(), "run_command", obj{"instance_id": inst.InstanceID, "command": "until [ -e /tmp/release-slow ]; do sleep 0.1; done"}, nil)
	}()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			var r sandbox.RunCommandResult
			err := sv.call(t.Context(), "run_command", obj{"instance_id": inst.InstanceID, "command": fmt.Sprintf("echo %d", i)}, &r)
			if err != nil || r.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("command %d: %q, %v", i, r.Stdout, err)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-slow:
		t.Errorf("the slow command ended before it was released: %v", err)
	default:
	}
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "touch /tmp/release-slow"}, nil)
	if err := <-slow; err != nil {
		t.Error(err)
	}
}

// TestProgressOfACommand hears the newest output line while a command runs.
func TestProgressOfACommand(t *testing.T) {
	sv, inst := shared(t)
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "for i in 1 2 3 4; do echo step-$i-of-4; sleep 0.8; done"}, nil)
	sv.mu.Lock()
	defer sv.mu.Unlock()
	for _, m := range sv.progress {
		if strings.Contains(m, "-of-4") {
			return
		}
	}
	t.Errorf("no progress with an output line in %q", sv.progress)
}

// TestBadInput gives every tool what it must refuse, and asks that nothing
// changed.
func TestBadInput(t *testing.T) {
	sv, inst := shared(t)
	id := inst.InstanceID
	var before, after sandbox.ListTasksResult
	sv.must(t, "list_tasks", obj{"kind": "all", "instance_id": id, "status": "running"}, &before)

	unknown := "inst_00000000"
	for tool, args := range map[string]obj{
		"destroy_instance": {}, "extend_instance_ttl": {"ttl_minutes": 5}, "prepare_workspace": {}, "run_command": {"command": "true"},
		"start_background_task": {"command": "true"}, "copy_to_instance": {"local_path": "x", "remote_path": "y"},
		"copy_from_instance": {"local_path": "x", "remote_path": "y"}, "sync_workspace_to_instance": {}, "sync_instance_to_workspace": {},
		"collect_artifacts": {"remote_paths": []string{"x"}, "local_dest": "y"},
	} {
		args["instance_id"] = unknown
		sv.fails(t, fault.InstanceNotFound, tool, args)
		args["instance_id"] = 7
		sv.fails(t, fault.InvalidArgument, tool, args)
		args["instance_id"] = id
		args["no_such_parameter"] = 1
		sv.fails(t, fault.InvalidArgument, tool, args)
		delete(args, "instance_id")
		delete(args, "no_such_parameter")
		sv.fails(t, fault.InvalidArgument, tool, args)
	}
	for _, tool := range []string{"get_task_status", "get_task_logs", "stop_task"} {
		sv.fails(t, fault.TaskNotFound, tool, obj{"task_id": "task_000000000000"})
		sv.fails(t, fault.InvalidArgument, tool, obj{"task_id": []string{"x"}})
	}
	for _, c := range []struct {
		code fault.Code
		tool string
		args obj
	}{
		{fault.InvalidArgument, "run_command", obj{"command": ""}},
		{fault.InvalidArgument, "run_command", obj{"command": "echo \x00"}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "timeout_seconds": 0}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "timeout_seconds": -1}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "timeout_seconds": 1e9}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "timeout_seconds": "10"}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "cwd": "/no/such/dir"}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "user": "nobody-there"}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "env": obj{"A=B": "x"}}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "max_output_bytes": 0}},
		{fault.InvalidArgument, "run_command", obj{"command": "true", "max_output_bytes": math.MaxInt32}},
		{fault.TTLInvalid, "extend_instance_ttl", obj{"ttl_minutes": 0}},
		{fault.TTLInvalid, "extend_instance_ttl", obj{"ttl_minutes": -5}},
		{fault.InvalidArgument, "list_tasks", obj{"status": "sleeping"}},
		{fault.InvalidArgument, "sync_instance_to_workspace", obj{"on_conflict": "win"}},
		{fault.PathNotAllowed, "copy_to_instance", obj{"local_path": "/etc/passwd", "remote_path": "/tmp/x"}},
		{fault.PathNotAllowed, "copy_to_instance", obj{"local_path": "../../../etc/passwd", "remote_path": "/tmp/x"}},
		{fault.PathNotAllowed, "copy_from_instance", obj{"local_path": "/etc/sbx-new", "remote_path": "/etc/passwd"}},
		{fault.PathNotAllowed, "collect_artifacts", obj{"local_dest": "/root/sbx-new", "remote_paths": []string{"/etc/passwd"}}},
		{fault.PathNotAllowed, "sync_instance_to_workspace", obj{"local_path": "/etc"}},
		{fault.PathNotAllowed, "sync_workspace_to_instance", obj{"local_path": "/etc"}},
	} {
		if c.tool != "list_tasks" {
			c.args["instance_id"] = id
		}
		sv.fails(t, c.code, c.tool, c.args)
	}
	for _, root := range []string{"/", "", "relative", "/no/such/dir", "/etc/passwd", sv.home, "/tmp/\x00"} {
		args := minimal(root)
		ctx, cancel := contextFor(time.Minute)
		err := sv.call(ctx, "create_instance", args, nil)
		cancel()
		var te *toolError
		if !errors.As(err, &te) || (te.Code != fault.InvalidArgument && te.Code != fault.PathNotAllowed) {
			t.Errorf("workspace_root %q: %v", root, err)
		}
	}
	sv.fails(t, fault.TTLInvalid, "create_instance", obj{"workspace_root": sv.workspace, "ttl_minutes": 0})
	sv.fails(t, fault.WorkspaceConfigInvalid, "create_instance", obj{"workspace_root": sv.workspace, "overrides": obj{"vm": obj{"cpus": 0, "colour": "red"}}})
	te := sv.fails(t, fault.InsufficientHostResources, "create_instance", obj{"workspace_root": sv.workspace, "overrides": obj{"vm": obj{"memory_gib": 5000}}})
	for _, k := range []string{"host_os", "workspace_root", "workspace_config", "requested_vm", "available_host", "required_headroom", "failed_checks", "suggested_vm", "next_steps"} {
		if te.Details[k] == nil {
			t.Errorf("INSUFFICIENT_HOST_RESOURCES without %s", k)
		}
	}
	te = sv.fails(t, fault.ImageNotFound, "create_instance", obj{"workspace_root": sv.workspace, "overrides": obj{"vm": obj{"image": "no-such-image"}}})
	if !strings.Contains(fmt.Sprint(te.Details["next_steps"]), "image") {
		t.Errorf("IMAGE_NOT_FOUND does not say how to build one: %v", te.Details)
	}

	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 1 {
		t.Errorf("refused creates left instances: %+v", list.Instances)
	}
	sv.must(t, "list_tasks", obj{"kind": "all", "instance_id": id, "status": "running"}, &after)
	if len(after.Tasks) > len(before.Tasks) {
		t.Errorf("refused commands run: %+v, before %+v", after.Tasks, before.Tasks)
	}
}
