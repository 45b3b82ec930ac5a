package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
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
	Creates  int // cold creates; 0: 3
	CPUs     int // vCPUs of each VM; 0: the configuration's default
	Files    int // files of the sync; 0: 2000
	Out      io.Writer
	// Progress is told about each step; may be nil.
	Progress func(step string)
}

const fileSize = 4 << 10

// Run measures everything in a state directory of its own and leaves nothing
// behind, also when ctx ends. The images of the settings are used.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if o.Creates <= 0 {
		o.Creates = 3
	}
	if o.Files <= 0 {
		o.Files = 2000
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
	defer func() {
		if cerr := b.close(ctx); err == nil {
			err = cerr
		}
	}()
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"server", b.server}, {"cold creates", b.creates}, {"ping", b.ping}, {"commands", b.commands},
		{"sync", b.sync}, {"memory", b.memory},
	} {
		if o.Progress != nil {
			o.Progress(step.name)
		}
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return b.r, nil
}

type bench struct {
	o    Options
	dir  string
	work string
	r    *Report
	c    *mcpclient.Client
	id   string // the instance that is up
}

func (b *bench) add(f Figure) { b.r.Figures = append(b.r.Figures, f) }

func (b *bench) call(ctx context.Context, tool string, args map[string]any, out any) error {
	return b.c.Call(ctx, tool, args, out, nil)
}

// server starts a fresh server and measures its idle memory.
func (b *bench) server(ctx context.Context) (err error) {
	env := append([]string{}, b.o.Environ...)
	env = append(env, "SANDBOXFORGE_HOME="+filepath.Join(b.dir, "h"), "SANDBOX_IMAGE_DIR="+b.o.Settings.ImageDir,
		"LEASE_DB_PATH=", "MCP_ENABLE_HTTP=0", "MCP_ENABLE_STDIO=1", "SANDBOX_WORKSPACE_ROOTS=", "MAX_TTL_MINUTES=120")
	b.c, err = mcpclient.Connect(ctx, b.o.Server, env, b.o.Version)
	if err != nil {
		return err
	}
	// The accelerator is probed outside the figures.
	var list sandbox.ListInstancesResult
	return b.call(ctx, "list_instances", map[string]any{}, &list)
}

// creates makes and destroys VMs one after the other, and keeps the last.
func (b *bench) creates(ctx context.Context) error {
	var ready, agent, bootstrap, destroy []float64
	for i := range b.o.Creates {
		var res sandbox.CreateInstanceResult
		began := time.Now()
		if err := b.call(ctx, "create_instance", map[string]any{
			"workspace_root": b.work, "wait_for_ready": true, "ttl_minutes": 120, "overrides": b.overrides(),
		}, &res); err != nil {
			return err
		}
		ready = append(ready, ms(time.Since(began)))
		agent = append(agent, float64(res.TimingsMS["boot_agent"]))
		bootstrap = append(bootstrap, float64(res.TimingsMS["bootstrap"]))
		b.id = res.InstanceID
		b.r.Backend, b.r.Accelerator = res.Backend, res.Accelerator
		if i == b.o.Creates-1 {
			break
		}
		began = time.Now()
		if err := b.call(ctx, "destroy_instance", map[string]any{"instance_id": b.id}, nil); err != nil {
			return err
		}
		destroy = append(destroy, ms(time.Since(began)))
		b.id = ""
	}
	var cfg sandbox.ValidateWorkspaceConfigResult
	if err := b.call(ctx, "validate_workspace_config", map[string]any{"workspace_root": b.work, "overrides": b.overrides()}, &cfg); err != nil {
		return err
	}
	if vm, ok := cfg.Config["vm"].(map[string]any); ok {
		b.r.VM = fmt.Sprintf("%v vCPU, %v GiB memory, %v GiB disk", vm["cpus"], vm["memory_gib"], vm["disk_gib"])
	}
	b.add(figure("cold create to Docker ready", "ms", "create_instance(wait_for_ready=true), empty workspace", ready))
	b.add(figure("  of which QEMU start to agent", "ms", "timings_ms.boot_agent", agent))
	b.add(figure("  of which bootstrap (Docker, network)", "ms", "timings_ms.bootstrap", bootstrap))
	if destroy != nil {
		b.add(figure("destroy", "ms", "destroy_instance", destroy))
	}
	return nil
}

