package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/mcpclient"
	"sandboxforge/internal/sandbox"
)

// Options are what a demo needs.
type Options struct {
	// Server is the path of sandboxforge-mcp-server.
	Server   string
	Settings *config.Settings
	Version  string
	// Environ is the environment of the server; HTTP is switched off in it.
	Environ []string
	// Dir is where the copy of the workspace and the artifacts stay, each run
	// in a directory of its own; empty: a temporary one, removed at the end.
	Dir string
	// Keep keeps the temporary directory.
	Keep bool
	// Out gets the story, for people.
	Out io.Writer
	// EnsureImage makes the guest image if it is missing; nil: nothing to make.
	EnsureImage func(ctx context.Context, progress func(stage, text string)) (cached bool, err error)
	// EnsureTemplate makes the template that the workspace's VM begins in if it
	// is missing; nil: nothing to make.
	EnsureTemplate func(ctx context.Context, root string, progress func(stage, text string)) (made bool, err error)
	// Processes lists the processes on this host that belong to the VM called
	// name; nil where that cannot be told.
	Processes func(name string) ([]int, error)
}

// Step is one line of the summary.
type Step struct {
	Name       string `json:"name"`
	DurationMS int64  `json:"duration_ms"`
	Note       string `json:"note"`
	OK         bool   `json:"ok"`
}

// Result is the summary.
type Result struct {
	OK          bool   `json:"ok"`
	InstanceID  string `json:"instance_id,omitempty"`
	Backend     string `json:"backend,omitempty"`
	Accelerator string `json:"accelerator,omitempty"`
	StartKind   string `json:"start_kind,omitempty"`
	// GuestOutput is what `uname -a` and the first line of /etc/os-release
	// said in the VM.
	GuestOutput string             `json:"guest_output,omitempty"`
	Artifacts   []sandbox.Artifact `json:"artifacts"`
	Steps       []Step             `json:"steps"`
	// TimingsMS are the server's own, of create_instance.
	TimingsMS map[string]int64 `json:"timings_ms"`
	TotalMS   int64            `json:"total_ms"`
	Workspace string           `json:"workspace,omitempty"` // if it was kept
}

// cleanupTime bounds what is done after an interrupt or a failure.
const cleanupTime = 2 * time.Minute

type demo struct {
	o    Options
	r    *Result
	c    *mcpclient.Client
	root string // the copy of the workspace
	vm   string // the VM's name, for the search for leftovers
	line *ui.Progress
}

// Run runs the demo. The Result is never nil: after an error it holds the
// steps so far. When ctx ends, the instance is destroyed before Run returns;
// that takes at most two minutes.
func Run(ctx context.Context, o Options) (*Result, error) {
	d := &demo{o: o, r: &Result{Steps: []Step{}, Artifacts: []sandbox.Artifact{}, TimingsMS: map[string]int64{}}}
	began := time.Now()
	err := d.run(ctx)
	err = errors.Join(err, d.cleanup(ctx, err))
	d.r.TotalMS = time.Since(began).Milliseconds()
	d.r.OK = err == nil
	d.summary(err)
	return d.r, err
}

func (d *demo) run(ctx context.Context) error {
	var err error
	if d.root, err = newWorkspace(d.o.Dir, time.Now()); err != nil {
		return err
	}
	for _, s := range script {
		if err := d.step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// step runs one step, showing what it does and what came of it.
func (d *demo) step(ctx context.Context, s step) error {
	if s.only != nil && !s.only(d) {
		return nil
	}
	d.say("\n▸ %s", s.name)
	d.line = ui.NewProgress(d.o.Out, ui.ProgressOptions{Prefix: "  "})
	began := time.Now()
	note, err := s.run(ctx, d)
	took := time.Since(began)
	d.line.Close()
	if err == nil {
		err = ctx.Err()
	}
	d.r.Steps = append(d.r.Steps, Step{Name: s.name, DurationMS: took.Milliseconds(), Note: note, OK: err == nil})
	if err != nil {
		d.say("  ✗ %s  %s", ui.Duration(took), ui.CleanLines(err.Error()))
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return fault.Wrap(err, fault.Cancelled, "the demo was interrupted")
		}
		return err
	}
	d.say("  ✓ %s  %s", ui.Duration(took), note)
	return nil
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.o.Out, format+"\n", args...)
}

