package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

func TestACommandIsRecorded(t *testing.T) {
	w := newWorld(t)
	r, err := w.run(RunCommandRequest{Command: "echo out; exit 3"})
	if err != nil || r.ExitCode != 3 || r.Stdout != "out\n" {
		t.Fatalf("%+v %v", r, err)
	}
	row := w.row(r.TaskID)
	if row.StartedAt.IsZero() || row.PID == 0 || row.LogPath == "" || row.Status != store.TaskFailed {
		t.Errorf("row %+v", row)
	}
	e := w.events(r.TaskID, "run_command")
	if len(e) != 1 || e[0].Outcome != "ok" || e[0].InstanceID != w.lease.InstanceID || !strings.Contains(string(e[0].Detail), "exit 3") {
		t.Errorf("events %+v", e)
	}
	_, err = w.run(RunCommandRequest{Command: "true", Cwd: "/no/such/dir"})
	wantCode(t, err, fault.InvalidArgument)
	list, err := w.s.ListTasks(w.context(), ListTasksRequest{Kind: "command"})
	if err != nil || len(list.Tasks) != 2 || list.Truncated || list.Tasks[0].Status != "failed" {
		t.Fatalf("%+v %v", list, err)
	}
	if e := w.events(list.Tasks[0].TaskID, "run_command"); len(e) != 1 || e[0].Outcome != string(fault.InvalidArgument) {
		t.Errorf("events of the refused command: %+v", e)
	}
}

