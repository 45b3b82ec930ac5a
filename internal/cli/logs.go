package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

type logsFlags struct {
	follow, console, asJSON bool
	tail                    int
	stream                  string
}

func logsCommand(env *Env) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs INSTANCE|TASK",
		Short: "Show the output of a task, or the console of an instance's VM",
		Long: `Show the output of a task: what it wrote to standard output goes to standard
output, what it wrote to standard error to standard error. Given an instance,
its newest task is meant; --console, or an instance without tasks, shows what
the guest's kernel and agent wrote to their console.

A unique beginning of an id is enough. After an instance has ended, the last
64 KiB of each of its tasks can still be read. On a terminal, escape sequences
other than colours are left out.`,
		Args:              exactly(1),
		ValidArgsFunction: env.completeInstances(true, true),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			switch {
			case f.stream != "both" && f.stream != "stdout" && f.stream != "stderr":
				return usagef("--stream %q: want stdout, stderr or both", f.stream)
			case f.tail < 0:
				return usagef("--tail %d: want 0 or more", f.tail)
			case f.follow && f.asJSON:
				return usagef("--follow and --json exclude each other")
			}
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				err := showLogs(ctx, env, svc, args[0], f)
				if f.follow && ctx.Err() != nil {
					return exitCode(exitOK) // that is how following ends
				}
				return err
			})
		}),
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on until the task or the VM has ended")
	fl.BoolVar(&f.console, "console", false, "the guest's console instead of a task")
	fl.IntVarP(&f.tail, "tail", "n", 500, "lines to begin with")
	fl.StringVar(&f.stream, "stream", "both", "stdout, stderr or both")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func showLogs(ctx context.Context, env *Env, svc Service, ref string, f logsFlags) error {
	if strings.HasPrefix(ref, "task_") && !f.console {
		return taskLogs(ctx, env, svc, ref, f)
	}
	in, err := resolveInstance(ctx, svc, ref)
	if fault.Is(err, fault.InstanceNotFound) && !f.console && !strings.HasPrefix(ref, "inst_") && !strings.HasPrefix(ref, "agent-") {
		if terr := taskLogs(ctx, env, svc, ref, f); !fault.Is(terr, fault.TaskNotFound) {
			return terr
		}
	}
	if err != nil {
		return err
	}
	if f.console {
		return consoleLogs(ctx, env, svc, in.InstanceID, f)
	}
	for _, kind := range []string{"background", "all"} {
		tasks, err := svc.ListTasks(ctx, sandbox.ListTasksRequest{InstanceID: in.InstanceID, Kind: kind})
		if err != nil {
			return err
		}
		if len(tasks.Tasks) > 0 {
			t := tasks.Tasks[0]
			if !f.asJSON {
				fmt.Fprintf(env.Stderr, "%s (%s): %s\n", t.TaskID, t.Status, ui.Cut(ui.Clean(t.Command), 100))
			}
			return streamTask(ctx, env, svc, t.TaskID, f)
		}
	}
	return consoleLogs(ctx, env, svc, in.InstanceID, f)
}

func taskLogs(ctx context.Context, env *Env, svc Service, ref string, f logsFlags) error {
	tasks, err := svc.ListTasks(ctx, sandbox.ListTasksRequest{Kind: "all"})
	if err != nil {
		return err
	}
	t, err := matchTask(tasks.Tasks, ref)
	if err != nil {
		return err
	}
	return streamTask(ctx, env, svc, t.TaskID, f)
}

// logStream is one of a task's streams and where it goes.
type logStream struct {
	name   string
	w      io.Writer
	offset int64
}

