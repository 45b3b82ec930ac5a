package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/host"
	"sandboxforge/internal/mcpclient"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/supervisor"
)

// Options describe a run.
type Options struct {
	Server   string // the server binary
	Settings *config.Settings
	Environ  []string // of the server; SANDBOXFORGE_HOME is replaced
	Version  string
	Cold     int // cold creates; 0: 3
	Rounds   int // rounds of everything that takes a second or less; 0: 30
	CPUs     int // vCPUs of each VM; 0: the configuration's default
	Files    int // files of 4 KiB in the sync; 0: 10000
	BulkMiB  int // size of the one large file in the sync; 0: 1024
	// ServicesImage is the guest image for creates with services; "": these are
	// not measured.
	ServicesImage string
	// Only names the parts to run, see Parts; nil: all.
	Only []string
	// Floor opens the bare VM that clones are compared with; nil: not compared.
	Floor Floor
	// Progress is told about each step; may be nil.
	Progress func(step string)
}

// Floor starts a VM of the state directory home in a saved state with as little around it as there can be,
// and returns when a first command has run in it. stop ends the VM.
type Floor func(ctx context.Context, home, state string, round int) (agent func(context.Context) error, stop func() error, err error)

// part is one group of figures.
type part struct {
	name string
	run  func(*bench, context.Context) error
}

var parts = []part{
	{"cold", (*bench).cold}, {"clone", (*bench).clone}, {"default", (*bench).defaults}, {"warm", (*bench).warm},
	{"parallel", (*bench).parallel}, {"fork", (*bench).fork}, {"idle", (*bench).idle},
	{"calls", (*bench).calls}, {"sync", (*bench).sync}, {"services", (*bench).services},
}

// Parts are the groups of figures that Options.Only can name.
func Parts() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// Run measures everything in a state directory of its own and leaves nothing
// behind, also when ctx ends. The images and templates of the settings are used.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	for v, def := range map[*int]int{&o.Cold: 3, &o.Rounds: 30, &o.Files: 10_000, &o.BulkMiB: 1024} {
		if *v <= 0 {
			*v = def
		}
	}
	dir, err := os.MkdirTemp("", "sandboxforge-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &bench{o: o, dir: dir, work: filepath.Join(dir, "work"), r: &Report{
		At: time.Now().UTC(), Version: o.Version, Host: describeHost(), Load: firstLine("/proc/loadavg"),
	}}
	if err := os.Mkdir(b.work, 0o755); err != nil {
		return nil, err
	}
	for _, p := range parts {
		if o.Only != nil && !slices.Contains(o.Only, p.name) {
			continue
		}
		b.say("%s", p.name)
		began := time.Now()
		if err := p.run(b, ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		b.r.Took = append(b.r.Took, Took{p.name, time.Since(began).Seconds()})
	}
	return b.r, nil
}

type bench struct {
	o     Options
	dir   string
	work  string
	state string // the template's saved state
	r     *Report
}

func (b *bench) say(format string, args ...any) {
	if b.o.Progress != nil {
		b.o.Progress(fmt.Sprintf(format, args...))
	}
}

func (b *bench) add(f Figure) { b.r.Figures = append(b.r.Figures, f) }

// server is one server process and the session with it.
type server struct {
	*mcpclient.Client
	b *bench
}

func (b *bench) home() string { return filepath.Join(b.dir, "h") }

// start starts a fresh server.
func (b *bench) start(ctx context.Context, env ...string) (*server, error) {
	all := append([]string{}, b.o.Environ...)
	all = append(all, "SANDBOXFORGE_HOME="+b.home(), "SANDBOX_IMAGE_DIR="+b.o.Settings.ImageDir, "MAX_INSTANCES=16",
		"LEASE_DB_PATH=", "MCP_ENABLE_HTTP=0", "MCP_ENABLE_STDIO=1", "SANDBOX_WORKSPACE_ROOTS=", "MAX_TTL_MINUTES=240",
		"SANDBOX_WARM_POOL=0", "SANDBOX_TEMPLATES=auto")
	c, err := mcpclient.Connect(ctx, b.o.Server, append(all, env...), b.o.Version)
	if err != nil {
		return nil, err
	}
	return &server{c, b}, nil
}