// show prints what came from the guest, indented and harmless.
func (d *demo) show(text string) {
	for line := range strings.SplitSeq(strings.TrimRight(ui.CleanLines(text), "\n"), "\n") {
		d.line.Print("  │ " + line)
	}
}

// call calls a tool, showing the call and its progress.
func (d *demo) call(ctx context.Context, tool string, args, out any) error {
	d.line.Print("  → " + tool + " " + argumentText(args))
	return d.c.Call(ctx, tool, args, out, func(message string) {
		// The line has a time of its own.
		message = elapsed.ReplaceAllString(message, "")
		stage, text, ok := strings.Cut(message, ": ")
		if !ok || len(stage) > 24 {
			stage, text = tool, message
		}
		if rest, twice := strings.CutPrefix(text, stage+": "); twice {
			text = rest
		}
		d.line.Update(stage, text)
	})
}

// elapsed is the time that the server puts behind a message to show that it
// is still at work.
var elapsed = regexp.MustCompile(` \(\d+ s\)$`)

// cleanup destroys what is left of the demo and removes its files. After an
// orderly run there is nothing to destroy.
func (d *demo) cleanup(ctx context.Context, cause error) error {
	var err error
	if cause != nil && d.root != "" && d.c != nil {
		d.say("\n▸ clean-up: destroying what the demo made")
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		err = d.destroyAll(ctx)
		if err != nil {
			// The session may be what broke; another server sees the same leases.
			d.c.Close()
			if d.c, err = mcpclient.Connect(ctx, d.o.Server, d.serverEnv(), d.o.Version); err == nil {
				err = d.destroyAll(ctx)
			}
		}
		if err != nil {
			err = fault.Wrap(err, fault.OutcomeUnknown, "the demo's instance may still be there").
				Next("run `sandboxforge ps`, then `sandboxforge destroy INSTANCE`")
			d.say("  ✗ %s", ui.Clean(err.Error()))
		} else {
			d.say("  ✓ nothing is left")
		}
	}
	if cause != nil && d.c != nil && !errors.Is(cause, context.Canceled) {
		if log := strings.TrimSpace(d.c.Log()); log != "" {
			d.say("\nThe end of the server's log:")
			for line := range strings.SplitSeq(lastLines(ui.CleanLines(log), 20), "\n") {
				d.say("  │ %s", line)
			}
		}
	}
	d.c.Close()
	if d.o.Dir == "" && !d.o.Keep && d.root != "" {
		os.RemoveAll(d.root)
	} else {
		d.r.Workspace = d.root
	}
	return err
}

// destroyAll destroys every instance of the demo's workspace, which no one
// else can have.
func (d *demo) destroyAll(ctx context.Context) error {
	var list sandbox.ListInstancesResult
	if err := d.c.Call(ctx, "list_instances", map[string]any{}, &list, nil); err != nil {
		return err
	}
	var errs []error
	for _, in := range list.Instances {
		if in.WorkspaceRoot != d.root {
			continue
		}
		errs = append(errs, d.c.Call(ctx, "destroy_instance", map[string]any{"instance_id": in.InstanceID, "force": true}, nil, nil))
	}
	return errors.Join(errs...)
}

// serverEnv is the server's environment: over stdio only, and allowed to use
// the demo's workspace whatever else the operator allowed.
func (d *demo) serverEnv() []string {
	env := append([]string{}, d.o.Environ...)
	env = append(env, "MCP_ENABLE_HTTP=0", "MCP_ENABLE_STDIO=1")
	if len(d.o.Settings.WorkspaceRoots) > 0 {
		env = append(env, "SANDBOX_WORKSPACE_ROOTS="+d.root)
	}
	return env
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
