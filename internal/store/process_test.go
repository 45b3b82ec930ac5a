package store

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

// Tests of several processes run this binary again; childEnv names what it
// does, with the database's path as the argument.
const childEnv = "STORE_TEST_CHILD"

var children = map[string]func(context.Context, *Store) error{
	"open":      func(context.Context, *Store) error { return nil },
	"admit":     childAdmit,
	"increment": childIncrement,
	"churn":     childChurn,
	"die":       childDie,
}

func TestMain(m *testing.M) {
	name := os.Getenv(childEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	s, err := Open(ctx, Options{Path: os.Args[1], Self: Self(name)})
	if err == nil {
		err = errors.Join(children[name](ctx, s), s.Close())
	}
	if err != nil {
		fmt.Println("failed:", fault.CodeOf(err), err)
		os.Exit(1)
	}
	os.Exit(0)
}

func child(t *testing.T, name, path string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, path)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// runChildren runs n processes at once and returns what each printed.
func runChildren(t *testing.T, n int, name, path string) []string {
	t.Helper()
	out := make([]string, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		cmd := child(t, name, path)
		wg.Go(func() {
			b, err := cmd.Output()
			out[i], errs[i] = string(b), err
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("child %d: %v: %s", i, err, out[i])
		}
	}
	return out
}

func TestManyProcessesMakeOneDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "leases.db")
	runChildren(t, 6, "open", path)
	s := openAt(t, path, Options{})
	if problems, err := s.Check(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("check: %q %v", problems, err)
	}
}

func childAdmit(ctx context.Context, s *Store) error {
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			_, err := s.Admit(ctx, newLease(s), Limits{MaxInstances: 1})
			errs <- err
		}()
	}
	var failed error
	for range cap(errs) {
		switch err := <-errs; {
		case err == nil:
			fmt.Println("won")
		case fault.Is(err, fault.InstanceLimitExceeded):
			fmt.Println("refused")
		default:
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func TestEightCreatesInTwoProcessesAndACapOfOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openAt(t, path, Options{})
	out := strings.Join(runChildren(t, 2, "admit", path), "")
	if won, refused := strings.Count(out, "won"), strings.Count(out, "refused"); won != 1 || refused != 7 {
		t.Errorf("%d won and %d were refused:\n%s", won, refused, out)
	}
	if live, err := s.Leases(t.Context(), LeaseFilter{}); err != nil || len(live) != 1 {
		t.Errorf("leases %v %v", live, err)
	}
}

const increments = 1000

// childIncrement reads a number and writes it back plus one, the pattern that
// fails busy, or loses updates, unless the transaction is immediate.
func childIncrement(ctx context.Context, s *Store) error {
	live, err := s.Leases(ctx, LeaseFilter{})
	if err != nil {
		return err
	}
	id := live[0].InstanceID
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			for range increments / cap(errs) {
				err := s.write(ctx, "incrementing", func(ctx context.Context, tx *sql.Tx) error {
					var n int
					if err := tx.QueryRowContext(ctx, `SELECT cpus FROM leases WHERE instance_id = ?`, id).Scan(&n); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, `UPDATE leases SET cpus = ? WHERE instance_id = ?`, n+1, id)
					return err
				})
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var all error
	for range cap(errs) {
		all = errors.Join(all, <-errs)
	}
	return all
}

func TestReadThenWriteFromTwoProcessesNeverFailsBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openAt(t, path, Options{})
	before := admit(t, s)
	runChildren(t, 2, "increment", path)
	after, err := s.Lease(t.Context(), before.InstanceID)
	if err != nil || after.CPUs-before.CPUs != 2*increments {
		t.Errorf("%d of %d increments arrived (%v)", after.CPUs-before.CPUs, 2*increments, err)
	}
}

// childChurn lives whole lives of leases until it is killed, and says after
// each commit what is now true.
func childChurn(ctx context.Context, s *Store) error {
	for {
		l, err := s.Admit(ctx, newLease(s), Limits{})
		if err != nil {
			return err
		}
		fmt.Println(l.InstanceID, l.Status)
		for _, to := range []Status{Running, Destroying, Destroyed} {
			if to == Destroying {
				if _, err := s.InsertTask(ctx, NewTask{InstanceID: l.InstanceID, Kind: TaskCommand, Command: strings.Repeat("x", 20_000)}); err != nil {
					return err
				}
			}
			if l, err = s.Move(ctx, l.InstanceID, l.Generation, Move{To: to}); err != nil {
				return err
			}
			fmt.Println(l.InstanceID, l.Status)
		}
	}
}

