package store

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

// testClock is a clock that only tests move.
type testClock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *testClock {
	return &testClock{t: time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC)}
}

func (c *testClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// counting is a source of ids in ascending order.
type counting struct{ n uint64 }

func (c *counting) Read(p []byte) (int, error) {
	c.n++
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], c.n)
	for i := range p {
		p[i] = 0
	}
	copy(p[max(0, len(p)-8):], b[max(0, 8-len(p)):])
	return len(p), nil
}

func openAt(t *testing.T, path string, o Options) *Store {
	t.Helper()
	o.Path = path
	if o.Self == (Owner{}) {
		o.Self = Self("test")
	}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func open(t *testing.T) (*Store, *testClock) {
	t.Helper()
	c := newClock()
	return openAt(t, filepath.Join(t.TempDir(), "leases.db"), Options{Clock: c.now}), c
}

func newLease(s *Store) NewLease {
	return NewLease{
		Backend: "fake", WorkspaceRoot: "/w", WorkspaceID: "ws_0123456789ab", ExpiresAt: s.now().Add(30 * time.Minute),
		MemoryMiB: 2048, DiskBytes: 15 << 30, CPUs: 2, Config: []byte(`{"vm":{"cpus":2}}`), Spec: []byte(`{}`),
	}
}

func admit(t *testing.T, s *Store) Lease {
	t.Helper()
	l, err := s.Admit(t.Context(), newLease(s), Limits{})
	if err != nil {
		t.Fatalf("Admit: %v", err)
	}
	return l
}

// paths lead a new lease to each status.
var paths = map[Status][]Status{
	Creating:   {},
	Running:    {Running},
	Destroying: {Running, Destroying},
	Destroyed:  {Running, Destroying, Destroyed},
	Expiring:   {Running, Expiring},
	Expired:    {Running, Expiring, Expired},
	Error:      {Running, Error},
}

func leaseIn(t *testing.T, s *Store, status Status) Lease {
	t.Helper()
	l := admit(t, s)
	for _, to := range paths[status] {
		l = move(t, s, l, Move{To: to, Reason: "test"})
	}
	if l.Status != status {
		t.Fatalf("lease is %s, want %s", l.Status, status)
	}
	return l
}

func move(t *testing.T, s *Store, l Lease, m Move) Lease {
	t.Helper()
	moved, err := s.Move(t.Context(), l.InstanceID, l.Generation, m)
	if err != nil {
		t.Fatalf("Move to %s: %v", m.To, err)
	}
	return moved
}

func wantCode(t *testing.T, err error, code fault.Code) *fault.Error {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("error %v (%s), want %s", err, fault.CodeOf(err), code)
	}
	f := fault.From(err)
	if f.Cause == "" || len(f.NextSteps) == 0 {
		t.Errorf("%s %q leaves the reader alone: cause %q, next steps %q", code, f.Message, f.Cause, f.NextSteps)
	}
	return f
}

// TestMoves tries every move from every status and demands that exactly the
// law of status.go holds, in the code and in the database's own trigger.
func TestMoves(t *testing.T) {
	// Written out by hand, so that a slip in the law is a failure here.
	legal := map[Status][]Status{
		Creating:   {Running, Error, Destroying, Expiring},
		Running:    {Error, Destroying, Expiring},
		Error:      {Destroying, Expiring},
		Destroying: {Destroying, Destroyed, Error},
		Expiring:   {Expiring, Expired, Error},
		Destroyed:  {},
		Expired:    {},
	}
	s, _ := open(t)
	for _, from := range Statuses() {
		for _, to := range Statuses() {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				before := leaseIn(t, s, from)
				after, err := s.Move(t.Context(), before.InstanceID, before.Generation, Move{To: to})
				read, rerr := s.Lease(t.Context(), before.InstanceID)
				if rerr != nil {
					t.Fatal(rerr)
				}
				if slices.Contains(legal[from], to) {
					if err != nil {
						t.Fatalf("legal move refused: %v", err)
					}
					if read.Status != to || read.Generation != before.Generation+1 {
						t.Errorf("lease is %s in generation %d, want %s in %d", read.Status, read.Generation, to, before.Generation+1)
					}
					if read.EndedAt.IsZero() == to.Terminal() {
						t.Errorf("ended at %v in status %s", read.EndedAt, to)
					}
					return
				}
				if !errors.Is(err, ErrConflict) {
					t.Fatalf("illegal move: error %v, want ErrConflict", err)
				}
				if from.CleanupOwned() {
					wantCode(t, err, fault.InstanceTerminal)
				}
				if read.Status != from || read.Generation != before.Generation || after.Status != from {
					t.Errorf("illegal move changed the lease: %s generation %d", read.Status, read.Generation)
				}
				if events, err := s.Events(t.Context(), EventFilter{InstanceID: before.InstanceID, Limit: 1}); err != nil || events[0].To == string(to) && from != to {
					t.Errorf("illegal move left the event %+v (%v)", events, err)
				}
			})
		}
	}
}

