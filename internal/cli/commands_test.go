package cli

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

func TestMatchInstance(t *testing.T) {
	all := []sandbox.Instance{
		instance("1a2b3c4d", "running"), instance("1a2f0000", "running"), instance("1a990000", "destroyed"),
		instance("77000000", "expired"), instance("77110000", "destroyed"),
	}
	for ref, want := range map[string]string{
		"inst_1a2b3c4d":  "inst_1a2b3c4d",
		"agent-1a2b3c4d": "inst_1a2b3c4d",
		"1a2b":           "inst_1a2b3c4d",
		"inst_1a2f":      "inst_1a2f0000",
		"agent-1a2f":     "inst_1a2f0000",
		"1a99":           "inst_1a990000", // ended, but the only one
		"1a":             string(fault.InvalidArgument),
		"77":             string(fault.InvalidArgument), // two ended ones
		"7711":           "inst_77110000",
		"inst_":          string(fault.InvalidArgument),
		"":               string(fault.InstanceNotFound),
		"zz":             string(fault.InstanceNotFound),
		"task_1a2b":      string(fault.InstanceNotFound),
	} {
		in, err := matchInstance(all, ref)
		got := in.InstanceID
		if err != nil {
			got = string(fault.CodeOf(err))
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", ref, got, want)
		}
	}
	// A live instance wins over ended ones that begin alike.
	in, err := matchInstance([]sandbox.Instance{instance("ab000000", "running"), instance("ab110000", "destroyed")}, "ab")
	if err != nil || in.InstanceID != "inst_ab000000" {
		t.Errorf("got %v, %v", in.InstanceID, err)
	}
}

