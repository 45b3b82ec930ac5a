package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// launchTimeout bounds the time from the start of the process to an answer of
// its socket; a loaded host with an emulated neighbour can be slow.
const launchTimeout = 60 * time.Second

// Launch starts a supervisor for a VM that Backend.Create has made, and
// returns when its socket answers: the VM boots, see Client.WaitReady (a boot
// that fails at once can be Launch's error already, an ErrEnded). If one
// runs for this directory already, also if it wins a race against this call,
// the client of that one is returned. A directory whose VM has ended is
// refused with ErrEnded. If ctx ends first, a supervisor may come up all the
// same; Dial finds it, and it ends at its deadline.
func Launch(ctx context.Context, o Options, progress backend.Progress) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := privateDir(o.Dir, true); err != nil {
		return nil, err
	}
	if err := privateDir(o.RunDir, false); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, launchTimeout,
		fault.New(fault.RuntimeNotReady, "the supervisor did not come up within %s", launchTimeout).
			Because("the host is overloaded").Next("read %s, then try again", filepath.Join(o.Dir, logFile)))
	defer cancel()
	for try := 0; ; try++ {
		c, err := Dial(ctx, o.RunDir, o.Spec.Name)
		if err == nil {
			if got := c.Hello(); got.InstanceID != o.InstanceID {
				c.Close()
				return nil, fault.New(fault.InvalidArgument, "the VM name %q is taken by instance %s", o.Spec.Name, got.InstanceID).
					Next("use another name")
			}
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, ErrNotRunning) {
			return nil, err
		}
		if try == 3 {
			return nil, fault.Wrap(err, fault.RuntimeNotReady, "supervisors of %q start and leave at once", o.Spec.Name).
				Next("read %s", filepath.Join(o.Dir, logFile))
		}
		if end, err := ReadEnd(o.Dir); err == nil {
			return nil, endFault(end)
		}
		progress.Report("starting", "starting the supervisor")
		if err := spawn(ctx, o); err != nil {
			return nil, err
		}
	}
}

// spawn starts a supervisor process and returns when one serves, this or
// another.
func spawn(ctx context.Context, o Options) error {
	b, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err
	}
	// Each launch brings its own file; the winner gives it the final name.
	f, err := os.CreateTemp(o.Dir, ".spec-*.json")
	if err != nil {
		return err
	}
	spec := f.Name()
	f.Close()
	defer os.Remove(spec) // it has another name by then, or nobody wants it
	if err := writeAtomic(spec, b); err != nil {
		return err
	}
	exe, err := executable()
	if err != nil {
		return err
	}
	if scope := scopeCommand(exe); scope != nil {
		e, err := runSpawner(ctx, o, exec.Command(scope[0], append(scope[1:], superviseArg, spawnArg, spec)...), scopeTimeout)
		if err == nil || !errors.Is(err, errNeverStarted) {
			return outcome(o, e, err)
		}
		// A scope is a convenience of the host: without one the session is
		// our own only.
	}
	e, err := runSpawner(ctx, o, exec.Command(exe, superviseArg, spawnArg, spec), launchTimeout)
	return outcome(o, e, err)
}

// outcome turns the last event of a launch into its result.
func outcome(o Options, e event, err error) error {
	if err != nil {
		return err
	}
	switch e.Event {
	case eventServing, eventBusy:
		return nil
	case eventEnded:
		end, err := ReadEnd(o.Dir)
		if err != nil {
			end = &End{Reason: "unknown", Detail: err.Error()}
		}
		return endFault(end)
	}
	return e.Fault.fault()
}

// errNeverStarted: the launch did not reach our own code.
var errNeverStarted = errors.New("the supervisor's process did not start")

// runSpawner runs the first step of a launch and follows its report to the
// end. The step must reach our code within startTimeout.
func runSpawner(ctx context.Context, o Options, cmd *exec.Cmd, startTimeout time.Duration) (event, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return event{}, err
	}
	cmd.Dir = rootOf(o.Dir)
	cmd.Stdout = w // and nothing else: no stdin, no stderr of the server's
	cmd.Env = childEnv(os.Environ())
	detach(cmd)
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return event{}, fmt.Errorf("%w: %w", errNeverStarted, err)
	}
	// The step leaves at once, or is killed below; the reader ends with r.
	var wg sync.WaitGroup
	events, quit := make(chan event), make(chan struct{})
	defer func() {
		close(quit)
		r.Close()
		wg.Wait()
	}()
	wg.Go(func() { cmd.Wait() })
	wg.Go(func() {
		defer close(events)
		sc := bufio.NewScanner(io.LimitReader(r, 1<<20))
		sc.Buffer(nil, 256<<10)
		for sc.Scan() {
			var e event
			if json.Unmarshal(sc.Bytes(), &e) != nil {
				continue // a wrapper's chatter
			}
			select {
			case events <- e:
			case <-quit:
				return
			}
		}
	})
	start := time.NewTimer(startTimeout)
	defer start.Stop()
	started := false
	for {
		select {
		case e, ok := <-events:
			switch {
			case !ok && !started:
				return event{}, errNeverStarted
			case !ok:
				return event{}, fault.New(fault.RuntimeNotReady, "the supervisor's process ended before it served its socket").
					Because("it crashed, or it was killed").
					Next("read %s, then try again", filepath.Join(o.Dir, logFile))
			case e.Event == eventSpawning:
				started = true
				start.Stop()
			default:
				return e, nil
			}
		case <-start.C:
			cmd.Process.Kill()
			return event{}, errNeverStarted
		case <-ctx.Done():
			cmd.Process.Kill()
			return event{}, context.Cause(ctx)
		}
	}
}

// executable is the file that this process was made from, also after it was
// replaced or removed by an upgrade.
func executable() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fault.Wrap(err, fault.Internal, "the path of the running executable is unknown")
	}
	if _, err := os.Stat(exe); err != nil && runtime.GOOS == "linux" {
		return fmt.Sprintf("/proc/%d/exe", os.Getpid()), nil
	}
	return exe, nil
}