func TestBoundsAreTheSchemas(t *testing.T) {
	w := newWorld(t)
	r, err := w.run(RunCommandRequest{Command: "seq 1 100000; seq 1 100000 >&2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{0, 1<<20 + 1} {
		_, err := w.run(RunCommandRequest{Command: "true", MaxOutputBytes: &n})
		wantCode(t, err, fault.InvalidArgument)
	}
	for _, n := range []int{0, 100_001} {
		_, err := w.s.GetTaskLogs(w.context(), GetTaskLogsRequest{TaskID: r.TaskID, Tail: &n})
		wantCode(t, err, fault.InvalidArgument)
	}
	tail, size := 100_000, int64(1000)
	both, err := w.s.GetTaskLogs(w.context(), GetTaskLogsRequest{TaskID: r.TaskID, Tail: &tail, MaxBytes: &size})
	if err != nil || len(both.Logs) > 1000+len("==> stdout <==\n\n==> stderr <==\n") || !strings.Contains(both.Logs, "stderr") || both.NextOffset != 0 {
		t.Errorf("both: %d bytes, next %d, %v", len(both.Logs), both.NextOffset, err)
	}
	size = 1
	if _, err := w.s.GetTaskLogs(w.context(), GetTaskLogsRequest{TaskID: r.TaskID, Tail: &tail, MaxBytes: &size}); err != nil {
		t.Errorf("one byte: %v", err)
	}
	size = 1000
	one, err := w.s.GetTaskLogs(w.context(), GetTaskLogsRequest{TaskID: r.TaskID, Tail: &tail, MaxBytes: &size, Stream: "stdout"})
	if err != nil || len(one.Logs) != 1000 || one.NextOffset != one.TotalBytes {
		t.Errorf("one stream: %d bytes, next %d of %d, %v", len(one.Logs), one.NextOffset, one.TotalBytes, err)
	}
}

// interrupted is a command's row and process as a server leaves them that dies
// while it runs. The process has no timeout of its own.
func (w *world) interrupted(command string) *store.Request {
	w.t.Helper()
	row, err := w.s.store.InsertTask(w.t.Context(), store.NewTask{InstanceID: w.lease.InstanceID, Kind: store.TaskCommand, Command: command})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, _, err := w.guest.Start(w.context(), row.TaskID, guest.Spec{Command: command}); err != nil {
		w.t.Fatal(err)
	}
	return &store.Request{TaskID: row.TaskID}
}

func (w *world) resume(req *store.Request, command string, timeout time.Duration) (*CommandResult, error) {
	w.t.Helper()
	res, started, err := w.s.runCommand(w.context(), commandSpec{instanceID: w.lease.InstanceID, command: command}, timeout, 1000, req)
	if !started {
		w.t.Error("what was begun counts as not begun: the request would be forgotten and run again")
	}
	return res, err
}

// TestTheHostKeepsTheTimeoutToo: the guest does not end the command.
func TestTheHostKeepsTheTimeoutToo(t *testing.T) {
	shorten(t, &commandSlack, 500*time.Millisecond)
	shorten(t, &killWithin, time.Second)
	const command = "echo before; exec sleep 4848"
	w := newWorld(t)

	req := w.interrupted(command)
	_, err := w.resume(req, command, time.Millisecond)
	f := wantCode(t, err, fault.CommandTimedOut)
	if p, ok := f.Details["partial"].(*CommandResult); !ok || p.Stdout != "before\n" || f.Details["task_id"] != req.TaskID {
		t.Errorf("details %+v", f.Details)
	}
	if row := w.row(req.TaskID); row.Status != store.TaskStopped || row.Signal != "SIGKILL" {
		t.Errorf("row %+v", row)
	}

	req = w.interrupted(command)
	w.through(hanging("Signal"))
	_, err = w.resume(req, command, time.Millisecond)
	f = wantCode(t, err, fault.OutcomeUnknown)
	if p, ok := f.Details["partial"].(*CommandResult); !ok || p.Stdout != "before\n" || f.Details["task_id"] != req.TaskID {
		t.Errorf("details %+v", f.Details)
	}
	if row := w.row(req.TaskID); row.Status != store.TaskRunning || row.StopRequestedAt.IsZero() {
		t.Errorf("an end that nobody confirmed: row %+v", row)
	}
	if e := w.events(req.TaskID, "run_command"); len(e) != 1 || e[0].Outcome != string(fault.OutcomeUnknown) {
		t.Errorf("events %+v", e)
	}
	w.through(nil)
	if r, err := w.s.StopTask(w.context(), StopTaskRequest{TaskID: req.TaskID}); err != nil || r.Status != "stopped" {
		t.Errorf("the remedy that was named: %+v %v", r, err)
	}
}

func TestAGuestThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	task := w.start("exec sleep 4849")
	shorten(t, &answerWithin, 200*time.Millisecond)
	w.through(hanging("Get", "Read", "Start"))
	_, err := w.s.GetTaskStatus(w.context(), GetTaskStatusRequest{TaskID: task.TaskID})
	wantCode(t, err, fault.InstanceLost)
	w.through(hanging("Read", "Start"))
	_, err = w.s.GetTaskLogs(w.context(), GetTaskLogsRequest{TaskID: task.TaskID})
	wantCode(t, err, fault.InstanceLost)
	_, err = w.s.StartBackgroundTask(w.context(), StartBackgroundTaskRequest{InstanceID: w.lease.InstanceID, Command: "true"})
	if f := wantCode(t, err, fault.OutcomeUnknown); f.Details["task_id"] == nil {
		t.Errorf("which task? %+v", f.Details)
	}
}

// TestCancelledBeforeTheGuestHeardOfIt: the start that arrives after all is
// refused.
func TestCancelledBeforeTheGuestHeardOfIt(t *testing.T) {
	w := newWorld(t)
	sent := make(chan struct{})
	w.through(func(call string, _ http.ResponseWriter, r *http.Request) bool {
		if call != "Run" {
			return false
		}
		close(sent)
		<-r.Context().Done()
		return true
	})
	ctx, cancel := context.WithCancel(w.context())
	go func() { <-sent; cancel() }()
	_, err := w.s.RunCommand(ctx, RunCommandRequest{InstanceID: w.lease.InstanceID, Command: "sleep 4850"})
	f := wantCode(t, err, fault.Cancelled)
	id, _ := f.Details["task_id"].(string)
	if row := w.row(id); row.Status != store.TaskStopped {
		t.Errorf("row %+v", row)
	}
	if _, err := w.guest.Run(w.context(), id, guest.Spec{Command: "sleep 4850"}, nil); !errors.Is(err, guest.ErrFailedPrecondition) {
		t.Errorf("the late start: %v", err)
	}
}

