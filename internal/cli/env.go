package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/version"
)

// Service is what the commands call; *sandbox.Service in the real program.
type Service interface {
	ListInstances(context.Context, sandbox.ListInstancesRequest) (*sandbox.ListInstancesResult, error)
	DestroyInstance(context.Context, sandbox.DestroyInstanceRequest) (*sandbox.DestroyInstanceResult, error)
	ListTasks(context.Context, sandbox.ListTasksRequest) (*sandbox.ListTasksResult, error)
	GetTaskStatus(context.Context, sandbox.GetTaskStatusRequest) (*sandbox.Task, error)
	GetTaskLogs(context.Context, sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error)
	Exec(context.Context, sandbox.ExecOptions) (*sandbox.ExecResult, error)
	Console(context.Context, sandbox.ConsoleRequest) (*sandbox.ConsoleResult, error)
	GC(context.Context) (*sandbox.GCResult, error)
	WarmTemplate(context.Context, sandbox.WarmTemplateRequest) (*sandbox.WarmTemplateResult, error)
	ListTemplates(context.Context) (*sandbox.ListTemplatesResult, error)
	RemoveTemplate(ctx context.Context, prefix string) (*sandbox.TemplateInfo, error)
	RemoveUnfitTemplates(context.Context) ([]sandbox.TemplateInfo, error)
	ListSnapshots(context.Context, sandbox.ListSnapshotsRequest) (*sandbox.ListSnapshotsResult, error)
	DeleteSnapshot(context.Context, sandbox.DeleteSnapshotRequest) (*sandbox.DeleteSnapshotResult, error)
	Close() error
}

// Env is all that lies outside the commands. Tests replace parts of it.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Executable is the path of the running program: the server is looked for
	// beside it.
	Executable func() (string, error)
	// OpenService opens the lease database and the backends.
	OpenService func(context.Context, *config.Settings, *slog.Logger) (Service, error)
	// Backends lists this platform's backends, unprobed.
	Backends func(*config.Settings) []backend.Backend
	Version  string
}

// System is the real world.
func System() Env {
	return Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv:      os.Getenv,
		Executable:  os.Executable,
		OpenService: openService,
		Backends:    allBackends,
		Version:     version.String(),
	}
}

// settings reads the environment.
func (e *Env) settings() (*config.Settings, error) {
	s, err := config.LoadSettings(e.Getenv, runtime.GOOS)
	if err != nil {
		return nil, &usageError{err}
	}
	return s, nil
}

// logger writes to stderr. A command that ends at once says only what is
// wrong, unless SANDBOX_LOG_LEVEL asks for more.
func (e *Env) logger(s *config.Settings) *slog.Logger {
	level := s.LogLevel
	if e.Getenv("SANDBOX_LOG_LEVEL") == "" {
		level = slog.LevelWarn
	}
	o := &slog.HandlerOptions{Level: level}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(e.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(e.Stderr, o))
}

// withService runs f with an open service.
func (e *Env) withService(ctx context.Context, f func(context.Context, Service) error) error {
	s, err := e.settings()
	if err != nil {
		return err
	}
	log := e.logger(s)
	for _, w := range s.Warnings {
		log.Warn(w)
	}
	svc, err := e.OpenService(ctx, s, log)
	if err != nil {
		return err
	}
	err = f(ctx, svc)
	if cerr := svc.Close(); err == nil {
		err = cerr
	}
	return err
}