func (b *bench) overrides() map[string]any {
	if b.o.CPUs == 0 {
		return map[string]any{}
	}
	return map[string]any{"vm": map[string]any{"cpus": b.o.CPUs}}
}

// dial opens the supervisor's client of the instance that is up.
func (b *bench) dial(ctx context.Context) (*supervisor.Client, error) {
	env := map[string]string{"SANDBOXFORGE_HOME": filepath.Join(b.dir, "h")}
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
	return supervisor.Dial(ctx, run, "agent-"+strings.TrimPrefix(b.id, "inst_"))
}

func (b *bench) ping(ctx context.Context) error {
	c, err := b.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := b.settle(ctx); err != nil {
		return err
	}
	var s []float64
	for range 200 {
		began := time.Now()
		if _, err := c.Guest().Ping(ctx); err != nil {
			return err
		}
		s = append(s, ms(time.Since(began)))
	}
	b.add(figure("agent ping through the supervisor", "ms", "guest Ping over the supervisor's socket", s))
	return nil
}

// settle waits until the guest has little to do, so that what follows is not
// measured against its start-up.
func (b *bench) settle(ctx context.Context) error {
	const script = `for i in $(seq 1 120); do
a=$(awk '/^cpu /{print $5}' /proc/stat); sleep 1; b=$(awk '/^cpu /{print $5}' /proc/stat)
[ $((b - a)) -gt 85 ] && exit 0
done`
	return b.call(ctx, "run_command", map[string]any{"instance_id": b.id, "command": script, "timeout_seconds": 300}, nil)
}

// commands compares run_command with what the guest itself needs to start the
// same shell.
func (b *bench) commands(ctx context.Context) error {
	const rounds = 30
	var over, inside []float64
	for range rounds {
		began := time.Now()
		if err := b.call(ctx, "run_command", map[string]any{"instance_id": b.id, "command": "true"}, nil); err != nil {
			return err
		}
		over = append(over, ms(time.Since(began)))
	}
	// A shell starting "sh -c true" as the agent does, timed by the guest's
	// clock; ten a sample, because the timing itself starts processes.
	const script = `for i in $(seq 1 %d); do s=$(date +%%s%%N); for j in 1 2 3 4 5 6 7 8 9 10; do sh -c true; done; e=$(date +%%s%%N); echo $(((e - s) / 10)); done`
	var r sandbox.RunCommandResult
	if err := b.call(ctx, "run_command", map[string]any{"instance_id": b.id, "command": fmt.Sprintf(script, rounds)}, &r); err != nil {
		return err
	}
	for _, f := range strings.Fields(r.Stdout) {
		ns, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return fault.Wrap(err, fault.Internal, "the guest's clock said %q", f)
		}
		inside = append(inside, ns/1e6)
	}
	b.add(figure("run_command(\"true\") over MCP stdio", "ms", "run_command, one after the other", over))
	b.add(figure("  the same start inside the guest", "ms", "a shell in the guest starting `sh -c true`", inside))
	return nil
}