// TestStopIsInTheRowBeforeTheSignal: another call sees the end while the signal
// is on its way.
func TestStopIsInTheRowBeforeTheSignal(t *testing.T) {
	w := newWorld(t)
	task := w.start("exec sleep 4851")
	seen := make(chan store.Task, 1)
	w.through(func(call string, _ http.ResponseWriter, _ *http.Request) bool {
		if call == "Signal" && len(seen) == 0 {
			if _, err := w.guest.Signal(w.context(), task.TaskID, guest.SIGTERM, true); err != nil {
				t.Error(err)
			}
			if _, err := w.s.GetTaskStatus(w.context(), GetTaskStatusRequest{TaskID: task.TaskID, WaitSeconds: 30}); err != nil {
				t.Error(err)
			}
			seen <- w.row(task.TaskID)
		}
		return false
	})
	r, err := w.s.StopTask(w.context(), StopTaskRequest{TaskID: task.TaskID})
	if err != nil || r.Status != "stopped" || r.Signal == nil || *r.Signal != "SIGTERM" {
		t.Errorf("%+v %v", r, err)
	}
	if row := <-seen; row.Status != store.TaskStopped {
		t.Errorf("who saw the end first recorded %s", row.Status)
	}
	_, err = w.s.StopTask(w.context(), StopTaskRequest{TaskID: task.TaskID})
	wantCode(t, err, fault.TaskAlreadyFinished)
}

