package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/fake"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/guest/guestv1/guestv1connect"
	"sandboxforge/internal/link"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// A lab is a state directory with real supervisors around VMs of the fake
// backend, for what only several processes show: this test binary is the
// supervisor too, and the server that is killed.
type lab struct {
	t    *testing.T
	home string
	work string
	env  map[string]string
	s    *Service
}

// labConfig is the fake backend's configuration, also in supervisors.
type labConfig struct {
	Dir    string // of the VMs
	Faults string // directory of pipes and tokens, see the hooks below
	Plain  bool   // no saved states
	Build  string
}

// labServerEnv makes the test binary a server that does one thing.
const labServerEnv = "SANDBOXFORGE_TEST_LAB"

type labOrder struct {
	Env  map[string]string
	Conf labConfig
	Fork *ForkInstanceRequest
	Snap *SnapshotInstanceRequest
	Rest *RestoreInstanceRequest
	Make *CreateInstanceRequest
}

func init() {
	supervisor.RegisterBackend("fake", func(raw json.RawMessage) (backend.Backend, error) {
		var c labConfig
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, err
		}
		supervisor.Wall = c.now
		return c.open()
	})
	if handled, code := supervisor.Main(os.Args); handled {
		os.Exit(code)
	}
	if text := os.Getenv(labServerEnv); text != "" {
		os.Exit(labServer(text))
	}
}

func (c labConfig) open() (backend.Backend, error) {
	return fake.New(c.Dir, fake.Options{
		States: !c.Plain, Build: c.Build, Serve: c.serveGuest,
		Hooks: fake.Hooks{
			// A token makes one start fail.
			Start: func(ctx context.Context, name string) error {
				if err := c.pass(ctx, "start"); err != nil {
					return err
				}
				tokens, _ := filepath.Glob(filepath.Join(c.Faults, "fail-start-*"))
				for _, f := range tokens {
					if os.Remove(f) == nil {
						return errors.New("the test lets this start fail")
					}
				}
				return nil
			},
			StateKey: func(_ context.Context, image string) error {
				if image == "missing" {
					return fault.New(fault.ImageNotFound, "there is no image %q", image)
				}
				return nil
			},
			Delete: func(context.Context, string) error {
				if _, err := os.Stat(filepath.Join(c.Faults, "fail-delete")); err == nil {
					return errors.New("the test keeps this VM")
				}
				// What a VM takes of a disk, a link names.
				if disk, err := os.Readlink(filepath.Join(c.Faults, "disk")); err == nil {
					os.Remove(disk)
				}
				return nil
			},
			SaveHalf: func(ctx context.Context, _, dir string) error {
				if err := os.WriteFile(filepath.Join(c.Faults, "paused-"+filepath.Base(filepath.Dir(dir))), nil, 0o600); err != nil {
					return err
				}
				if _, err := os.Stat(filepath.Join(c.Faults, "fail-save")); err == nil {
					return errors.New("the test lets this save fail")
				}
				return c.pass(ctx, "save")
			},
			SettleState: func(_ context.Context, dir string) error {
				if _, err := os.Stat(filepath.Join(c.Faults, "fail-settle")); err == nil {
					return fmt.Errorf("the test says: %w", syscall.ENOSPC)
				}
				if _, err := os.Stat(filepath.Join(c.Faults, "lose-manifest")); err == nil {
					lost := filepath.Join(syncDir(filepath.Dir(dir)), "aa.manifest")
					if err := errors.Join(os.Remove(lost), os.Symlink("nowhere", lost)); err != nil {
						return err
					}
				}
				return os.WriteFile(filepath.Join(c.Faults, "settled-"+filepath.Base(filepath.Dir(dir))), nil, 0o600)
			},
		},
	})
}

// now is the lab's host's clock, which setClock sets for all its processes.
func (c labConfig) now() time.Time {
	b, _ := os.ReadFile(filepath.Join(c.Faults, "clock"))
	off, _ := time.ParseDuration(string(b))
	return time.Now().Add(off)
}