// TestNothingRevivesALease goes around the code: the database refuses too.
func TestNothingRevivesALease(t *testing.T) {
	s, _ := open(t)
	for _, from := range []Status{Destroying, Destroyed, Expiring, Expired, Error} {
		l := leaseIn(t, s, from)
		for _, to := range []Status{Creating, Running} {
			_, err := s.writer.ExecContext(t.Context(), `UPDATE leases SET status = ?, ended_at = NULL WHERE instance_id = ?`, to, l.InstanceID)
			if err == nil {
				t.Errorf("a bare UPDATE revived a lease from %s to %s", from, to)
			}
		}
	}
}

func TestMoveByStaleGeneration(t *testing.T) {
	s, _ := open(t)
	l := leaseIn(t, s, Running)
	if _, _, err := s.Extend(t.Context(), l.InstanceID, time.Minute, time.Hour); err != nil {
		t.Fatal(err)
	}
	now, err := s.Move(t.Context(), l.InstanceID, l.Generation, Move{To: Expiring})
	if !errors.Is(err, ErrConflict) {
		t.Fatalf("expiry by a stale generation: %v, want ErrConflict", err)
	}
	if now.Status != Running || now.Generation != l.Generation+1 {
		t.Errorf("the lease handed back is %s in generation %d", now.Status, now.Generation)
	}
	if got, err := s.Move(t.Context(), l.InstanceID, AnyGeneration, Move{To: Destroying}); err != nil || got.Status != Destroying {
		t.Errorf("destroy by any generation: %v %v", got.Status, err)
	}
	_, err = s.Move(t.Context(), "inst_ffffffff", AnyGeneration, Move{To: Destroying})
	wantCode(t, err, fault.InstanceNotFound)
}

func TestLeaseRoundTrip(t *testing.T) {
	s, c := open(t)
	n := newLease(s)
	n.WorkspaceRoot = "/w/\x00\xff 'quoted'; --\n"
	n.ProfileName, n.Accelerator, n.StartKind, n.RuntimeName, n.RemotePath, n.AutoBootstrap = "p", "tcg", "cold", "docker", "/workspace", true
	l, err := s.Admit(t.Context(), n, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.InstanceID) != len("inst_")+8 || l.BackendInstanceName != "agent-"+l.InstanceID[5:] {
		t.Errorf("ids %q %q", l.InstanceID, l.BackendInstanceName)
	}
	if l.WorkspaceRoot != n.WorkspaceRoot || string(l.Config) != string(n.Config) || !l.AutoBootstrap || l.CPUs != 2 ||
		l.Holder != s.self || l.OwnerSession != "test" || l.Timings != nil || l.Error != nil {
		t.Errorf("lease came back as %+v", l)
	}
	if want := c.now().Truncate(time.Millisecond); !l.CreatedAt.Equal(want) || !l.ExpiresAt.Equal(want.Add(30*time.Minute)) || l.CreatedAt.Location() != time.UTC {
		t.Errorf("created %v, expires %v, want %v", l.CreatedAt, l.ExpiresAt, want)
	}
	port, name, ready := 2222, "docker", true
	l = move(t, s, l, Move{To: Running, Patch: Patch{SSHPort: &port, RuntimeReady: &ready, Timings: []byte(`{"boot":12}`)}})
	if l.SSHPort != 2222 || !l.RuntimeReady || string(l.Timings) != `{"boot":12}` || l.RuntimeName != "docker" {
		t.Errorf("patched lease %+v", l)
	}
	cmd := "sudo -n docker"
	got, err := s.Update(t.Context(), l.InstanceID, Patch{DockerCommand: &cmd, RuntimeName: &name})
	if err != nil || got.DockerCommand != cmd || got.Generation != l.Generation || got.SSHPort != 2222 {
		t.Errorf("Update: %+v %v", got, err)
	}
	byName, err := s.LeaseByBackendName(t.Context(), l.BackendInstanceName)
	if err != nil || byName.InstanceID != l.InstanceID {
		t.Errorf("by name: %v %v", byName.InstanceID, err)
	}
	l = move(t, s, l, Move{To: Error, Reason: "the hypervisor died", Err: fault.New(fault.InstanceLost, "gone").Because("x").With("pid", 7)})
	if want := `{"details":{"next_steps":["call list_instances to see the instances there are, or create_instance for a new one"],"pid":7,"probable_cause":"x"},"error_code":"INSTANCE_LOST","message":"gone"}`; string(l.Error) != want {
		t.Errorf("error %s\nwant  %s", l.Error, want)
	}
	f := wantCode(t, s.liveErr(t, l.InstanceID), fault.InstanceLost)
	if f.Cause != "the hypervisor died" {
		t.Errorf("cause %q", f.Cause)
	}
}

