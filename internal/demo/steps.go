package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/mcpclient"
	"sandboxforge/internal/sandbox"
)

// step is one part of the demo. run returns what to say of it in the summary.
type step struct {
	name string
	only func(*demo) bool // nil: always
	run  func(context.Context, *demo) (note string, err error)
}

var script = []step{
	{"guest image", func(d *demo) bool { return d.o.EnsureImage != nil }, ensureImage},
	{"template of the VM", func(d *demo) bool { return d.o.EnsureTemplate != nil }, ensureTemplate},
	{"start the server, open an MCP session over stdio", nil, openSession},
	{"read the workspace's configuration", nil, validateConfig},
	{"get a VM with the workspace in it and Docker running", nil, createInstance},
	{"run a command on the guest's kernel", nil, guestKernel},
	{"run the workspace's tests in the VM", nil, runTests},
	{"build and run a container image in the VM, offline", nil, containerImage},
	{"run a background task and read its log", nil, backgroundTask},
	{"make a report in the VM and collect it", nil, collect},
	{"sync the report back to the host", nil, syncBack},
	{"destroy the VM", nil, destroy},
	{"see that nothing is left", nil, nothingLeft},
}

func ensureImage(ctx context.Context, d *demo) (string, error) {
	cached, err := d.o.EnsureImage(ctx, d.line.Update)
	if cached {
		return "already built", err
	}
	return "built", err
}

// ensureTemplate pays for the one boot. A host on which VMs cannot begin in a
// template still runs the demo: its VM boots.
func ensureTemplate(ctx context.Context, d *demo) (string, error) {
	made, err := d.o.EnsureTemplate(ctx, d.root, d.line.Update)
	switch {
	case ctx.Err() != nil:
		return "", err
	case err != nil:
		return "none, the VM boots: " + err.Error(), nil
	case made:
		return "made: from now on such VMs start without a boot", nil
	}
	return "already made", nil
}

func openSession(ctx context.Context, d *demo) (string, error) {
	d.line.Update("starting", d.o.Server)
	c, err := mcpclient.Connect(ctx, d.o.Server, d.serverEnv(), d.o.Version)
	if err != nil {
		return "", err
	}
	d.c = c
	return c.Describe(ctx)
}

func validateConfig(ctx context.Context, d *demo) (string, error) {
	var r sandbox.ValidateWorkspaceConfigResult
	if err := d.call(ctx, "validate_workspace_config", map[string]any{"workspace_root": d.root}, &r); err != nil {
		return "", err
	}
	for _, diag := range r.Diagnostics {
		d.show(fmt.Sprintf("%s: %s: %s", diag.Severity, diag.Key, diag.Message))
	}
	if !r.Valid {
		return "", fault.New(fault.WorkspaceConfigInvalid, "the sample workspace's configuration is not valid")
	}
	return fmt.Sprintf("valid, from %d sources", len(r.Sources)), nil
}

func createInstance(ctx context.Context, d *demo) (string, error) {
	var r sandbox.CreateInstanceResult
	if err := d.call(ctx, "create_instance", map[string]any{"workspace_root": d.root, "wait_for_ready": true}, &r); err != nil {
		return "", err
	}
	d.r.InstanceID, d.r.Backend, d.r.Accelerator, d.r.StartKind = r.InstanceID, r.Backend, r.Accelerator, r.StartKind
	if r.TimingsMS != nil {
		d.r.TimingsMS = r.TimingsMS
	}
	if r.Bootstrap != nil {
		for k, v := range r.Bootstrap.TimingsMS {
			d.r.TimingsMS["prepare."+k] = v
		}
		if !r.Bootstrap.RuntimeReady {
			return "", fault.New(fault.RuntimeNotReady, "create_instance returned, but Docker is not ready")
		}
		if s := r.Bootstrap.Sync; s != nil {
			d.show(fmt.Sprintf("%d files synced to %s", s.FilesSent, s.RemotePath))
		}
	}
	for _, w := range r.Warnings {
		d.show("warning: " + w)
	}
	var list sandbox.ListInstancesResult
	if err := d.call(ctx, "list_instances", map[string]any{}, &list); err != nil {
		return "", err
	}
	for _, in := range list.Instances {
		if in.InstanceID == r.InstanceID {
			d.vm = in.BackendInstanceName
			return fmt.Sprintf("%s on %s/%s, %s start, expires %s", r.InstanceID, r.Backend, r.Accelerator, r.StartKind, r.ExpiresAt), nil
		}
	}
	return "", fault.New(fault.Internal, "list_instances does not show the instance that create_instance returned")
}