func (l *lab) setClock(off time.Duration) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.conf().Faults, "clock"), []byte(off.String()), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// pass is a place where the test can stop this process: while there is a pipe
// NAME-here, whoever passes says so on it and goes on when NAME-go is written, or
// with ctx.
func (c labConfig) pass(ctx context.Context, name string) error {
	here, err := os.OpenFile(filepath.Join(c.Faults, name+"-here"), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	here.Close()
	gone := make(chan error, 1)
	go func() { // ends with the test at the latest
		_, err := os.ReadFile(filepath.Join(c.Faults, name+"-go"))
		gone <- err
	}()
	select {
	case err := <-gone:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serveGuest is a guest with an agent that does what supervisors need.
func (c labConfig) serveGuest(_ string, rw io.ReadWriteCloser) {
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewSystemHandler(labGuest{}))
	mux.Handle(guestv1connect.NewProcessesHandler(labProcesses{c: c}))
	mux.Handle(guestv1connect.NewFilesHandler(labFiles{}))
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: mux, Protocols: p}
	srv.Serve(link.NewListener(rw))
}

type labGuest struct {
	guestv1connect.UnimplementedSystemHandler
}

func (labGuest) Ping(context.Context, *guestv1.PingRequest) (*guestv1.PingResponse, error) {
	return &guestv1.PingResponse{AgentVersion: "lab", BootId: "boot-1"}, nil
}

func (labGuest) Info(context.Context, *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	return &guestv1.InfoResponse{AgentVersion: "lab", BootId: "boot-1"}, nil
}

func (labGuest) SetIdentity(context.Context, *guestv1.SetIdentityRequest) (*guestv1.SetIdentityResponse, error) {
	return &guestv1.SetIdentityResponse{}, nil
}

func (labGuest) SetDeadline(context.Context, *guestv1.SetDeadlineRequest) (*guestv1.SetDeadlineResponse, error) {
	return &guestv1.SetDeadlineResponse{}, nil
}

func (labGuest) PowerOff(context.Context, *guestv1.PowerOffRequest) (*guestv1.PowerOffResponse, error) {
	return &guestv1.PowerOffResponse{}, nil
}

type labProcesses struct {
	guestv1connect.UnimplementedProcessesHandler
	c labConfig
}

// Run says that every command succeeded and printed three bytes. A token makes
// one hang.
func (p labProcesses) Run(ctx context.Context, r *guestv1.RunRequest, s *connect.ServerStream[guestv1.FollowResponse]) error {
	tokens, _ := filepath.Glob(filepath.Join(p.c.Faults, "hang-run-*"))
	for _, f := range tokens {
		if os.Remove(f) == nil {
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	return s.Send(&guestv1.FollowResponse{Event: &guestv1.FollowResponse_Ended{Ended: &guestv1.Process{
		Id: r.Id, Status: guestv1.ProcessStatus_PROCESS_STATUS_EXITED, StdoutBytes: 3,
	}}})
}

func (labProcesses) Forget(context.Context, *guestv1.ForgetRequest) (*guestv1.ForgetResponse, error) {
	return &guestv1.ForgetResponse{}, nil
}

// labFiles is a guest without files: without Docker, for one.
type labFiles struct {
	guestv1connect.UnimplementedFilesHandler
}

func (labFiles) Stat(_ context.Context, r *guestv1.StatRequest) (*guestv1.StatResponse, error) {
	return nil, connect.NewError(connect.CodeNotFound, os.ErrNotExist)
}

func (labProcesses) List(context.Context, *guestv1.ListRequest) (*guestv1.ListResponse, error) {
	return &guestv1.ListResponse{}, nil
}

// labBackends offers the fake alone.
type labBackends struct{ c labConfig }

func (b labBackends) Select(ctx context.Context, p backend.Progress) (Selected, error) {
	sel, err := b.ByName("fake")
	if err == nil {
		sel.Report, err = sel.Backend.Probe(ctx, p)
	}
	return sel, err
}

func (b labBackends) ByName(name string) (Selected, error) {
	if name != "fake" {
		return Selected{}, fault.New(fault.BackendUnavailable, "no backend %s in the lab", name)
	}
	raw, err := json.Marshal(b.c)
	if err != nil {
		return Selected{}, err
	}
	f, err := b.c.open()
	return Selected{Backend: f, Config: raw}, err
}

func (b labBackends) All() []backend.Backend {
	sel, err := b.ByName("fake")
	if err != nil {
		return nil
	}
	return []backend.Backend{sel.Backend}
}

func newLab(t *testing.T, env ...string) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sfl") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, home: filepath.Join(dir, "h"), work: filepath.Join(dir, "w")}
	l.env = map[string]string{
		"HOME": dir, "SANDBOXFORGE_HOME": l.home, "MAX_INSTANCES": "8", "SANDBOX_TEMPLATES": "off",
		"SANDBOX_LOG_LEVEL": "debug",
	}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		l.env[k] = v
	}
	for _, d := range []string{l.work, l.conf().Faults} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l.s = l.open(l.conf())
	t.Cleanup(func() {
		list, err := l.s.store.Leases(context.Background(), store.LeaseFilter{})
		if err != nil {
			t.Error(err)
		}
		for _, in := range list {
			if _, err := l.s.DestroyInstance(context.Background(), DestroyInstanceRequest{InstanceID: in.InstanceID, Force: true}); err != nil {
				t.Errorf("destroy %s: %v", in.InstanceID, err)
			}
		}
		os.RemoveAll(dir)
	})
	return l
}

func (l *lab) conf() labConfig {
	return labConfig{Dir: filepath.Join(l.home, "vms"), Faults: filepath.Join(filepath.Dir(l.home), "faults")}
}

// open opens a service on the lab's state.
func (l *lab) open(c labConfig) *Service {
	l.t.Helper()
	s, err := openLab(l.t.Context(), l.env, c)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { s.Close() })
	return s
}

