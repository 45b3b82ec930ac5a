package sandbox

import (
	"context"
	"strings"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

// execMark is a variable that every process of one docker_exec inherits: what a
// killed docker program leaves behind in the container is found by it.
const execMark = "SANDBOXFORGE_EXEC"

// killMarked kills, as root in the guest, every process whose environment has
// a mark, and all of their descendants. It looks again until there are none.
const killMarked = `for try in 1 2 3 4 5 6 7 8; do
	seeds=$(grep -lzxF -- "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)
	[ -n "$seeds" ] || exit 0
	kill -9 $(ps -eo pid=,ppid= | awk -v seeds="$seeds" '
		BEGIN { n = split(seeds, s); for (i = 1; i <= n; i++) hit[s[i]] = 1 }
		{ parent[$1] = $2 }
		END { do { more = 0; for (p in parent) if (!hit[p] && hit[parent[p]]) { hit[p] = 1; more = 1 } } while (more)
			for (p in parent) if (hit[p]) print p }') 2>/dev/null
done
exit 1`

// DockerExec runs a command in a running container and waits for its end, whose
// exit code is a result. When the timeout passes or ctx is cancelled, the
// command's processes in the container are killed; the container goes on.
func (s *Service) DockerExec(ctx context.Context, r DockerExecRequest) (*DockerExecResult, error) {
	timeout, err := commandTimeout(r.TimeoutSeconds)
	if err != nil {
		return nil, err
	}
	if err := checkContainerName("container", r.Container); err != nil {
		return nil, err
	}
	if strings.TrimSpace(r.Command) == "" {
		return nil, fault.New(fault.InvalidArgument, "command is empty")
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	c, err := d.container(ctx, r.Container)
	if err != nil {
		return nil, err
	}
	if !c.Running() {
		return nil, fault.New(fault.DockerCommandFailed, "container %s does not run: it is %s (exit code %d)", r.Container, c.Status, c.ExitCode).
			With("instance_id", r.InstanceID).With("container", r.Container).
			Next("read what it printed with docker_logs").
			Next("start one with docker_run or docker_compose")
	}
	x := docker.ExecCommand{Container: r.Container, Argv: docker.Shell(r.Command)}
	res, err := d.runMarked(ctx, dockerRun{tool: "docker_exec", timeout: timeout}, func(env map[string]string) []string {
		x.Env = env
		return x.Args()
	})
	if err != nil {
		return nil, err
	}
	if dockerRefused(res) {
		if _, err := d.container(ctx, r.Container); err != nil {
			return nil, err
		}
		return nil, d.failed(fault.DockerCommandFailed, res, "Docker could not run the command in %s", r.Container).
			Next("see whether the container has a shell: docker_exec needs sh in it").
			Next("look at its state with docker_ps, all=true")
	}
	return &DockerExecResult{InstanceID: r.InstanceID, Container: r.Container, CommandResult: *res}, nil
}

// dockerRefused tells a docker exec that Docker could not do from one whose
// command failed: both end with the same codes. A command that prints what
// Docker prints only deceives its own caller.
func dockerRefused(r *CommandResult) bool {
	if r.ExitCode == 0 || r.StderrTruncated {
		return false
	}
	for _, text := range []string{r.Stderr, r.Stdout} {
		for _, p := range []string{"Error response from daemon:", "OCI runtime exec failed:", "Error: No such container:", "error during connect:"} {
			if strings.HasPrefix(text, p) {
				return true
			}
		}
	}
	return false
}

// runMarked runs a docker command that executes something in a container: args
// makes its arguments with variables for what is executed. These are the
// connection's, which are not shown, and a mark by which that is found and killed
// if it does not end with the docker program.
func (d *dockerCall) runMarked(ctx context.Context, r dockerRun, args func(env map[string]string) []string) (*CommandResult, error) {
	r.shown = args(nil)
	mark := guest.NewID("")
	env := connection(d.lease)
	env[execMark] = mark
	r.args = args(env)
	res, err := d.run(ctx, r)
	if err != nil && (fault.Is(err, fault.CommandTimedOut) || fault.Is(err, fault.Cancelled) || fault.Is(err, fault.OutcomeUnknown)) {
		err = fault.From(err).With("container_processes_killed", d.killMarked(ctx, execMark+"="+mark))
	}
	return res, err
}

// killMarked reports whether no process with the mark is left in the guest.
func (d *dockerCall) killMarked(ctx context.Context, mark string) bool {
	ctx, cancel := detached(ctx, time.Minute)
	defer cancel()
	p, err := d.guest.Run(ctx, guest.NewID("kill-"), guest.Spec{
		Argv: []string{"sh", "-c", killMarked, "sh", mark}, User: "root", Dir: "/", Timeout: 45 * time.Second,
	}, nil)
	return err == nil && p.Status == guest.StatusExited && p.ExitCode == 0
}