// command runs a command in the VM, shows what it printed, and insists on exit
// code 0.
func (d *demo) command(ctx context.Context, line string, timeout time.Duration) (*sandbox.RunCommandResult, error) {
	var r sandbox.RunCommandResult
	err := d.call(ctx, "run_command", map[string]any{
		"instance_id": d.r.InstanceID, "command": line, "timeout_seconds": timeout.Seconds(),
	}, &r)
	if err != nil {
		return nil, err
	}
	if r.Stdout != "" {
		d.show(r.Stdout)
	}
	if r.Stderr != "" {
		d.show(r.Stderr)
	}
	if r.ExitCode != 0 {
		return nil, fault.New(fault.Internal, "%q ended with exit code %d in the VM", line, r.ExitCode).
			Because("%s", lastLines(strings.TrimSpace(r.Stderr+"\n"+r.Stdout), 1))
	}
	return &r, nil
}

func guestKernel(ctx context.Context, d *demo) (string, error) {
	r, err := d.command(ctx, "uname -a && cat /etc/os-release | head -1", time.Minute)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(r.Stdout, "Linux ") {
		return "", fault.New(fault.Internal, "uname in the VM said %q", ui.Cut(r.Stdout, 80))
	}
	d.r.GuestOutput = strings.TrimSpace(r.Stdout)
	note := ""
	if fields := strings.Fields(r.Stdout); len(fields) > 2 {
		note = "guest kernel " + ui.Clean(fields[2])
		if host := hostKernel(); host != "" {
			note += ", host kernel " + host
		}
	}
	return note, nil
}

// hostKernel is the host's kernel release where it is easily told.
func hostKernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func runTests(ctx context.Context, d *demo) (string, error) {
	r, err := d.command(ctx, "sh tests/run.sh", 2*time.Minute)
	if err != nil {
		return "", err
	}
	return passed(r.Stdout), nil
}

func passed(tap string) string {
	n := 0
	for line := range strings.SplitSeq(tap, "\n") {
		if strings.HasPrefix(line, "ok ") {
			n++
		}
	}
	return fmt.Sprintf("%d tests passed", n)
}

func containerImage(ctx context.Context, d *demo) (string, error) {
	r, err := d.command(ctx, "sh scripts/image.sh", 10*time.Minute)
	if err != nil {
		return "", err
	}
	if !strings.Contains(r.Stdout, "requests   240") {
		return "", fault.New(fault.Internal, "the container ran, but did not report on the log")
	}
	return passed(r.Stdout) + " inside the container", nil
}

func backgroundTask(ctx context.Context, d *demo) (string, error) {
	var started sandbox.StartBackgroundTaskResult
	if err := d.call(ctx, "start_background_task", map[string]any{
		"instance_id": d.r.InstanceID, "command": "sh scripts/replay.sh 4",
	}, &started); err != nil {
		return "", err
	}
	var t sandbox.Task
	for end := time.Now().Add(2 * time.Minute); ; {
		if err := d.call(ctx, "get_task_status", map[string]any{"task_id": started.TaskID, "wait_seconds": 20}, &t); err != nil {
			return "", err
		}
		if t.Status != "running" {
			break
		}
		if time.Now().After(end) {
			return "", fault.New(fault.Internal, "the background task does not end")
		}
	}
	var logs sandbox.GetTaskLogsResult
	if err := d.call(ctx, "get_task_logs", map[string]any{"task_id": started.TaskID, "stream": "stdout"}, &logs); err != nil {
		return "", err
	}
	d.show(logs.Logs)
	if t.Status != "succeeded" || !strings.HasSuffix(strings.TrimSpace(logs.Logs), "done") {
		return "", fault.New(fault.Internal, "the background task %s", t.Status)
	}
	return started.TaskID + " " + t.Status, nil
}

const makeReport = "mkdir -p report && bin/logreport data/access.log > report/summary.txt && " +
	"bin/logreport -f json data/access.log > report/summary.json && ls -l report"

