package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/fault"
)

// The hidden command line of a supervisor process:
//
//	EXE __supervise spawn SPEC   starts the next one in a session of its own and leaves
//	EXE __supervise run SPEC     is the supervisor
//
// The step between keeps the supervisor from being a descendant of the
// process that wanted it: nobody has to reap it, and what ends the tree of a
// client's children does not find it.
const (
	superviseArg = "__supervise"
	spawnArg     = "spawn"
	runArg       = "run"
)

// event is what a launch reports on its standard output, one JSON object per
// line, until it has begun to serve or failed.
type event struct {
	Event string     `json:"event"`
	PID   int        `json:"pid,omitempty"`
	Fault *faultJSON `json:"fault,omitempty"`
}

// The events. The last four end the report.
const (
	eventSpawning = "spawning" // the launch reached our own code
	eventServing  = "serving"  // the socket answers
	eventBusy     = "busy"     // another supervisor has the directory
	eventEnded    = "ended"    // the VM has an end already
	eventFailed   = "failed"
)

// faultJSON carries a fault between processes.
type faultJSON struct {
	Code      fault.Code     `json:"code"`
	Message   string         `json:"message"`
	Cause     string         `json:"cause,omitempty"`
	NextSteps []string       `json:"next_steps,omitempty"`
	Details   map[string]any `json:"details,omitempty"`
}

func toJSON(err error) *faultJSON {
	f := fault.From(err)
	return &faultJSON{f.Code, f.Error(), f.Cause, f.NextSteps, f.Details}
}

func (j *faultJSON) fault() error {
	if j == nil {
		return fault.New(fault.Internal, "the supervisor failed without saying why")
	}
	return &fault.Error{Code: j.Code, Message: j.Message, Cause: j.Cause, NextSteps: j.NextSteps, Details: j.Details}
}

func report(w io.Writer, e event) {
	if b, err := json.Marshal(e); err == nil {
		// A launcher that is gone changes nothing.
		w.Write(append(b, '\n'))
	}
}

// Main runs the supervisor if args (os.Args) say so. Both host binaries call
// it first thing in main, after backends were registered.
func Main(args []string) (handled bool, exit int) {
	if len(args) != 4 || args[1] != superviseArg {
		return false, 0
	}
	switch args[2] {
	case spawnArg:
		return true, mainSpawn(args[3])
	case runArg:
		return true, mainRun(args[3])
	}
	return true, 2
}

// mainSpawn starts the supervisor detached and leaves at once.
func mainSpawn(spec string) int {
	status, err := takeStdout()
	if err != nil {
		return 1
	}
	report(status, event{Event: eventSpawning})
	o, err := readSpec(spec)
	if err == nil {
		err = spawnDetached(o.Dir, spec, status)
	}
	if err != nil {
		report(status, event{Event: eventFailed, Fault: toJSON(fault.Wrap(err, fault.Internal, "the supervisor cannot be started"))})
		return 1
	}
	return 0
}

// mainRun is the supervisor process.
func mainRun(spec string) int {
	// A supervisor is small and idles; its garbage is collected early.
	debug.SetGCPercent(50)
	status, err := takeStdout()
	if err != nil {
		return 1
	}
	failed := func(err error) int {
		report(status, event{Event: eventFailed, Fault: toJSON(err)})
		return 1
	}
	o, err := readSpec(spec)
	if err != nil {
		return failed(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, stopSignals...)
	ignoreSessionEnd()

	lock, err := takeDir(ctx, o)
	if err != nil {
		os.Remove(spec)
		switch {
		case errors.Is(err, errBusy):
			report(status, event{Event: eventBusy})
			return 0
		case errors.Is(err, ErrEnded):
			report(status, event{Event: eventEnded})
			return 0
		}
		return failed(err)
	}
	// The lock is never released: the kernel does that when this process is
	// no more, and not before.
	defer lock.Close()
	if err := writeAtomic(filepath.Join(o.Dir, pidFile), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return failed(err)
	}
	if err := os.Rename(spec, filepath.Join(o.Dir, specFile)); err != nil {
		return failed(err)
	}
	w, err := openLog(filepath.Join(o.Dir, logFile), redirectStdio)
	if err != nil {
		return failed(fault.Wrap(err, fault.Internal, "the supervisor's log cannot be written"))
	}
	log := newLogger(w, o.LogLevel)
	if err := reserveEnd(o.Dir); err != nil {
		// A VM that nobody could say the end of does not begin.
		return failed(fault.Wrap(err, fault.Internal, "no room can be set aside for the record of the VM's end"))
	}
	b, err := openBackend(o.Backend)
	if err != nil {
		return failed(err)
	}
	s, err := newSupervisor(o, b, systemClock{}, log)
	if err != nil {
		return failed(fault.Wrap(err, fault.Internal, "the supervisor cannot keep time"))
	}
	l, err := listen(ctx, socketPath(o.RunDir, o.Spec.Name), log)
	if err != nil {
		return failed(err)
	}
	v := newServer(s, log)
	go v.serve(l) // v.close waits for it
	log.Info("supervisor started", "pid", os.Getpid(), "instance", o.InstanceID, "deadline", o.Deadline)
	report(status, event{Event: eventServing, PID: os.Getpid()})
	status.Close()

	go func() { // lives as long as the process
		sig := <-signals
		s.requestStop(stopRequest{reason: ReasonSignal, detail: sig.String()})
	}()
	time.AfterFunc(10*time.Second, trimMemory)
	s.run()
	s.awaitSave()
	v.close()
	return 0
}

// errBusy: another supervisor has the directory and answers.
var errBusy = errors.New("another supervisor has the directory")

// takeDir takes the directory's lock, or reports errBusy once the one that
// holds it answers at its socket.
func takeDir(ctx context.Context, o Options) (*flock.Flock, error) {
	lock := flock.New(filepath.Join(o.Dir, lockFile), flock.SetPermissions(0o600))
	for until := time.Now().Add(lockPatience); ; {
		ok, err := lock.TryLock()
		if err != nil {
			return nil, fault.Wrap(err, fault.Internal, "the instance directory cannot be locked")
		}
		if ok {
			break
		}
		if c, err := Dial(ctx, o.RunDir, o.Spec.Name); err == nil {
			c.Close()
			return nil, errBusy
		}
		if time.Now().After(until) {
			return nil, fault.New(fault.RuntimeNotReady, "the instance directory %s is locked, but no supervisor answers", o.Dir).
				Because("its supervisor hangs, is still ending, or serves another run directory").
				Next("try again; if it stays so, find the holder with `fuser %s`", lock.Path())
		}
		time.Sleep(lockPause)
	}
	// What is left of a killed predecessor must not be taken for the holder.
	if err := os.Remove(filepath.Join(o.Dir, pidFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		lock.Close()
		return nil, err
	}
	if _, err := ReadEnd(o.Dir); !errors.Is(err, ErrNoEnd) {
		lock.Close()
		return nil, ErrEnded
	}
	return lock, nil
}

// lockPatience is how long a launch waits for the holder of the lock to answer
// or to leave: a supervisor that ends lingers, one that starts is quick.
const (
	lockPatience = 10 * time.Second
	lockPause    = 20 * time.Millisecond
)
