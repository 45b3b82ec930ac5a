package sandbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

// runLabel marks the container of one docker_run call, so that the call finds
// its own again.
const runLabel = "sandboxforge.run"

// DockerRun runs a container. Detached it returns when the container has
// started, otherwise when it has ended; the exit code of the container's own
// command is a result. Cancelling ctx, or the timeout, kills and removes the
// container.
func (s *Service) DockerRun(ctx context.Context, r DockerRunRequest) (*DockerRunResult, error) {
	timeout, err := commandTimeout(r.TimeoutSeconds)
	if err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	network, err := d.network(ctx)
	if err != nil {
		return nil, err
	}
	detach := orDefault(r.Detach, true)
	id := guest.NewID("")
	mark := runLabel + "=" + id
	run := docker.Run{
		Image: r.Image, Name: r.Name, Volumes: r.Volumes, Ports: r.Ports, Workdir: r.Workdir, Network: network,
		Detach: detach, Privileged: r.Privileged, Env: r.Env,
	}
	if r.Command != "" {
		run.Argv = docker.Argv(r.Command)
	}
	// As in run_command, values of variables are not recorded or shown.
	bare := run
	bare.Env = maps.Clone(r.Env)
	for k := range bare.Env {
		bare.Env[k] = "********"
	}
	shown := bare.Args()
	run.Env = withConnection(d.lease, r.Env)
	run.Labels = map[string]string{runLabel: id}
	res, err := d.run(ctx, dockerRun{tool: "docker_run", args: run.Args(), shown: shown, timeout: timeout})
	// A call that fails leaves no container that nobody knows of.
	undone := func(err error) error {
		if cerr := d.removeMarked(ctx, mark); cerr != nil {
			return fault.From(err).With("container_left", cerr.Error()).Next("remove the container with docker_cleanup or run_command")
		}
		return err
	}
	if err != nil {
		return nil, undone(err)
	}
	out := &DockerRunResult{InstanceID: r.InstanceID, CommandResult: *res}
	c, err := d.marked(ctx, mark)
	switch {
	case errors.Is(err, docker.ErrNotFound):
		return nil, d.failed(fault.DockerCommandFailed, res, "Docker could not make a container of %s", r.Image).
			Next("check the image's name with docker_images, or build it with docker_build").
			Next("read the output in details.stderr")
	case err != nil:
		return nil, undone(d.engineFault(ctx, "looking for the container", err))
	case c.StartedAt.IsZero():
		// It was made and could not be started: the name would stay taken.
		f := d.failed(fault.DockerCommandFailed, res, "Docker could not start the container").
			Next("read the output in details.stderr")
		if c.Error != "" {
			f = f.Because("%s", c.Error)
		}
		return nil, undone(f)
	}
	out.Container = orText(r.Name, c.ID[:min(12, len(c.ID))])
	if !detach && r.Name == "" {
		if err := d.engine.RemoveContainer(ctx, c.ID); err != nil && !errors.Is(err, docker.ErrNotFound) {
			return nil, undone(d.engineFault(ctx, "removing the container", err))
		}
		out.Container = ""
	}
	return out, nil
}

func (r DockerRunRequest) check() error {
	if err := checkImageName("image", r.Image); err != nil {
		return err
	}
	if r.Name != "" {
		if err := checkContainerName("name", r.Name); err != nil {
			return err
		}
	}
	if err := checkValue("command", r.Command); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return fault.New(fault.InvalidArgument, "env has the name %q", k)
		}
	}
	for _, list := range []struct {
		name   string
		values []string
	}{{"volumes", r.Volumes}, {"ports", r.Ports}} {
		for _, v := range list.values {
			if v == "" || strings.ContainsAny(v, "\x00\n") {
				return fault.New(fault.InvalidArgument, "%s has the entry %.80q", list.name, v)
			}
		}
	}
	if r.Workdir != "" && !strings.HasPrefix(r.Workdir, "/") {
		return fault.New(fault.InvalidArgument, "workdir is %.80q; it must be an absolute path in the container", r.Workdir)
	}
	return nil
}

// network is the instance's network if Docker has it, "" otherwise.
func (d *dockerCall) network(ctx context.Context) (string, error) {
	name := networkName(d.config)
	ok, err := d.engine.HasNetwork(ctx, name)
	if err != nil {
		return "", d.engineFault(ctx, "looking for the instance's network", err)
	}
	if !ok {
		return "", nil
	}
	return name, nil
}

// marked finds the container of one call.
func (d *dockerCall) marked(ctx context.Context, mark string) (docker.ContainerDetail, error) {
	list, err := d.engine.Containers(ctx, true, mark)
	if err != nil {
		return docker.ContainerDetail{}, err
	}
	if len(list) == 0 {
		return docker.ContainerDetail{}, docker.ErrNotFound
	}
	return d.engine.Container(ctx, list[0].ID)
}

// How often, and how long after each other, the container of a call that was
// cancelled is looked for: the engine may still be making it when the docker
// program is gone, and tells nobody.
const (
	removeLooks = 4
	removePause = 500 * time.Millisecond
)

// removeMarked kills and removes what a call that failed may have started, also
// when its caller has gone.
func (d *dockerCall) removeMarked(ctx context.Context, mark string) error {
	ctx, cancel := detached(ctx, time.Minute)
	defer cancel()
	for look := 1; ; look++ {
		list, err := d.engine.Containers(ctx, true, mark)
		if err != nil {
			return err
		}
		for _, c := range list {
			if err := d.engine.RemoveContainer(ctx, c.ID); err != nil && !errors.Is(err, docker.ErrNotFound) {
				return err
			}
		}
		if len(list) > 0 || look == removeLooks {
			return nil
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