func collect(ctx context.Context, d *demo) (string, error) {
	if _, err := d.command(ctx, makeReport, time.Minute); err != nil {
		return "", err
	}
	var r sandbox.CollectArtifactsResult
	if err := d.call(ctx, "collect_artifacts", map[string]any{
		"instance_id": d.r.InstanceID, "remote_paths": []string{"report/*"}, "local_dest": filepath.Join(d.root, "artifacts"),
	}, &r); err != nil {
		return "", err
	}
	for _, f := range r.Failed {
		return "", fault.New(fault.Internal, "%s could not be collected: %s", f.RemotePath, f.Reason)
	}
	if len(r.Artifacts) != 2 {
		return "", fault.New(fault.Internal, "%d artifacts were collected, want 2", len(r.Artifacts))
	}
	for _, a := range r.Artifacts {
		sum, err := sha256File(a.LocalPath)
		if err != nil {
			return "", err
		}
		if sum != a.SHA256 {
			return "", fault.New(fault.Internal, "%s has SHA-256 %s on the host, the server said %s", a.LocalPath, sum, a.SHA256)
		}
		d.show(fmt.Sprintf("%s  %s  %d bytes", a.SHA256, a.LocalPath, a.Bytes))
		if strings.HasSuffix(a.LocalPath, "summary.txt") {
			text, err := os.ReadFile(a.LocalPath)
			if err != nil {
				return "", err
			}
			d.show(string(text))
		}
	}
	d.r.Artifacts = r.Artifacts
	return fmt.Sprintf("%d artifacts, SHA-256 checked on the host", len(r.Artifacts)), nil
}

func sha256File(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func syncBack(ctx context.Context, d *demo) (string, error) {
	sync := func(dry bool) (*sandbox.SyncFromInstanceResult, error) {
		var r sandbox.SyncFromInstanceResult
		err := d.call(ctx, "sync_instance_to_workspace", map[string]any{"instance_id": d.r.InstanceID, "dry_run": dry}, &r)
		return &r, err
	}
	generated := filepath.Join(d.root, "report", "summary.txt")
	plan, err := sync(true)
	if err != nil {
		return "", err
	}
	d.show(fmt.Sprintf("would create %s; update %d, delete %d, refuse %d; %d conflicts",
		strings.Join(plan.Created, ", "), len(plan.Updated), len(plan.Deleted), len(plan.Refused), len(plan.Conflicts)))
	if !slices.Contains(plan.Created, "report/summary.txt") {
		return "", fault.New(fault.Internal, "the dry run does not plan to create report/summary.txt")
	}
	if _, err := os.Stat(generated); !errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.Internal, "the dry run wrote %s", generated)
	}
	done, err := sync(false)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(generated); err != nil {
		return "", fault.Wrap(err, fault.Internal, "the sync did not bring %s", generated)
	}
	return fmt.Sprintf("%d files created on the host, as the dry run said", len(done.Created)), nil
}

func destroy(ctx context.Context, d *demo) (string, error) {
	var r sandbox.DestroyInstanceResult
	if err := d.call(ctx, "destroy_instance", map[string]any{"instance_id": d.r.InstanceID}, &r); err != nil {
		return "", err
	}
	return r.InstanceID + " " + r.Status, nil
}

// settle is how long processes that are ending may still be seen.
const settle = 10 * time.Second

func nothingLeft(ctx context.Context, d *demo) (string, error) {
	var list sandbox.ListInstancesResult
	if err := d.call(ctx, "list_instances", map[string]any{}, &list); err != nil {
		return "", err
	}
	for _, in := range list.Instances {
		if in.WorkspaceRoot == d.root {
			return "", fault.New(fault.Internal, "%s is still listed as %s", in.InstanceID, in.Status)
		}
	}
	dir := d.o.Settings.InstanceDir(d.vm)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.Internal, "the VM's directory %s is still there", dir)
	}
	if d.o.Processes == nil {
		return "no lease, no directory", nil
	}
	// destroy_instance returns when the VM is gone; its supervisor may need a
	// moment more to leave, and there is nobody left to say when it has.
	for end := time.Now().Add(settle); ; {
		pids, err := d.o.Processes(d.vm)
		if err != nil {
			return "", err
		}
		if len(pids) == 0 {
			return "no lease, no directory, no process", nil
		}
		if time.Now().After(end) {
			return "", fault.New(fault.Internal, "processes of the VM are left: %v", pids)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