// sync compares a first sync with the same files as a tar through the same
// link into the guest's tar, and with a second sync that finds nothing to do.
func (b *bench) sync(ctx context.Context) error {
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	rnd := rand.NewChaCha8([32]byte{1})
	body := make([]byte, fileSize)
	for i := range b.o.Files {
		name := fmt.Sprintf("d%02d/f%05d.bin", i%50, i)
		_, _ = rnd.Read(body) // never fails
		path := filepath.Join(b.work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, body, 0o644); err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: fileSize, ModTime: time.Unix(1, 0)}); err != nil {
			return err
		}
		if _, err := tw.Write(body); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	c, err := b.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	var floor, first, again []float64
	for i := range 3 {
		d, err := b.untar(ctx, c.Guest(), archive.Bytes(), fmt.Sprintf("/tmp/floor%d", i))
		if err != nil {
			return err
		}
		floor = append(floor, ms(d))
		args := map[string]any{"instance_id": b.id, "remote_path": fmt.Sprintf("/tmp/sync%d", i)}
		for _, into := range []*[]float64{&first, &again} {
			var r sandbox.SyncToInstanceResult
			began := time.Now()
			if err := b.call(ctx, "sync_workspace_to_instance", args, &r); err != nil {
				return err
			}
			*into = append(*into, ms(time.Since(began)))
		}
	}
	n := fmt.Sprintf("%d files of 4 KiB", b.o.Files)
	b.add(figure("sync of "+n, "ms", "sync_workspace_to_instance into an empty directory", first))
	b.add(figure("  a tar of them through the same link", "ms", "tar -x in the guest, fed over the supervisor's socket", floor))
	b.add(figure("  sync again, unchanged", "ms", "sync_workspace_to_instance", again))
	return nil
}

// untar feeds an archive to the guest's own tar.
func (b *bench) untar(ctx context.Context, g *guest.Client, archive []byte, to string) (time.Duration, error) {
	id := guest.NewID("bench-")
	began := time.Now()
	if _, _, err := g.Start(ctx, id, guest.Spec{Command: "mkdir -p " + to + " && tar -x -C " + to, StdinOpen: true}); err != nil {
		return 0, err
	}
	at, err := g.Attach(ctx, id, guest.Offsets{})
	if err != nil {
		return 0, err
	}
	defer at.Close()
	for rest := archive; len(rest) > 0; {
		n := min(len(rest), 256<<10)
		if err := at.SendStdin(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	if err := at.CloseStdin(); err != nil {
		return 0, err
	}
	for {
		ev, err := at.Next()
		if err != nil {
			return 0, err
		}
		if ev.Ended != nil {
			if ev.Ended.ExitCode != 0 {
				return 0, fault.New(fault.Internal, "tar in the guest ended with %d", ev.Ended.ExitCode)
			}
			return time.Since(began), nil
		}
	}
}

func (b *bench) memory(ctx context.Context) error {
	c, err := b.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	// Idle means idle: after a transfer the runtimes give memory back within
	// this time or not at all.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(30 * time.Second):
	}
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	mb := func(n int64) []float64 { return []float64{float64(n) / 1e6} }
	b.add(figure("server, idle", "MB PSS", "smaps_rollup, 30 s after the sync", mb(host.ProcessPSS(b.c.PID()))))
	b.add(figure("supervisor, idle", "MB PSS", "smaps_rollup, 30 s after the sync", mb(host.ProcessPSS(st.PID))))
	b.add(figure("QEMU with its guest", "MB PSS", "smaps_rollup", mb(host.ProcessPSS(st.VMPID))))
	return nil
}

// close destroys what is up and ends the server.
func (b *bench) close(ctx context.Context) error {
	if b.c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var list sandbox.ListInstancesResult
	err := b.call(ctx, "list_instances", map[string]any{}, &list)
	for _, i := range list.Instances {
		if derr := b.call(ctx, "destroy_instance", map[string]any{"instance_id": i.InstanceID, "force": true}, nil); err == nil {
			err = derr
		}
	}
	if cerr := b.c.Close(); err == nil {
		err = cerr
	}
	return err
}

func describeHost() string {
	mem, _ := host.MemoryAvailable()
	return fmt.Sprintf("%s, %d processors, %.1f GiB available", strings.TrimPrefix(firstLine("/proc/version"), "Linux version "), host.CPUs(), float64(mem)/(1<<30))
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
