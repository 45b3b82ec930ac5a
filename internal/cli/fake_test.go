package cli

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// fakeService answers from what a test put into it. Nil functions fail.
type fakeService struct {
	instances []sandbox.Instance
	tasks     []sandbox.Task
	templates []sandbox.TemplateInfo
	snapshots []sandbox.Snapshot

	mu        sync.Mutex
	destroyed []string

	destroy func(sandbox.DestroyInstanceRequest) error
	exec    func(context.Context, sandbox.ExecOptions) (*sandbox.ExecResult, error)
	logs    func(sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error)
	status  func(sandbox.GetTaskStatusRequest) (*sandbox.Task, error)
	console func() (*sandbox.ConsoleResult, error)
	gc      *sandbox.GCResult
}

func (f *fakeService) ListInstances(_ context.Context, r sandbox.ListInstancesRequest) (*sandbox.ListInstancesResult, error) {
	out := &sandbox.ListInstancesResult{Instances: []sandbox.Instance{}}
	for _, in := range f.instances {
		if r.IncludeExpired || !ended(in) {
			out.Instances = append(out.Instances, in)
		}
	}
	return out, nil
}

func (f *fakeService) DestroyInstance(_ context.Context, r sandbox.DestroyInstanceRequest) (*sandbox.DestroyInstanceResult, error) {
	if f.destroy != nil {
		if err := f.destroy(r); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.destroyed = append(f.destroyed, r.InstanceID)
	return &sandbox.DestroyInstanceResult{InstanceID: r.InstanceID, Status: "destroyed"}, nil
}

func (f *fakeService) ListTasks(_ context.Context, r sandbox.ListTasksRequest) (*sandbox.ListTasksResult, error) {
	out := &sandbox.ListTasksResult{Tasks: []sandbox.Task{}}
	for _, t := range f.tasks {
		if (r.InstanceID == "" || r.InstanceID == t.InstanceID) && (r.Kind == "all" || r.Kind == t.Kind) {
			out.Tasks = append(out.Tasks, t)
		}
	}
	return out, nil
}

func (f *fakeService) GetTaskStatus(_ context.Context, r sandbox.GetTaskStatusRequest) (*sandbox.Task, error) {
	return f.status(r)
}

func (f *fakeService) GetTaskLogs(_ context.Context, r sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error) {
	return f.logs(r)
}

func (f *fakeService) Exec(ctx context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
	return f.exec(ctx, o)
}

func (f *fakeService) Console(context.Context, sandbox.ConsoleRequest) (*sandbox.ConsoleResult, error) {
	if f.console == nil {
		return nil, fault.New(fault.InstanceTerminal, "no console")
	}
	return f.console()
}

func (f *fakeService) ListSnapshots(context.Context, sandbox.ListSnapshotsRequest) (*sandbox.ListSnapshotsResult, error) {
	return &sandbox.ListSnapshotsResult{Snapshots: f.snapshots, TotalBytes: 3 << 20, CapBytes: 40 << 30}, nil
}

func (f *fakeService) DeleteSnapshot(_ context.Context, r sandbox.DeleteSnapshotRequest) (*sandbox.DeleteSnapshotResult, error) {
	for i, s := range f.snapshots {
		if s.SnapshotID == r.SnapshotID && len(s.Children) > 0 {
			return nil, fault.New(fault.InvalidArgument, "snapshot %s cannot be deleted: others need it", s.SnapshotID)
		}
		if s.SnapshotID == r.SnapshotID {
			f.snapshots = append(f.snapshots[:i:i], f.snapshots[i+1:]...)
			break
		}
	}
	return &sandbox.DeleteSnapshotResult{SnapshotID: r.SnapshotID, Status: "deleted"}, nil
}

func (f *fakeService) GC(context.Context) (*sandbox.GCResult, error) { return f.gc, nil }
func (f *fakeService) WarmTemplate(context.Context, sandbox.WarmTemplateRequest) (*sandbox.WarmTemplateResult, error) {
	return &sandbox.WarmTemplateResult{Template: f.templates[0], Made: true, DurationMS: 41_000}, nil
}

func (f *fakeService) ListTemplates(context.Context) (*sandbox.ListTemplatesResult, error) {
	return &sandbox.ListTemplatesResult{Dir: "/images/templates", Templates: f.templates}, nil
}

func (f *fakeService) RemoveTemplate(_ context.Context, prefix string) (*sandbox.TemplateInfo, error) {
	for _, t := range f.templates {
		if strings.HasPrefix(t.Key, prefix) {
			return &t, nil
		}
	}
	return nil, fault.New(fault.InvalidArgument, "there is no template %q", prefix)
}

func (f *fakeService) RemoveUnfitTemplates(context.Context) ([]sandbox.TemplateInfo, error) {
	return f.templates, nil
}
func (f *fakeService) Close() error { return nil }

// run runs one command line on the fake.
func (f *fakeService) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := f.env(t)
	env.Stdout, env.Stderr = &out, &errs
	code = Main(args, env)
	return code, out.String(), errs.String()
}

func (f *fakeService) env(t *testing.T) Env {
	dir := t.TempDir()
	return Env{
		Stdin: bytes.NewReader(nil), Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{},
		Getenv: func(name string) string {
			switch name {
			case "SANDBOXFORGE_HOME":
				return filepath.Join(dir, "home")
			case "HOME":
				return dir
			}
			return ""
		},
		Executable: func() (string, error) { return filepath.Join(dir, "sandboxforge"), nil },
		OpenService: func(context.Context, *config.Settings, *slog.Logger) (Service, error) {
			return f, nil
		},
		Backends: func(*config.Settings) []backend.Backend { return nil },
		Version:  "test",
	}
}

func instance(id, status string) sandbox.Instance {
	return sandbox.Instance{
		InstanceID: "inst_" + id, BackendInstanceName: "agent-" + id, BackendName: "qemu", Accelerator: "tcg",
		Status: status, WorkspaceRoot: "/proj/" + id, CreatedAt: "2026-03-01T08:00:00Z", ExpiresAt: "2026-03-01T08:30:00Z",
	}
}