func openLab(ctx context.Context, env map[string]string, c labConfig) (*Service, error) {
	settings, err := config.LoadSettings(func(k string) string { return env[k] }, "linux")
	if err != nil {
		return nil, err
	}
	return Open(ctx, Options{Settings: settings, Backends: labBackends{c}, Clock: c.now})
}

func (l *lab) context() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	l.t.Cleanup(cancel)
	return ctx
}

// request is what the lab asks create_instance for.
func (l *lab) request() CreateInstanceRequest {
	no := false
	return CreateInstanceRequest{
		WorkspaceRoot: l.work, AutoBootstrap: &no,
		Overrides: map[string]any{"vm": map[string]any{"cpus": 1, "memory_gib": 0.0625, "disk_gib": 1}},
	}
}

func (l *lab) create() *CreateInstanceResult {
	l.t.Helper()
	r, err := l.s.CreateInstance(l.context(), l.request())
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// stop halts the supervisor of an instance, so that nothing answers, until the
// returned function is called.
func (l *lab) stop(id string) (goOn func()) {
	l.t.Helper()
	lease, err := l.s.store.Lease(l.t.Context(), id)
	if err != nil {
		l.t.Fatal(err)
	}
	c, err := supervisor.Dial(l.context(), l.s.runDir, lease.BackendInstanceName)
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	pid := c.Hello().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		l.t.Fatal(err)
	}
	goOn = sync.OnceFunc(func() { syscall.Kill(pid, syscall.SIGCONT) })
	l.t.Cleanup(goOn)
	l.eventually(func() bool { return halted(pid) }) // the signal reaches each thread in its own time
	return goOn
}