// TestKillMidTransaction kills a writing process at arbitrary moments. What it
// had reported as done must be there; each lease's row and record agree.
func TestKillMidTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openAt(t, path, Options{})
	for round := range 12 {
		cmd := child(t, "churn", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := map[string]Status{}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var id, status string
			if _, err := fmt.Sscan(lines.Text(), &id, &status); err != nil {
				t.Fatalf("child: %s", lines.Text())
			}
			said[id] = Status(status)
			if n == 5+3*round {
				// Another transaction has begun by now, or is about to.
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child ended by itself")
		}
		if len(said) == 0 {
			t.Fatal("the child did nothing before it was killed")
		}
		for id, status := range said {
			l, err := s.Lease(t.Context(), id)
			if err != nil {
				t.Fatalf("a reported lease is gone: %v", err)
			}
			if l.Status != status && !CanMove(status, l.Status) {
				t.Errorf("%s is %s, was reported %s", id, l.Status, status)
			}
			events, err := s.Events(t.Context(), EventFilter{InstanceID: id, What: "move"})
			if err != nil || int64(len(events))+1 != l.Generation {
				t.Errorf("%s has generation %d and %d moves on record (%v)", id, l.Generation, len(events), err)
			}
			running, err := s.Tasks(t.Context(), TaskFilter{InstanceID: id, Status: TaskRunning})
			if err != nil || l.Status.Terminal() && len(running) > 0 {
				t.Errorf("%s is %s with %d running tasks (%v)", id, l.Status, len(running), err)
			}
		}
		if problems, err := s.Check(t.Context()); err != nil || len(problems) > 0 {
			t.Fatalf("after kill %d: %q %v", round, problems, err)
		}
	}
	// The dead children's unfinished leases are seen as such, by the real
	// process table.
	got, err := s.Abandoned(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open, err := s.Leases(t.Context(), LeaseFilter{Statuses: []Status{Creating, Destroying}})
	if err != nil || len(got) != len(open) {
		t.Errorf("%d of %d unfinished leases are abandoned (%v)", len(got), len(open), err)
	}
}

func childDie(ctx context.Context, s *Store) error {
	if _, _, err := s.BeginRequest(ctx, "run_command", "r1", "f"); err != nil {
		return err
	}
	fmt.Println("begun")
	select {} // until it is killed
}

func TestRequestOfAKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openAt(t, path, Options{})
	cmd := child(t, "die", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the child said nothing")
	}
	r, outcome, err := s.BeginRequest(t.Context(), "run_command", "r1", "f")
	if err != nil || outcome != InProgress || r.Holder.PID != cmd.Process.Pid {
		t.Errorf("while it lives: %v %+v %v", outcome, r.Holder, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if _, outcome, err = s.BeginRequest(t.Context(), "run_command", "r1", "f"); err != nil || outcome != OwnerDied {
		t.Errorf("once it is dead: %v %v", outcome, err)
	}
}

func TestProcessAlive(t *testing.T) {
	me := Self("x")
	reused, rebooted := me, me
	reused.Start += "0"
	rebooted.Boot += "0"
	for name, test := range map[string]struct {
		o    Owner
		want bool
	}{
		"this process":      {me, true},
		"its parent":        {Owner{PID: os.Getppid()}, true},
		"no process":        {Owner{}, false},
		"no such pid":       {Owner{PID: 1 << 30}, false},
		"a reused pid":      {reused, me.Start == ""},
		"before a reboot":   {rebooted, me.Boot == ""},
		"only the pid":      {Owner{PID: me.PID}, true},
		"another's session": {Owner{Session: "y", PID: me.PID, Boot: me.Boot, Start: me.Start}, true},
	} {
		if got := ProcessAlive(test.o); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestAWriterWaitsForAnotherProcess holds the write lock through a connection
// of its own, as another process would.
func TestAWriterWaitsForAnotherProcess(t *testing.T) {
	s, _ := open(t)
	other, err := sql.Open("sqlite", dsn(s.path, false))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Admit(ctx, newLease(s), Limits{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the lock is held: %v", err)
	}
	if _, err := s.Leases(t.Context(), LeaseFilter{}); err != nil {
		t.Errorf("a reader waited for a writer: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	admit(t, s)
}
