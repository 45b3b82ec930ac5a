package docker

import (
	"maps"
	"slices"
	"strconv"
)

// The command lines of the docker program, as argument lists after "docker".
// A value that a caller gave is always the rest of its own option, or comes
// where the program takes no more options, so that it can never become one.

// Run is `docker run`.
type Run struct {
	Image      string
	Argv       []string // nil: the image's own command
	Name       string
	Env        map[string]string
	Volumes    []string
	Ports      []string
	Workdir    string
	Network    string
	Labels     map[string]string
	Detach     bool
	Privileged bool
}

// Args is the argument list.
func (r Run) Args() []string {
	args := []string{"run"}
	if r.Detach {
		args = append(args, "--detach")
	}
	if r.Privileged {
		args = append(args, "--privileged")
	}
	args = appendValue(args, "--name", r.Name)
	args = appendValue(args, "--network", r.Network)
	args = appendValue(args, "--workdir", r.Workdir)
	args = appendPairs(args, "--label", r.Labels)
	args = appendPairs(args, "--env", r.Env)
	args = appendList(args, "--volume", r.Volumes)
	args = appendList(args, "--publish", r.Ports)
	return append(append(args, "--", r.Image), r.Argv...)
}

// ExecCommand is `docker exec`.
type ExecCommand struct {
	Container string
	Argv      []string
	Env       map[string]string
}

// Args is the argument list.
func (x ExecCommand) Args() []string {
	args := appendPairs([]string{"exec"}, "--env", x.Env)
	return append(append(args, "--", x.Container), x.Argv...)
}

// Args is the argument list of the `docker logs` that prints the same.
func (l Logs) Args() []string {
	return append(append([]string{"logs"}, logOptions(l.Tail, l.Follow, l.Since)...), l.Container)
}

func logOptions(tail int, follow bool, since string) []string {
	args := []string{"--tail=" + strconv.Itoa(tail)}
	if follow {
		args = append(args, "--follow")
	}
	return appendValue(args, "--since", since)
}

// Compose is `docker compose`.
type Compose struct {
	ProjectDir string
	Files      []string
	Action     string // up, down, ps, logs, pull, build, restart, stop, exec or config
	Services   []string
	Detach     bool              // up
	Tail       int               // logs
	Follow     bool              // logs
	Since      string            // logs
	Argv       []string          // exec
	Env        map[string]string // exec
}

// Args is the argument list.
func (c Compose) Args() []string {
	args := []string{"compose", "--ansi=never", "--project-directory=" + c.ProjectDir}
	args = appendList(args, "--file", c.Files)
	args = append(args, c.Action)
	switch c.Action {
	case "up":
		if c.Detach {
			args = append(args, "--detach")
		} else {
			args = append(args, "--no-color")
		}
	case "logs":
		args = append(append(args, "--no-color"), logOptions(c.Tail, c.Follow, c.Since)...)
	case "ps":
		args = append(args, "--all", "--format=json")
	case "config":
		args = append(args, "--format=json")
	case "exec":
		args = append(args, "--no-TTY")
		args = appendPairs(args, "--env", c.Env)
	}
	return append(append(append(args, "--"), c.Services...), c.Argv...)
}

func appendValue(args []string, option, value string) []string {
	if value == "" {
		return args
	}
	return append(args, option+"="+value)
}

func appendList(args []string, option string, values []string) []string {
	for _, v := range values {
		args = append(args, option+"="+v)
	}
	return args
}

func appendPairs(args []string, option string, pairs map[string]string) []string {
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		args = append(args, option+"="+k+"="+pairs[k])
	}
	return args
}