// halted reports whether all threads of a process are stopped.
func halted(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, f := range threads {
		b, err := os.ReadFile(f)
		if _, rest, _ := strings.Cut(string(b), ") "); err != nil || !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return len(threads) > 0
}

func (l *lab) destroy(id string) {
	l.t.Helper()
	if _, err := l.s.DestroyInstance(l.context(), DestroyInstanceRequest{InstanceID: id, Force: true}); err != nil {
		l.t.Fatal(err)
	}
}

// token leaves a fault for the hooks.
func (l *lab) token(name string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.conf().Faults, name), nil, 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// hold stops whoever passes a place from now on. reached waits until somebody
// does, and release lets them go.
func (l *lab) hold(name string) (reached, release func()) {
	l.t.Helper()
	here, goOn := filepath.Join(l.conf().Faults, name+"-here"), filepath.Join(l.conf().Faults, name+"-go")
	for _, p := range []string{goOn, here} {
		if err := syscall.Mkfifo(p, 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	reached = func() {
		l.t.Helper()
		if _, err := os.ReadFile(here); err != nil {
			l.t.Fatal(err)
		}
		if err := os.Remove(here); err != nil { // others pass freely
			l.t.Fatal(err)
		}
	}
	release = func() {
		l.t.Helper()
		f, err := os.OpenFile(goOn, os.O_RDWR, 0) // who waited may be gone
		if err != nil {
			l.t.Fatal(err)
		}
		f.Close()
		os.Remove(goOn)
	}
	return reached, release
}

// server runs an order in another process, which the test may kill.
func (l *lab) server(o labOrder) (cmd *exec.Cmd, result func(v any) error) {
	l.t.Helper()
	o.Env, o.Conf = l.env, l.conf()
	text, err := json.Marshal(o)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), labServerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, func(v any) error {
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			return err
		}
		if msg, failed := strings.CutPrefix(line, "failed: "); failed {
			return errors.New(strings.TrimSpace(msg))
		}
		return json.Unmarshal([]byte(line), v)
	}
}

// labServer does what it was ordered. Each stage that it reports is a place where
// it can be held: at-STAGE.
func labServer(text string) int {
	var o labOrder
	err := json.Unmarshal([]byte(text), &o)
	ctx := WithProgress(context.Background(), func(p Progress) {
		if err := o.Conf.pass(context.Background(), "at-"+p.Stage); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	var s *Service
	if err == nil {
		s, err = openLab(ctx, o.Env, o.Conf)
	}
	var v any
	if err == nil {
		switch {
		case o.Fork != nil:
			v, err = s.ForkInstance(ctx, *o.Fork)
		case o.Snap != nil:
			v, err = s.SnapshotInstance(ctx, *o.Snap)
		case o.Rest != nil:
			v, err = s.RestoreInstance(ctx, *o.Rest)
		case o.Make != nil:
			v, err = s.CreateInstance(ctx, *o.Make)
		}
	}
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	json.NewEncoder(os.Stdout).Encode(v)
	return 0
}

// killServer ends a server as a crash would.
func (l *lab) killServer(cmd *exec.Cmd) {
	l.t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		l.t.Fatal(err)
	}
	cmd.Wait()
}

// rows are the snapshots that are recorded.
func (l *lab) rows() (all []string) {
	l.t.Helper()
	rows, err := l.s.store.Snapshots(l.t.Context(), store.SnapshotFilter{})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, sn := range rows {
		all = append(all, fmt.Sprintf("row %s %s %s", sn.SnapshotID, sn.Kind, sn.Status))
	}
	return all
}

// empty destroys what there is and fails if anything is left then: only now no
// disk builds on another.
func (l *lab) empty() {
	l.t.Helper()
	for _, id := range l.active() {
		l.destroy(id)
	}
	l.gc()
	left, _ := filepath.Glob(filepath.Join(l.home, "*", "*_????????"))
	vms, _ := filepath.Glob(filepath.Join(l.home, "*", "agent-*"))
	if all := append(append(l.rows(), left...), vms...); len(all) > 0 {
		l.t.Errorf("left in the end: %v", all)
	}
}

// active lists the instances that may have a VM.
func (l *lab) active() []string {
	l.t.Helper()
	leases, err := l.s.store.Leases(l.t.Context(), store.LeaseFilter{})
	if err != nil {
		l.t.Fatal(err)
	}
	ids := []string{}
	for _, in := range leases {
		ids = append(ids, in.InstanceID)
	}
	return ids
}

// gc reconciles until nothing fails: where a server died, a supervisor may still
// come up that it had launched.
func (l *lab) gc() (r *GCResult) {
	l.t.Helper()
	l.eventually(func() bool {
		var err error
		if r, err = l.s.GC(l.context()); err != nil {
			l.t.Fatal(err)
		}
		if len(r.Failures) > 0 {
			l.t.Logf("gc: %+v", r.Failures)
		}
		return len(r.Failures) == 0
	})
	return r
}

// eventually repeats a check of what other processes finish.
func (l *lab) eventually(done func() bool) {
	l.t.Helper()
	for ctx := l.context(); !done(); {
		select {
		case <-ctx.Done():
			l.t.Fatalf("left in the end: %v %v", l.active(), l.rows())
		case <-time.After(50 * time.Millisecond): // other processes announce nothing
		}
	}
}