func (s *Store) liveErr(t *testing.T, id string) error {
	_, err := s.LiveLease(t.Context(), id)
	return err
}

func TestLiveLease(t *testing.T) {
	s, c := open(t)
	for status, code := range map[Status]fault.Code{
		Creating: fault.RuntimeNotReady, Destroying: fault.InstanceTerminal, Destroyed: fault.InstanceTerminal,
		Expiring: fault.InstanceTerminal, Expired: fault.InstanceTerminal, Error: fault.InstanceLost,
	} {
		wantCode(t, s.liveErr(t, leaseIn(t, s, status).InstanceID), code)
	}
	l := leaseIn(t, s, Running)
	if err := s.liveErr(t, l.InstanceID); err != nil {
		t.Error(err)
	}
	c.advance(30 * time.Minute)
	wantCode(t, s.liveErr(t, l.InstanceID), fault.InstanceTerminal)
	wantCode(t, s.liveErr(t, "nonsense"), fault.InstanceNotFound)
	_, err := s.Update(t.Context(), leaseIn(t, s, Destroyed).InstanceID, Patch{})
	wantCode(t, err, fault.InstanceTerminal)
}

// TestAnEndSaysWhatNext: who meets an ended instance learns why it ended, how to
// avoid it the next time, and where its output is.
func TestAnEndSaysWhatNext(t *testing.T) {
	s, _ := open(t)
	for status, want := range map[Status][2]string{
		Expired:   {"its deadline was ", "longer ttl_minutes"},
		Destroyed: {"", "create_instance"},
	} {
		l := leaseIn(t, s, status)
		f := wantCode(t, s.liveErr(t, l.InstanceID), fault.InstanceTerminal)
		steps := strings.Join(f.NextSteps, "\n")
		if !strings.Contains(f.Cause, want[0]) || !strings.Contains(steps, want[1]) || !strings.Contains(steps, "get_task_logs") {
			t.Errorf("%s: cause %q, next %q", status, f.Cause, steps)
		}
	}
}

func TestExtend(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running) // 30 minutes
	for _, step := range []struct {
		by, most, added time.Duration
	}{
		{10 * time.Minute, 2 * time.Hour, 10 * time.Minute},
		{3 * time.Hour, 2 * time.Hour, 80 * time.Minute}, // capped
		{time.Minute, 2 * time.Hour, 0},                  // at the cap
		{time.Minute, time.Hour, 0},                      // never back
		{-time.Minute, 2 * time.Hour, 0},
	} {
		got, added, err := s.Extend(t.Context(), l.InstanceID, step.by, step.most)
		if err != nil || added != step.added {
			t.Errorf("extend by %v: added %v (%v), want %v", step.by, added, err, step.added)
		}
		if want := l.ExpiresAt.Add(added); !got.ExpiresAt.Equal(want) {
			t.Errorf("extend by %v: expires %v, want %v", step.by, got.ExpiresAt, want)
		}
		l = got
	}
	c.advance(2 * time.Hour) // the supervisor has taken the VM down by now
	_, _, err := s.Extend(t.Context(), l.InstanceID, time.Minute, 2*time.Hour)
	wantCode(t, err, fault.InstanceTerminal)
	_, _, err = s.Extend(t.Context(), leaseIn(t, s, Expiring).InstanceID, time.Minute, 2*time.Hour)
	wantCode(t, err, fault.InstanceTerminal)
}

