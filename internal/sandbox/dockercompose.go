package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

const (
	defaultComposeTimeout = 30 * time.Minute
	composeConfigWithin   = 2 * time.Minute
	// composeDir is where the file that joins a project to the instance's
	// network lives in the guest while Compose reads it; the guest's user must
	// reach it.
	composeDir = "/run/sandboxforge-compose"
)

var composeActions = []string{"up", "down", "ps", "logs", "pull", "build", "restart", "stop", "exec"}

// What Compose accepts as the name of a service.
var serviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// DockerCompose runs one action of Compose on a project in the guest. With up,
// the services join the instance's network before they start. Cancelling ctx,
// or the timeout, kills the docker program; containers that it had started stay
// and are seen with the action ps.
func (s *Service) DockerCompose(ctx context.Context, r DockerComposeRequest) (*DockerComposeResult, error) {
	w, timeout, err := r.check()
	if err != nil {
		return nil, err
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	c := docker.Compose{
		Action: r.Action, Services: r.Services, Detach: orDefault(r.Detach, true), Tail: w.tail, Follow: w.follow > 0, Since: w.since,
	}
	if c.ProjectDir, c.Files, err = d.composePaths(ctx, r.ProjectDir, r.File); err != nil {
		return nil, err
	}
	out := &DockerComposeResult{
		InstanceID: r.InstanceID, ProjectDir: c.ProjectDir, Action: r.Action, ComposeFollow: r.Follow,
		Bridge: Bridge{Status: "skipped", Network: networkName(d.config), NetworkStatus: "skipped"}, ConnectionEnv: connection(d.lease),
	}
	run := dockerRun{tool: "docker_compose", cwd: c.ProjectDir, timeout: timeout, env: connection(d.lease)}
	var res *CommandResult
	switch r.Action {
	case "up":
		res, err = d.composeUp(ctx, c, run, &out.Bridge)
	case "logs":
		tail := w.tail
		out.ComposeTail = &tail
		if r.Since != "" {
			out.ComposeSince = &r.Since
		}
		run.args = c.Args()
		res, err = d.runLog(ctx, w, run)
	case "exec":
		c.Argv = docker.Shell(r.Command)
		res, err = d.runMarked(ctx, run, func(env map[string]string) []string {
			c.Env = env
			return c.Args()
		})
	default:
		run.args = c.Args()
		res, err = d.run(ctx, run)
	}
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 && (r.Action != "exec" || composeRefused(res)) {
		return nil, d.composeFailed(r, res)
	}
	out.CommandResult = *res
	return out, nil
}

func (r DockerComposeRequest) check() (logWindow, time.Duration, error) {
	bad := func(format string, args ...any) (logWindow, time.Duration, error) {
		return logWindow{}, 0, fault.New(fault.InvalidArgument, format, args...)
	}
	if !slices.Contains(composeActions, r.Action) {
		return bad("action is %.80q; it must be one of %s", r.Action, strings.Join(composeActions, ", "))
	}
	if r.ProjectDir == "" {
		return bad("project_dir is empty; use . for the workspace itself")
	}
	for _, n := range r.Services {
		if !serviceName.MatchString(n) {
			return bad("services has the entry %.80q; it must be the name of a Compose service", n)
		}
	}
	if r.Action == "exec" && (len(r.Services) != 1 || strings.TrimSpace(r.Command) == "") {
		return bad("the action exec needs exactly one service and a command")
	}
	if r.Action != "exec" && r.Command != "" {
		return bad("command is only for the action exec; to start a container with another command use docker_run")
	}
	if err := checkValue("command", r.Command); err != nil {
		return logWindow{}, 0, err
	}
	w, err := newLogWindow(r.Tail, r.Follow && r.Action == "logs", r.FollowSeconds, r.Since)
	if err != nil {
		return w, 0, err
	}
	timeout := defaultComposeTimeout
	if r.Action == "exec" {
		timeout = defaultCommandTimeout
	}
	if r.TimeoutSeconds != nil {
		timeout, err = commandTimeout(r.TimeoutSeconds)
	}
	return w, timeout, err
}

// composePaths finds the project and its file in the guest.
func (d *dockerCall) composePaths(ctx context.Context, dir, file string) (string, []string, error) {
	found, err := d.resolve(ctx, "project_dir", dir)
	if err != nil {
		return "", nil, err
	}
	dir = found[0]
	if file == "" {
		// Compose looks for these, in this order, and would look in the parents
		// too; it must not take one that a symlink brings in.
		for _, name := range []string{"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"} {
			if _, err := d.guest.Stat(ctx, path.Join(dir, name), false); err == nil {
				file = name
				break
			} else if !errors.Is(err, guest.ErrNotFound) {
				return "", nil, d.s.guestFault(ctx, d.lease, "looking for the Compose file", err)
			}
		}
		if file == "" {
			return "", nil, fault.New(fault.InvalidArgument, "%s has no Compose file", dir).
				With("instance_id", d.lease.InstanceID).
				Because("there is no compose.yaml, compose.yml, docker-compose.yml or docker-compose.yaml in it").
				Next("name the file with the parameter file, or the directory that has it with project_dir").
				Next("if it is new on the host, call sync_workspace_to_instance first")
		}
	}
	if !path.IsAbs(file) {
		file = path.Join(dir, file)
	}
	if _, err = d.resolve(ctx, "file", file); err != nil {
		return "", nil, err
	}
	// The name, not where a symlink leads: relative paths in it mean its place.
	return dir, []string{d.workspacePath(file)}, nil
}

// composeUp starts a project with its services on the instance's network.
func (d *dockerCall) composeUp(ctx context.Context, c docker.Compose, run dockerRun, b *Bridge) (*CommandResult, error) {
	project, res, err := d.composeProject(ctx, c, run)
	if err != nil || res.ExitCode != 0 {
		return res, err
	}
	before := map[string]bool{}
	if d.config.Infra.BridgeToComposeNetwork {
		if b.NetworkStatus, err = d.ensureNetwork(ctx); err != nil {
			return nil, err
		}
	}
	if b.NetworkStatus != "skipped" {
		b.Status = "none"
		list, err := d.engine.Containers(ctx, true, docker.LabelProject+"="+project.Name)
		if err != nil {
			return nil, d.engineFault(ctx, "looking for the project's containers", err)
		}
		for _, k := range list {
			if slices.Contains(k.Networks, b.Network) {
				before[k.ID] = true
			}
		}
		if overlay := project.Bridge(b.Network); overlay != nil {
			name := path.Join(composeDir, guest.NewID("bridge-")+".json")
			if err := d.writeOverlay(ctx, name, overlay); err != nil {
				return nil, err
			}
			defer func() {
				ctx, cancel := detached(ctx, answerWithin)
				defer cancel()
				if _, err := d.guest.Remove(ctx, composeDir, []string{path.Base(name)}, false); err != nil {
					d.s.log.Warn("Compose overlay left in the guest", "instance", d.lease.InstanceID, "file", name, "error", err)
				}
			}()
			run.shown = c.Args()
			c.Files = append(c.Files, name)
		}
	}
	run.args = c.Args()
	res, err = d.run(ctx, run)
	if err != nil || b.NetworkStatus == "skipped" {
		return res, err
	}
	list, err := d.engine.Containers(ctx, true, docker.LabelProject+"="+project.Name)
	if err != nil {
		return nil, d.engineFault(ctx, "looking for the project's containers", err)
	}
	for _, k := range list {
		b.ContainersSeen++
		switch {
		case before[k.ID]:
			b.ContainersAlreadyConnected++
		case slices.Contains(k.Networks, b.Network):
			b.ContainersConnected++
		}
	}
	if b.ContainersConnected+b.ContainersAlreadyConnected > 0 {
		b.Status = "connected"
	}
	return res, nil
}

// composeProject asks Compose what the project is. A file that it refuses is
// the result, with a non-zero exit code.
func (d *dockerCall) composeProject(ctx context.Context, c docker.Compose, run dockerRun) (docker.Project, *CommandResult, error) {
	c.Action, c.Services = "config", nil
	run.args, run.timeout, run.limit = c.Args(), composeConfigWithin, maxOutputBytes
	// Values of variables and files are in what it prints: no line of it is for
	// people who watch.
	run.watch = func(guest.Output) {}
	res, err := d.run(ctx, run)
	if err != nil || res.ExitCode != 0 {
		return docker.Project{}, res, err
	}
	if res.StdoutTruncated {
		return docker.Project{}, nil, fault.New(fault.DockerCommandFailed, "the project's resolved configuration has %d bytes; at most %d are read", res.StdoutBytes, maxOutputBytes).
			Next("set infra.bridge_to_compose_network = false, or split the project")
	}
	p, err := docker.ParseProject([]byte(res.Stdout))
	if err != nil {
		return p, nil, fault.Wrap(err, fault.DockerCommandFailed, "the Compose project was not understood").With("instance_id", d.lease.InstanceID)
	}
	return p, res, nil
}

// ensureNetwork makes the instance's network if the configuration wants one.
func (d *dockerCall) ensureNetwork(ctx context.Context) (status string, err error) {
	name := networkName(d.config)
	if !d.config.Infra.EnsureNetwork {
		has, err := d.engine.HasNetwork(ctx, name)
		if err != nil {
			return "", d.engineFault(ctx, "looking for the instance's network", err)
		}
		if !has {
			return "skipped", nil
		}
		return "existing", nil
	}
	status, err = ensureNetwork(ctx, d.engine, name)
	return status, d.engineFault(ctx, fmt.Sprintf("making the network %s", name), err)
}

func (d *dockerCall) writeOverlay(ctx context.Context, name string, data []byte) error {
	if _, err := d.guest.MakeDir(ctx, composeDir, 0o755, "root"); err != nil {
		return d.s.guestFault(ctx, d.lease, "joining the project to the instance's network", err)
	}
	if err := d.guest.WriteFile(ctx, name, data, 0o644, "root"); err != nil {
		return d.s.guestFault(ctx, d.lease, "joining the project to the instance's network", err)
	}
	return nil
}

// composeRefused tells a compose exec that Compose could not do from one whose
// command failed.
func composeRefused(r *CommandResult) bool {
	if dockerRefused(r) {
		return true
	}
	// Compose says what it cannot do in one line, without the command's output.
	return r.Stdout == "" && (strings.HasPrefix(r.Stderr, "service ") && strings.Contains(r.Stderr, " is not running") ||
		strings.HasPrefix(r.Stderr, "no such service:") || strings.HasPrefix(r.Stderr, "validating ") || strings.HasPrefix(r.Stderr, "yaml: "))
}

func (d *dockerCall) composeFailed(r DockerComposeRequest, res *CommandResult) error {
	f := d.failed(fault.DockerCommandFailed, res, "docker compose %s failed with exit code %d", r.Action, res.ExitCode).
		With("action", r.Action).With("project_dir", r.ProjectDir).
		Next("read the output in details.stderr")
	switch r.Action {
	case "up", "build", "pull":
		f = f.Next("see what did start with action ps, and its output with action logs")
	case "exec":
		f = f.Next("start the service with action up")
	}
	return f
}
