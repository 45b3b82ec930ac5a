package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

type execFlags struct {
	user, cwd  string
	env        []string
	tty, noTTY bool
}

func execCommand(env *Env) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec INSTANCE [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in an instance",
		Long: `Run a command in an instance and end with its exit code. A unique beginning of
the instance's id is enough. The command is not given to a shell; for that say
-- sh -c 'LINE'.

If standard input and output are terminals the command gets one too, and its
size follows yours. Otherwise standard input, output and error are passed
through as they are, and an interrupt is handed to the command; a second one
gives up.

Exit code 125: the command could not be run, or its end was not seen.`,
		Example: `  sandboxforge exec inst_1a2b3c4d -- bash -l
  sandboxforge exec 1a2b --user root -- apt-get install -y make
  tar c src | sandboxforge exec 1a2b --cwd /tmp -- tar x`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("exec needs an instance and a command: sandboxforge exec INSTANCE -- COMMAND")
			}
			if d := cmd.ArgsLenAtDash(); d > 1 {
				return usagef("exec takes one instance, not %d", d)
			}
			return nil
		},
		ValidArgsFunction: env.completeInstances(true, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if ctx == nil {
				ctx = context.Background()
			}
			vars, err := parseEnv(f.env)
			if err != nil {
				return err
			}
			if f.tty && f.noTTY {
				return usagef("--tty and --no-tty exclude each other")
			}
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				in, err := resolveInstance(ctx, svc, args[0])
				if err != nil {
					return err
				}
				return runExec(ctx, env, svc, sandbox.ExecOptions{
					InstanceID: in.InstanceID, Argv: args[1:], User: f.user, Cwd: f.cwd, Env: vars,
				}, f)
			})
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(true)
	fl.StringVarP(&f.user, "user", "u", "", "guest user (default sandbox)")
	fl.StringVarP(&f.cwd, "cwd", "w", "", "working directory (default: the synced workspace, else the home directory)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE, or NAME to pass on the variable of this shell; may be repeated")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal even if standard output is none")
	fl.BoolVarP(&f.noTTY, "no-tty", "T", false, "never give the command a terminal")
	return cmd
}

// parseEnv reads NAME=VALUE; a bare NAME takes the value of this process and
// is left out where there is none.
func parseEnv(list []string) (map[string]string, error) {
	vars := map[string]string{}
	for _, item := range list {
		name, value, given := strings.Cut(item, "=")
		if name == "" || strings.ContainsRune(item, 0) {
			return nil, usagef("--env %q: want NAME=VALUE or NAME", item)
		}
		if !given {
			var ok bool
			if value, ok = os.LookupEnv(name); !ok {
				continue
			}
		}
		vars[name] = value
	}
	return vars, nil
}

func runExec(ctx context.Context, env *Env, svc Service, o sandbox.ExecOptions, f execFlags) error {
	o.Stdin, o.Stdout, o.Stderr = env.Stdin, env.Stdout, env.Stderr
	tty, ok := env.Stdin.(*os.File)
	ok = ok && ui.IsTerminal(tty)
	switch {
	case f.tty && !ok:
		return usagef("--tty: standard input is no terminal")
	case !f.noTTY && ok && (f.tty || ui.IsTerminal(env.Stdout)):
		return execTerminal(ctx, env, svc, o, tty)
	}
	return execPipes(ctx, env, svc, o)
}

// execPipes passes bytes through and hands signals on. The first interrupt is
// the command's business; with the second the caller insists. When nobody reads
// the output any more the command is ended, as a pipe within one machine would
// end it.
func execPipes(ctx context.Context, env *Env, svc Service, o sandbox.ExecOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan os.Signal, 4)
	signal.Notify(got, interrupts...)
	defer signal.Stop(got)
	restore := keepBrokenPipes()
	defer restore()
	out := &pipeWriter{w: o.Stdout, broken: cancel}
	o.Stdout = out
	forward := make(chan int, 4)
	o.Signals = forward
	interrupted := false
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case s := <-got:
				interrupted = true
				if n > 0 {
					cancel()
					continue
				}
				select {
				case forward <- guestSignal(s):
				default:
				}
			}
		}
	}()
	r, err := svc.Exec(ctx, o)
	close(quit)
	<-done
	switch {
	case err != nil && out.isBroken.Load():
		return exitCode(exitBrokenPipe)
	case err != nil && interrupted && fault.Is(err, fault.Cancelled):
		return &interruptedError{err}
	}
	return execResult(env, r, err)
}

// pipeWriter notices that nobody reads any more.
type pipeWriter struct {
	w        io.Writer
	broken   func()
	isBroken atomic.Bool
}

// Write implements io.Writer.
func (p *pipeWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if errors.Is(err, syscall.EPIPE) && p.isBroken.CompareAndSwap(false, true) {
		p.broken()
	}
	return n, err
}

// execTerminal runs the command on a terminal of its own in the guest, with
// this one in raw mode: every key, Ctrl-C included, goes to the guest.
func execTerminal(ctx context.Context, env *Env, svc Service, o sandbox.ExecOptions, tty *os.File) error {
	fd := int(tty.Fd())
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "cannot read the terminal's size")
	}
	resize := make(chan sandbox.WindowSize, 1)
	o.TTY = &sandbox.TTY{Rows: uint32(rows), Cols: uint32(cols), Resize: resize}
	o.Env = maps.Clone(o.Env)
	if _, ok := o.Env["TERM"]; !ok {
		if name := os.Getenv("TERM"); name != "" {
			o.Env["TERM"] = name
		}
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "cannot switch the terminal to raw mode").
			Next("use --no-tty")
	}
	defer term.Restore(fd, old)
	// Keys do not raise signals now, but others may send them: the terminal
	// must get its mode back first.
	ctx, stopSignals := signal.NotifyContext(ctx, slices.DeleteFunc(slices.Clone(interrupts), func(s os.Signal) bool { return s == syscall.SIGINT })...)
	defer stopSignals()
	stop := notifyResize(tty, func() {
		if cols, rows, err := term.GetSize(fd); err == nil {
			newest(resize, sandbox.WindowSize{Rows: uint32(rows), Cols: uint32(cols)})
		}
	})
	r, err := svc.Exec(ctx, o)
	stop()
	term.Restore(fd, old) // before anything is printed
	return execResult(env, r, err)
}

// newest puts v into a channel of capacity one in place of what is there. It
// must have one caller at a time.
func newest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

func execResult(env *Env, r *sandbox.ExecResult, err error) error {
	if err != nil {
		return err
	}
	if r.ErrorMessage != "" {
		// The exit code stays the shell's 126 or 127.
		fmt.Fprintln(env.Stderr, "sandboxforge: in the guest: "+r.ErrorMessage)
	}
	if r.ExitCode != 0 {
		return exitCode(r.ExitCode)
	}
	if r.Signal != "" {
		return fault.New(fault.Internal, "the command was ended by %s", r.Signal)
	}
	return nil
}