func (s *server) call(ctx context.Context, tool string, args map[string]any, out any) error {
	return s.Call(ctx, tool, args, out, nil)
}

// end destroys what is up and ends the server.
func (s *server) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	var list sandbox.ListInstancesResult
	err := s.call(ctx, "list_instances", map[string]any{}, &list)
	for _, i := range list.Instances {
		if derr := s.destroy(ctx, i.InstanceID); err == nil {
			err = derr
		}
	}
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	return err
}

// with runs f with a fresh server and ends that.
func (b *bench) with(ctx context.Context, f func(*server) error, env ...string) (err error) {
	s, err := b.start(ctx, env...)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := s.end(ctx); err == nil {
			err = cerr
		}
	}()
	return f(s)
}

// create calls create_instance for the empty workspace.
func (s *server) create(ctx context.Context, args map[string]any) (sandbox.CreateInstanceResult, error) {
	all := map[string]any{"workspace_root": s.b.work, "ttl_minutes": 120}
	if s.b.o.CPUs != 0 {
		all["overrides"] = map[string]any{"vm": map[string]any{"cpus": s.b.o.CPUs}}
	}
	for k, v := range args {
		all[k] = v
	}
	var res sandbox.CreateInstanceResult
	err := s.call(ctx, "create_instance", all, &res)
	if err == nil && s.b.r.Backend == "" {
		err = s.describe(ctx, res)
	}
	return res, err
}

// describe fills in what VMs the figures are of.
func (s *server) describe(ctx context.Context, res sandbox.CreateInstanceResult) error {
	r := s.b.r
	r.Backend, r.Accelerator = res.Backend, res.Accelerator
	args := map[string]any{"workspace_root": s.b.work}
	if s.b.o.CPUs != 0 {
		args["overrides"] = map[string]any{"vm": map[string]any{"cpus": s.b.o.CPUs}}
	}
	var cfg sandbox.ValidateWorkspaceConfigResult
	if err := s.call(ctx, "validate_workspace_config", args, &cfg); err != nil {
		return err
	}
	if vm, ok := cfg.Config["vm"].(map[string]any); ok {
		r.VM = fmt.Sprintf("%v vCPU, %v GiB memory, %v GiB disk", vm["cpus"], vm["memory_gib"], vm["disk_gib"])
	}
	return nil
}

func (s *server) destroy(ctx context.Context, id string) error {
	return s.call(ctx, "destroy_instance", map[string]any{"instance_id": id, "force": true}, nil)
}

func (s *server) run(ctx context.Context, id, command string) (sandbox.RunCommandResult, error) {
	var r sandbox.RunCommandResult
	err := s.call(ctx, "run_command", map[string]any{"instance_id": id, "command": command, "timeout_seconds": 600}, &r)
	return r, err
}

// settle waits until the guest has little to do, so that what follows is not
// measured against its start-up.
func (s *server) settle(ctx context.Context, id string) error {
	_, err := s.run(ctx, id, `for i in $(seq 1 120); do
a=$(awk '/^cpu /{print $5}' /proc/stat); sleep 1; b=$(awk '/^cpu /{print $5}' /proc/stat)
[ $((b - a)) -gt 85 ] && exit 0
done`)
	return err
}

// dial opens the supervisor's client of an instance.
func (b *bench) dial(ctx context.Context, id string) (*supervisor.Client, error) {
	env := map[string]string{"SANDBOXFORGE_HOME": b.home()}
	for _, kv := range b.o.Environ {
		if k, v, _ := strings.Cut(kv, "="); k == "HOME" || k == "XDG_RUNTIME_DIR" {
			env[k] = v
		}
	}
	s, err := config.LoadSettings(func(k string) string { return env[k] }, "linux")
	if err != nil {
		return nil, err
	}
	run, err := s.RunDir()
	if err != nil {
		return nil, err
	}
	return supervisor.Dial(ctx, run, "agent-"+strings.TrimPrefix(id, "inst_"))
}

// pause waits, so that what is measured next is of an idle machine.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func describeHost() string {
	mem, _ := host.MemoryAvailable()
	return fmt.Sprintf("Linux %s, %d processors, %.1f GiB available", firstLine("/proc/sys/kernel/osrelease"), host.CPUs(), float64(mem)/(1<<30))
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if len(line) > 60 {
		line = line[:60]
	}
	return line
}
