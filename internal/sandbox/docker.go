package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// dockerPatience is how long a Docker tool waits for an engine that still
// starts.
const dockerPatience = 10 * time.Second

// firstPing is how long it waits for an engine that should be up.
const firstPing = 3 * time.Second

// newEngine is the API of a guest's engine; tests have another one answer.
var newEngine = func(g *guest.Client) *docker.Engine { return docker.NewEngine(g.DialContext) }

// dockerCall is one call of a Docker tool: the instance, and its engine, which
// has answered. Close it.
type dockerCall struct {
	s      *Service
	lease  store.Lease
	config config.Config
	guest  *guest.Client
	engine *docker.Engine
}

// docker begins a call of a Docker tool. An instance without a workspace is
// WORKSPACE_BINDING_REQUIRED, a configuration that is no longer valid
// WORKSPACE_CONFIG_INVALID, an engine that does not answer RUNTIME_NOT_READY.
func (s *Service) docker(ctx context.Context, instanceID string) (*dockerCall, error) {
	l, g, err := s.bound(ctx, instanceID)
	if err != nil {
		return nil, err
	}
	cfg, err := s.leaseConfig(l)
	if err != nil {
		return nil, err
	}
	d := &dockerCall{s: s, lease: l, config: cfg, guest: g, engine: newEngine(g)}
	// An engine that still starts may accept a connection and not answer.
	first, cancel := context.WithTimeout(ctx, firstPing)
	err = d.engine.Ping(first)
	cancel()
	if err != nil {
		if err := s.waitDocker(ctx, g, dockerPatience); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

func (d *dockerCall) close() { d.engine.Close() }

// prefix is the command that reaches Docker as the guest's user. Where that is
// through sudo, it passes the variables of env on, by name.
func (d *dockerCall) prefix(env map[string]string) []string {
	argv := strings.Fields(orText(d.lease.DockerCommand, "docker"))
	if len(env) > 0 && argv[0] == "sudo" {
		argv = slices.Insert(argv, 1, "--preserve-env="+strings.Join(slices.Sorted(maps.Keys(env)), ","))
	}
	return argv
}

// dockerRun says how a docker command is run.
type dockerRun struct {
	tool  string
	args  []string          // after "docker"
	shown []string          // args as they are recorded and shown, without secrets; nil: args
	env   map[string]string // of the docker program itself
	cwd   string            // "": the workspace
	// within, if not 0, has the guest end the program by itself after that time;
	// its exit code is then endedByTimeout.
	within time.Duration
	// timeout kills the docker program; 0 is none but the lease's end.
	timeout time.Duration
	limit   int // bytes of each stream that are kept; 0: the default
	// watch, if set, sees the output as it comes, instead of the newest line
	// that is reported otherwise.
	watch func(guest.Output)
}

// run executes a docker command in the guest and waits for it. A non-zero exit
// is a result; cancelling ctx kills the docker program.
func (d *dockerCall) run(ctx context.Context, r dockerRun) (*CommandResult, error) {
	shown := r.shown
	if shown == nil {
		shown = r.args
	}
	argv := append(d.prefix(r.env), r.args...)
	if r.within > 0 {
		argv = endAfter(r.within, argv)
	}
	c := commandSpec{
		tool: r.tool, instanceID: d.lease.InstanceID, command: shellQuote(append([]string{"docker"}, shown...)),
		argv: argv, cwd: r.cwd, env: r.env, watch: r.watch,
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if r.timeout <= 0 {
		r.timeout = maxCommandTimeout
	}
	if r.limit == 0 {
		r.limit = defaultOutputBytes
	}
	res, _, err := d.s.runCommand(ctx, c, r.timeout, r.limit, nil)
	return res, err
}

// failed is the fault of a docker command that Docker itself could not do.
func (d *dockerCall) failed(code fault.Code, r *CommandResult, format string, args ...any) *fault.Error {
	e := fault.New(code, format, args...).With("instance_id", d.lease.InstanceID)
	text, _ := json.Marshal(r) // a struct of texts and numbers
	var fields map[string]any
	_ = json.Unmarshal(text, &fields)
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		e = e.With(k, fields[k])
	}
	if u, ok := docker.NotReached(r.Stderr); ok {
		e = e.Because("%s", u.Cause(""))
		e.NextSteps = u.Next("")
	} else if line := docker.Complaint(r.Stderr); line != "" {
		e = e.Because("%s", line)
	}
	return e
}

// engineFault explains why the engine did not do what was asked.
func (d *dockerCall) engineFault(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), fault.Cancelled, "%s was cancelled", what)
	case errors.Is(err, guest.ErrUnavailable), errors.Is(err, guest.ErrOutcomeUnknown):
		return d.s.guestFault(ctx, d.lease, what, err)
	}
	return fault.Wrap(err, fault.DockerCommandFailed, "%s failed", what).With("instance_id", d.lease.InstanceID).
		Next("look at `journalctl -u docker -n 50` with run_command")
}

// container finds a container by name or id, CONTAINER_NOT_FOUND if there is
// none.
func (d *dockerCall) container(ctx context.Context, name string) (docker.ContainerDetail, error) {
	if err := checkContainerName("container", name); err != nil {
		return docker.ContainerDetail{}, err
	}
	c, err := d.engine.Container(ctx, name)
	if errors.Is(err, docker.ErrNotFound) {
		return c, fault.New(fault.ContainerNotFound, "there is no container %s in instance %s", name, d.lease.InstanceID).
			With("instance_id", d.lease.InstanceID).With("container", name).
			Because("it was never made, or it was removed when it ended").
			Next("call docker_ps with all=true to see the containers there are")
	}
	return c, d.engineFault(ctx, "looking for the container", err)
}

// connection is how an instance's services are reached, as variables for its
// commands; never nil.
func connection(l store.Lease) map[string]string {
	if env := connectionOf(l).Env; env != nil {
		return env
	}
	return map[string]string{}
}

// withConnection is env and the lease's connection variables; env wins.
func withConnection(l store.Lease, env map[string]string) map[string]string {
	all := connection(l)
	maps.Copy(all, env)
	return all
}