func TestTouch(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running)
	used := func() time.Time {
		got, err := s.Lease(t.Context(), l.InstanceID)
		if err != nil {
			t.Fatal(err)
		}
		return got.LastUsedAt
	}
	for _, step := range []struct{ wait, moved time.Duration }{{500 * time.Millisecond, 0}, {time.Second, 1500 * time.Millisecond}, {time.Millisecond, 0}} {
		was := used()
		c.advance(step.wait)
		if err := s.Touch(t.Context(), l.InstanceID); err != nil {
			t.Fatal(err)
		}
		if got := used().Sub(was); got != step.moved {
			t.Errorf("after %v last_used_at moved by %v, want %v", step.wait, got, step.moved)
		}
	}
	wantCode(t, s.Touch(t.Context(), "inst_ffffffff"), fault.InstanceNotFound)
}

func TestLeasesFilter(t *testing.T) {
	s, c := open(t)
	ids := map[Status]string{}
	var all []string
	for _, st := range Statuses() {
		ids[st] = leaseIn(t, s, st).InstanceID
		all = append(all, ids[st])
		c.advance(time.Minute)
	}
	slices.Reverse(all)
	expired, err := s.Lease(t.Context(), ids[Creating])
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		f    LeaseFilter
		want []string
	}{
		"active":       {LeaseFilter{}, []string{ids[Error], ids[Expiring], ids[Destroying], ids[Running], ids[Creating]}},
		"all":          {LeaseFilter{IncludeEnded: true}, all},
		"newest":       {LeaseFilter{IncludeEnded: true, Limit: 2}, all[:2]},
		"one status":   {LeaseFilter{Statuses: []Status{Expired}}, []string{ids[Expired]}},
		"overdue":      {LeaseFilter{ExpiredBy: expired.ExpiresAt}, []string{ids[Creating]}},
		"pool":         {LeaseFilter{Kind: KindPool}, nil},
		"workspace":    {LeaseFilter{WorkspaceID: "ws_other"}, nil},
		"of workspace": {LeaseFilter{WorkspaceID: "ws_0123456789ab", Limit: 1}, []string{ids[Error]}},
	} {
		got, err := s.Leases(t.Context(), test.f)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, l := range got {
			have = append(have, l.InstanceID)
		}
		if !slices.Equal(have, test.want) {
			t.Errorf("%s: %v, want %v", name, have, test.want)
		}
	}
}

func TestAbandonedAndTakeOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	dead := Owner{Session: "a", PID: 1 << 30, Boot: "b", Start: "1"}
	alive := func(o Owner) bool { return o.PID != dead.PID }
	a := openAt(t, path, Options{Self: dead, Alive: alive})
	b := openAt(t, path, Options{Alive: alive})
	creating, destroying := leaseIn(t, a, Creating), leaseIn(t, a, Destroying)
	leaseIn(t, a, Running)
	leaseIn(t, a, Destroyed)
	leaseIn(t, b, Creating)
	got, err := b.Abandoned(t.Context())
	if err != nil || len(got) != 2 || got[0].InstanceID != destroying.InstanceID || got[1].InstanceID != creating.InstanceID {
		t.Fatalf("abandoned: %v %v", got, err)
	}
	taken := move(t, b, destroying, Move{To: Destroying})
	if taken.Holder.PID != b.self.PID {
		t.Errorf("held by %+v", taken.Holder)
	}
	// The first holder was only slow: it must notice.
	if _, err := a.Move(t.Context(), destroying.InstanceID, destroying.Generation, Move{To: Destroyed}); !errors.Is(err, ErrConflict) {
		t.Errorf("the old holder finished the clean-up: %v", err)
	}
	if got, err = b.Abandoned(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("abandoned after take-over: %v %v", got, err)
	}
}

func TestIdCollisionsAreRetried(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	first := leaseIn(t, openAt(t, path, Options{Rand: &counting{}}), Running)
	s := openAt(t, path, Options{Rand: &counting{}}) // the same ids again
	if l := admit(t, s); l.InstanceID == first.InstanceID {
		t.Errorf("%s was given out twice", l.InstanceID)
	}
}

func TestCancelBeforeTheTurnChangesNothing(t *testing.T) {
	s, _ := open(t)
	conn, err := s.writer.Conn(t.Context()) // takes the writer's turn
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := s.Admit(ctx, newLease(s), Limits{})
		done <- err
	}()
	cancel()
	err = <-done
	conn.Close()
	if !errors.Is(err, context.Canceled) || !fault.Is(err, fault.Cancelled) {
		t.Errorf("error %v", err)
	}
	if got, err := s.Leases(t.Context(), LeaseFilter{}); err != nil || len(got) != 0 {
		t.Errorf("leases %v %v", got, err)
	}
}