func TestPsTable(t *testing.T) {
	drift := "the VM is gone"
	gone := instance("22222222", "running")
	gone.ReconciliationDrift = &drift
	done := instance("33333333", "expired")
	done.EndReason = "deadline"
	done.DiskUsedBytes = 5
	evil := instance("44444444", "running")
	evil.WorkspaceRoot = "/w\x1b[2J\nx"
	evil.DiskUsedBytes = 3 << 20
	gone.ParentInstance = "inst_11111111"
	busy := instance("11111111", "running")
	busy.MemoryPSSBytes = 212 << 20
	waiting := instance("55555555", "running")
	waiting.Kind, waiting.WorkspaceRoot = "pool", ""
	var out, notes strings.Builder
	now := time.Date(2026, 3, 1, 8, 10, 0, 0, time.UTC)
	printInstances(&out, &notes, &sandbox.ListInstancesResult{
		Instances:    []sandbox.Instance{busy, gone, done, evil, waiting},
		BackendError: "no qemu",
	}, now)
	want := `INSTANCE       STATUS                                        BACKEND   AGE     EXPIRES    MEMORY     DISK     WORKSPACE
inst_11111111  running                                       qemu/tcg  10m00s  in 20m00s  212.0 MiB  -        /proj/11111111
inst_22222222  running, from inst_11111111 (the VM is gone)  qemu/tcg  10m00s  in 20m00s  -          -        /proj/22222222
inst_33333333  expired (deadline)                            qemu/tcg  10m00s  -          -          -        /proj/33333333
inst_44444444  running                                       qemu/tcg  10m00s  in 20m00s  -          3.0 MiB  /w x
inst_55555555  pool, running                                 qemu/tcg  10m00s  in 20m00s  -          -        -
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if !strings.Contains(notes.String(), "no qemu") {
		t.Errorf("the backend's error is not shown: %q", notes.String())
	}
}

func TestDestroyDestroysTheRestWhenOneFails(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running"), instance("22222222", "running"), instance("33333333", "running")}}
	f.destroy = func(r sandbox.DestroyInstanceRequest) error {
		if r.InstanceID == "inst_22222222" {
			return fault.New(fault.BackendCommandFailed, "it clings to life")
		}
		return nil
	}
	code, out, errs := f.run(t, "destroy", "1111", "2222", "3333", "inst_11111111")
	if code != exitFailed || len(f.destroyed) != 2 || !strings.Contains(errs, "inst_22222222: it clings to life") {
		t.Errorf("code %d, destroyed %v, stderr %q", code, f.destroyed, errs)
	}
	if out != "" {
		t.Errorf("stdout %q", out)
	}

	code, out, _ = f.run(t, "destroy", "--all", "--json")
	var v struct {
		Instances []destroyOutcome `json:"instances"`
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != exitFailed || len(v.Instances) != 3 {
		t.Fatalf("code %d, %v, %s", code, err, out)
	}
	for _, o := range v.Instances {
		if failed := o.InstanceID == "inst_22222222"; failed != (o.Status == "failed") || failed != (o.Error != nil) {
			t.Errorf("%+v", o)
		}
	}
}

func TestDestroyNothingWhenOneReferenceIsWrong(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	code, _, _ := f.run(t, "destroy", "1111", "9999")
	if code != exitFailed || len(f.destroyed) != 0 {
		t.Errorf("code %d, destroyed %v", code, f.destroyed)
	}
}

func TestGC(t *testing.T) {
	f := &fakeService{gc: &sandbox.GCResult{
		InstancesChecked: 1, VMsChecked: 2, ReclaimedBytes: 2048,
		Actions:  []sandbox.GCAction{{Action: "deleted_vm", Name: "agent-1", Reason: "no lease"}},
		Failures: []sandbox.GCAction{},
	}}
	code, out, _ := f.run(t, "gc")
	want := "ACTION      INSTANCE  VM       REASON\ndeleted_vm  -         agent-1  no lease\nchecked 1 instance and 2 VMs; 2.0 KiB of disk space came back\n"
	if code != exitOK || out != want {
		t.Errorf("code %d\n%q\nwant\n%q", code, out, want)
	}
	f.gc.Failures = []sandbox.GCAction{{Action: "removed_files", Name: "/x", Reason: "permission denied"}}
	code, out, errs := f.run(t, "gc", "--json")
	if code != exitFailed || !strings.Contains(errs, "permission denied") || !json.Valid([]byte(out)) {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

// taskOutput is a task whose output grows with each status call.
func taskOutput(f *fakeService, parts ...string) {
	text, running := parts[0], true
	next := 1
	f.status = func(r sandbox.GetTaskStatusRequest) (*sandbox.Task, error) {
		t := &sandbox.Task{TaskID: r.TaskID, Status: "running"}
		if next < len(parts) {
			text += parts[next]
			next++
		}
		if next == len(parts) {
			t.Status, running = "succeeded", false
		}
		return t, nil
	}
	f.logs = func(r sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error) {
		out := &sandbox.GetTaskLogsResult{TaskID: r.TaskID, Status: "running"}
		if !running {
			out.Status = "succeeded"
		}
		data := text
		if r.Stream == "stderr" {
			data = strings.ToUpper(text)
		}
		out.TotalBytes = int64(len(data))
		if r.Offset != nil {
			out.Logs = data[*r.Offset:min(int(*r.Offset)+4, len(data))] // small pieces
			out.NextOffset = *r.Offset + int64(len(out.Logs))
			return out, nil
		}
		out.Logs, out.NextOffset = data, out.TotalBytes
		return out, nil
	}
}

func TestLogsFollowShowsEverythingOnce(t *testing.T) {
	f := &fakeService{
		instances: []sandbox.Instance{instance("11111111", "running")},
		tasks: []sandbox.Task{
			{TaskID: "task_cccccccccccc", InstanceID: "inst_11111111", Kind: "command", Status: "succeeded"},
			{TaskID: "task_bbbbbbbbbbbb", InstanceID: "inst_11111111", Kind: "background", Status: "running", Command: "make"},
		},
	}
	for _, ref := range []string{"task_bbbbbbbbbbbb", "task_bb", "bbbb", "inst_11111111", "1111"} {
		taskOutput(f, "one\n", "two two\n", "", "three\n")
		code, out, errs := f.run(t, "logs", "-f", ref)
		if code != exitOK || out != "one\ntwo two\nthree\n" {
			t.Errorf("%s: code %d, stdout %q, stderr %q", ref, code, out, errs)
		}
		if !strings.HasSuffix(errs, "ONE\nTWO TWO\nTHREE\n") {
			t.Errorf("%s: stderr %q", ref, errs)
		}
	}
	taskOutput(f, "one\n", "two\n")
	if _, out, _ := f.run(t, "logs", "bbbb"); out != "one\n" {
		t.Errorf("without -f: %q", out)
	}
}

// TestEmptyConsole: a clone has printed nothing, which looks like a defect.
func TestEmptyConsole(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	f.console = func() (*sandbox.ConsoleResult, error) { return &sandbox.ConsoleResult{}, nil }
	code, out, errs := f.run(t, "logs", "--console", "1111")
	if code != exitOK || out != "" || !strings.Contains(errs, "the console of inst_11111111 is empty") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
}

func TestConsoleFollow(t *testing.T) {
	texts := []string{"a\nb\n", "a\nb\nc\n", "c\nd\n", "quite other\n"}
	n := 0
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	f.console = func() (*sandbox.ConsoleResult, error) {
		if n == len(texts) {
			return nil, fault.New(fault.InstanceTerminal, "over")
		}
		n++
		return &sandbox.ConsoleResult{Data: []byte(texts[n-1])}, nil
	}
	code, out, errs := f.run(t, "logs", "--console", "-f", "-n", "1", "1111")
	// "c\nd\n" does not hold the whole mark "a\nb\nc\n": it counts as new.
	if code != exitOK || out != "b\nc\nc\nd\nquite other\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
	if code, out, _ := f.run(t, "logs", "1111"); code != exitFailed || out != "" {
		t.Errorf("an ended console: code %d, %q", code, out)
	}
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a", 5, "a"}, {"", 3, ""}, {"a\nb\n", 0, ""}, {"\n\n", 1, "\n"},
	} {
		if got := lastLines(c.text, c.n); got != c.want {
			t.Errorf("lastLines(%q, %d) = %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestCompletion(t *testing.T) {
	f := &fakeService{
		instances: []sandbox.Instance{instance("11111111", "running"), instance("22222222", "destroyed")},
		tasks:     []sandbox.Task{{TaskID: "task_bbbbbbbbbbbb", Kind: "background", Status: "running", Command: "make\tall"}},
	}
	env := f.env(t)
	s, err := env.settings()
	if err == nil {
		err = s.EnsureHome()
	}
	if err == nil {
		err = os.WriteFile(s.LeaseDBPath, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		"exec ":                  {"inst_11111111\trunning /proj/11111111"},
		"exec inst_11111111 ":    nil,
		"destroy ":               {"inst_11111111\trunning /proj/11111111"},
		"destroy inst_11111111 ": nil,
		"logs ":                  {"inst_11111111\trunning /proj/11111111", "inst_22222222\tdestroyed /proj/22222222", "task_bbbbbbbbbbbb\trunning make all"},
	} {
		var out strings.Builder
		env.Stdout = &out
		if code := Main(append([]string{"__complete"}, strings.Split(args, " ")...), env); code != 0 {
			t.Errorf("%q: code %d", args, code)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := lines[:len(lines)-1]; !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}