// TestAStopThatWasNotSentIsTakenBack: the task ends by itself later.
func TestAStopThatWasNotSentIsTakenBack(t *testing.T) {
	w := newWorld(t)
	fifo := filepath.Join(t.TempDir(), "go")
	task := w.start("until [ -e " + fifo + " ]; do sleep 0.05; done")
	w.through(func(call string, rw http.ResponseWriter, _ *http.Request) bool {
		if call == "Signal" {
			rw.Header().Set("Sandboxforge-Unsent", "1")
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		return call == "Signal"
	})
	_, err := w.s.StopTask(w.context(), StopTaskRequest{TaskID: task.TaskID})
	wantCode(t, err, fault.InstanceLost)
	if row := w.row(task.TaskID); !row.StopRequestedAt.IsZero() || row.Status != store.TaskRunning {
		t.Errorf("row %+v", row)
	}
	w.through(nil)
	if err := os.WriteFile(fifo, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if st, err := w.s.GetTaskStatus(w.context(), GetTaskStatusRequest{TaskID: task.TaskID, WaitSeconds: 30}); err != nil || st.Status != "succeeded" {
		t.Errorf("%+v %v", st, err)
	}
}

// TestAFinishedCommandIsNotRunAgain: its server died, and somebody else
// recorded the end.
func TestAFinishedCommandIsNotRunAgain(t *testing.T) {
	w := newWorld(t)
	count := filepath.Join(t.TempDir(), "count")
	command := "echo run >> " + count + "; echo out; exit 4"
	check := func(name string) {
		t.Helper()
		if b, err := os.ReadFile(count); err != nil || string(b) != "run\n" {
			t.Errorf("%s: it ran as %q, %v", name, b, err)
		}
	}
	req := w.interrupted(command)
	if st, err := w.s.GetTaskStatus(w.context(), GetTaskStatusRequest{TaskID: req.TaskID, WaitSeconds: 30}); err != nil || st.Status != "failed" {
		t.Fatalf("%+v %v", st, err)
	}
	r, err := w.resume(req, command, time.Minute)
	if err != nil || r.ExitCode != 4 || r.Stdout != "out\n" || r.TaskID != req.TaskID {
		t.Errorf("%+v %v", r, err)
	}
	check("from the guest")

	if err := w.guest.Forget(w.context(), req.TaskID); err != nil {
		t.Fatal(err)
	}
	_, err = w.resume(req, command, time.Minute)
	if f := wantCode(t, err, fault.OutcomeUnknown); f.Details["task_id"] != req.TaskID {
		t.Errorf("details %+v", f.Details)
	}
	check("forgotten")

	if err := w.s.store.SaveTails(t.Context(), req.TaskID, []byte("tail\n"), nil, 5000, 0); err != nil {
		t.Fatal(err)
	}
	r, err = w.resume(req, command, time.Minute)
	if err != nil || r.ExitCode != 4 || !r.StdoutTruncated || r.StdoutBytes != 5000 || !strings.HasSuffix(r.Stdout, "tail\n") {
		t.Errorf("%+v %v", r, err)
	}
	check("from the tails")
}

// TestAStartedTaskIsNotStartedAgain is the same for a background task.
func TestAStartedTaskIsNotStartedAgain(t *testing.T) {
	w := newWorld(t)
	count := filepath.Join(t.TempDir(), "count")
	command := "echo run >> " + count
	task := w.start(command)
	if st, err := w.s.GetTaskStatus(w.context(), GetTaskStatusRequest{TaskID: task.TaskID, WaitSeconds: 30}); err != nil || st.Status != "succeeded" {
		t.Fatalf("%+v %v", st, err)
	}
	if err := w.guest.Forget(w.context(), task.TaskID); err != nil {
		t.Fatal(err)
	}
	r, _, err := w.s.startTask(w.context(), commandSpec{instanceID: w.lease.InstanceID, command: command}, &store.Request{TaskID: task.TaskID})
	if err != nil || r.TaskID != task.TaskID || r.PID != task.PID {
		t.Errorf("%+v %v", r, err)
	}
	if b, err := os.ReadFile(count); err != nil || string(b) != "run\n" {
		t.Errorf("it ran as %q, %v", b, err)
	}
}

// TestLogsAtTheMomentAVMDies: the read fails, and the ends are kept already.
func TestLogsAtTheMomentAVMDies(t *testing.T) {
	w := newWorld(t)
	task := w.start("echo last words; exec sleep 4852")
	die := func(rw http.ResponseWriter) bool {
		if _, err := w.s.store.FinishTask(context.Background(), task.TaskID, store.TaskEnd{
			Status: store.TaskStopped, OutcomeUnknown: true, StdoutTail: []byte("last words\n"), StdoutBytes: 11,
		}); err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
			t.Error(err)
		}
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	w.through(func(call string, rw http.ResponseWriter, _ *http.Request) bool { return call == "Read" && die(rw) })
	r, err := w.s.GetTaskLogs(w.context(), GetTaskLogsRequest{TaskID: task.TaskID})
	if err != nil || r.Logs != "last words\n" || r.Status != "stopped" {
		t.Errorf("%+v %v", r, err)
	}
}

// TestAnOldRunningTaskIsListed behind more finished ones than fit.
func TestAnOldRunningTaskIsListed(t *testing.T) {
	row := func(i int, s store.TaskStatus) store.Task { return store.Task{TaskID: fmt.Sprint("t", i), Status: s} }
	var newest []store.Task
	for i := range maxListed + 1 {
		newest = append(newest, row(i, store.TaskSucceeded))
	}
	newest[7].Status = store.TaskRunning
	got := newestAndRunning(newest, []store.Task{newest[7], row(9000, store.TaskRunning), row(9001, store.TaskRunning)})
	if len(got) != maxListed || got[7].TaskID != "t7" || got[maxListed-1].TaskID != "t9001" || got[maxListed-3].TaskID != fmt.Sprint("t", maxListed-3) {
		t.Errorf("%d rows, last %+v", len(got), got[len(got)-3:])
	}
	seen := map[string]bool{}
	for _, r := range got {
		if seen[r.TaskID] {
			t.Errorf("%s twice", r.TaskID)
		}
		seen[r.TaskID] = true
	}
}

func TestListTasksSettlesAndDoesNotUse(t *testing.T) {
	w := newWorld(t)
	short, long := w.start("true"), w.start("exec sleep 4853")
	if p, err := w.guest.Get(w.context(), short.TaskID, 30*time.Second); err != nil || !p.Ended() {
		t.Fatalf("%+v %v", p, err)
	}
	before, err := w.s.store.Lease(t.Context(), w.lease.InstanceID)
	if err != nil {
		t.Fatal(err)
	}
	w.ahead.Store(int64(10 * time.Second)) // a use is recorded once a second at most
	list, err := w.s.ListTasks(w.context(), ListTasksRequest{Status: "running"})
	if err != nil || len(list.Tasks) != 1 || list.Tasks[0].TaskID != long.TaskID {
		t.Errorf("running: %+v %v", list, err)
	}
	list, err = w.s.ListTasks(w.context(), ListTasksRequest{Status: "succeeded"})
	if err != nil || len(list.Tasks) != 1 || list.Tasks[0].TaskID != short.TaskID {
		t.Errorf("succeeded: %+v %v", list, err)
	}
	after, err := w.s.store.Lease(t.Context(), w.lease.InstanceID)
	if err != nil || !after.LastUsedAt.Equal(before.LastUsedAt) {
		t.Errorf("a listing moved last_used_at from %v to %v, %v", before.LastUsedAt, after.LastUsedAt, err)
	}
}

// fullDisk fails from the first byte on.
type fullDisk struct{ err error }

func (f fullDisk) Write([]byte) (int, error) { return 0, f.err }

func TestExecEndsWhatItCannotWriteFor(t *testing.T) {
	w := newWorld(t)
	full := errors.New("no space left")
	_, err := w.s.Exec(w.context(), ExecOptions{
		InstanceID: w.lease.InstanceID, Argv: []string{"sh", "-c", "echo x; exec sleep 4854"},
		Stdout: fullDisk{full}, Stderr: &bytes.Buffer{}, Signals: make(chan int),
	})
	f := wantCode(t, err, fault.Internal)
	if !errors.Is(err, full) {
		t.Errorf("the cause is lost: %v", err)
	}
	id, _ := f.Details["task_id"].(string)
	if row := w.row(id); row.Status != store.TaskStopped || row.Signal != "SIGKILL" || row.StartedAt.IsZero() {
		t.Errorf("row %+v", row)
	}
	if p, err := w.guest.Get(w.context(), id, 0); err != nil || !p.Ended() {
		t.Errorf("it runs on: %+v %v", p, err)
	}
	var out bytes.Buffer
	r, err := w.s.Exec(w.context(), ExecOptions{
		InstanceID: w.lease.InstanceID, Argv: []string{"cat"}, Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &bytes.Buffer{},
	})
	if err != nil || r.ExitCode != 0 || out.String() != "in" {
		t.Errorf("%+v %q %v", r, out.String(), err)
	}
}

// TestListTasksSaysWhatItLeavesOut: many finished commands hide neither an old
// task that runs nor that there are more.
func TestListTasksSaysWhatItLeavesOut(t *testing.T) {
	w := newWorld(t)
	old := w.start("exec sleep 4855")
	for range maxListed + 1 {
		row, err := w.s.store.InsertTask(t.Context(), store.NewTask{InstanceID: w.lease.InstanceID, Kind: store.TaskCommand, Command: "true"})
		if err == nil {
			_, err = w.s.store.FinishTask(t.Context(), row.TaskID, store.TaskEnd{Status: store.TaskSucceeded})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := w.s.ListTasks(w.context(), ListTasksRequest{Kind: "all"})
	if err != nil || len(all.Tasks) != maxListed || !all.Truncated || all.Tasks[maxListed-1].TaskID != old.TaskID {
		t.Errorf("%d tasks, truncated %v, %v", len(all.Tasks), all.Truncated, err)
	}
	running, err := w.s.ListTasks(w.context(), ListTasksRequest{Kind: "all", Status: "running"})
	if err != nil || len(running.Tasks) != 1 || running.Truncated || running.Tasks[0].TaskID != old.TaskID {
		t.Errorf("running: %+v %v", running, err)
	}
	done, err := w.s.ListTasks(w.context(), ListTasksRequest{Kind: "all", Status: "succeeded"})
	if err != nil || len(done.Tasks) != maxListed || !done.Truncated {
		t.Errorf("succeeded: %d, truncated %v, %v", len(done.Tasks), done.Truncated, err)
	}
}