func streamTask(ctx context.Context, env *Env, svc Service, id string, f logsFlags) error {
	tail := min(max(f.tail, 1), 100_000) // what get_task_logs takes
	if f.asJSON {
		r, err := svc.GetTaskLogs(ctx, sandbox.GetTaskLogsRequest{TaskID: id, Tail: &tail, Stream: f.stream})
		if err != nil {
			return err
		}
		return writeJSON(env.Stdout, r)
	}
	var streams []*logStream
	for name, w := range map[string]io.Writer{"stdout": env.Stdout, "stderr": env.Stderr} {
		if f.stream == "both" || f.stream == name {
			streams = append(streams, &logStream{name: name, w: safeFor(w)})
		}
	}
	running := false
	for _, s := range streams {
		r, err := svc.GetTaskLogs(ctx, sandbox.GetTaskLogsRequest{TaskID: id, Tail: &tail, Stream: s.name})
		if err != nil {
			return err
		}
		if f.tail > 0 {
			io.WriteString(s.w, r.Logs)
		}
		s.offset = r.NextOffset
		running = running || r.Status == "running"
	}
	for f.follow && running {
		// Before the streams are read: what a task wrote before it ended is
		// there when its end is known.
		t, err := svc.GetTaskStatus(ctx, sandbox.GetTaskStatusRequest{TaskID: id, WaitSeconds: followPause.Seconds()})
		if err != nil {
			return err
		}
		running = t.Status == "running"
		for _, s := range streams {
			if err := s.catchUp(ctx, svc, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// followPause is how long new output may take to show.
const followPause = 500 * time.Millisecond

// catchUp writes what a stream has beyond the offset shown.
func (s *logStream) catchUp(ctx context.Context, svc Service, id string) error {
	for {
		from := s.offset
		r, err := svc.GetTaskLogs(ctx, sandbox.GetTaskLogsRequest{TaskID: id, Stream: s.name, Offset: &from})
		if err != nil {
			return err
		}
		if r.DroppedBytes > 0 && r.NextOffset > from {
			fmt.Fprintf(s.w, "[%s left out]\n", ui.Bytes(r.DroppedBytes))
		}
		io.WriteString(s.w, r.Logs)
		s.offset = r.NextOffset
		if r.NextOffset <= from || r.NextOffset >= r.TotalBytes {
			return nil
		}
	}
}

func consoleLogs(ctx context.Context, env *Env, svc Service, id string, f logsFlags) error {
	r, err := svc.Console(ctx, sandbox.ConsoleRequest{InstanceID: id, MaxBytes: consoleBytes})
	if err != nil {
		return err
	}
	text := lastLines(string(r.Data), f.tail)
	if f.asJSON {
		return writeJSON(env.Stdout, struct {
			InstanceID string `json:"instance_id"`
			Console    string `json:"console"`
			Ended      bool   `json:"ended"`
		}{id, strings.ToValidUTF8(text, "\uFFFD"), r.Ended})
	}
	w := safeFor(env.Stdout)
	io.WriteString(w, text)
	if len(r.Data) == 0 && !r.Ended {
		fmt.Fprintf(env.Stderr, "the console of %s is empty: a VM that began in a saved state did not boot, and its guest has printed nothing since\n", id)
	}
	for f.follow && !r.Ended {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(followPause):
		}
		before := r.Data
		r, err = svc.Console(ctx, sandbox.ConsoleRequest{InstanceID: id, MaxBytes: consoleBytes})
		if fault.Is(err, fault.InstanceTerminal) {
			return nil
		}
		if err != nil {
			return err
		}
		w.Write(appended(before, r.Data))
	}
	return nil
}

// consoleBytes of the console are asked for at a time.
const consoleBytes = 64 << 10

// appended is what now, the newest bytes of a growing text, has beyond before,
// an earlier such piece. If the two do not overlap all of now is new.
func appended(before, now []byte) []byte {
	mark := before[max(0, len(before)-512):]
	if len(mark) == 0 {
		return now
	}
	if i := bytes.LastIndex(now, mark); i >= 0 {
		return now[i+len(mark):]
	}
	return now
}

// lastLines is the end of text, n lines of it.
func lastLines(text string, n int) string {
	if n <= 0 {
		return ""
	}
	end := strings.TrimSuffix(text, "\n")
	for ; n > 0; n-- {
		i := strings.LastIndexByte(end, '\n')
		if i < 0 {
			return text
		}
		end = end[:i]
	}
	return text[len(end)+1:]
}

// safeFor keeps guest output from controlling a terminal.
func safeFor(w io.Writer) io.Writer {
	if ui.IsTerminal(w) {
		return ui.NewSafeWriter(w)
	}
	return w
}
