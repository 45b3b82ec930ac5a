package template

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Tests of several processes run this binary again; childEnv is what the child
// does, and its argument the store's directory.
const childEnv = "TEMPLATE_TEST_CHILD"

func TestMain(m *testing.M) {
	step, ok := os.LookupEnv(childEnv)
	if !ok {
		os.Exit(m.Run())
	}
	child(os.Args[1], step)
}

// child makes template 1. At the step it is told it says so and stops there
// until it is killed.
func child(dir, stop string) {
	at := func(step string) {
		if step == stop {
			fmt.Println("at", step)
			io.Copy(io.Discard, os.Stdin) // ends with the parent at the latest
			os.Exit(3)
		}
	}
	s := &Store{Dir: dir, Keeper: keeper{checking: func(string) { at("checking") }}}
	tm, made, err := s.Make(context.Background(), describe(1), nil, func(ctx context.Context, state string, p backend.Progress) error {
		at("building")
		if err := os.Mkdir(state, 0o700); err != nil {
			return err
		}
		at("half made")
		err := os.WriteFile(filepath.Join(state, "memory"), []byte("good"), 0o600)
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(state), recordName+".123"), []byte("{"), 0o600)
		}
		at("saved")
		return errors.Join(err, os.Remove(filepath.Join(filepath.Dir(state), recordName+".123")))
	})
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println("made", made, tm.State)
	os.Exit(0)
}

func start(t *testing.T, dir, step string) (cmd *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), exe, dir)
	cmd.Env = append(os.Environ(), childEnv+"="+step)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(pipe)
}

func TestEightProcessesMakeOneTemplate(t *testing.T) {
	s := newStore(t)
	lines := make([]string, 8)
	var wg sync.WaitGroup
	for i := range lines {
		cmd, out := start(t, s.Dir, "")
		wg.Go(func() {
			b, err := io.ReadAll(out)
			lines[i] = strings.TrimSpace(string(b))
			if err = errors.Join(err, cmd.Wait()); err != nil {
				t.Errorf("child %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	made := 0
	states := map[string]bool{}
	for _, l := range lines {
		var yes bool
		var state string
		if _, err := fmt.Sscanf(l, "made %t %s", &yes, &state); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		states[state] = true
		if yes {
			made++
		}
	}
	if made != 1 || len(states) != 1 {
		t.Errorf("%d makers, states %v", made, states)
	}
	wantFiles(t, s, 1)
}

// A maker that is stopped keeps nobody waiting for ever.
func TestAStoppedMaker(t *testing.T) {
	old := silence
	silence = 2 * notePeriod
	t.Cleanup(func() { silence = old })
	s := newStore(t)
	cmd, out := start(t, s.Dir, "building")
	if line, err := out.ReadString('\n'); err != nil || line != "at building\n" {
		t.Fatalf("%q, %v", line, err)
	}
	stop(t, cmd.Process)
	_, _, err := s.Make(t.Context(), describe(1), nil, nil)
	if !fault.Is(err, fault.RuntimeNotReady) || !strings.Contains(err.Error(), fmt.Sprint(cmd.Process.Pid)) {
		t.Errorf("waiting for it: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	mustMake(t, s, 1)
}

// A maker that is killed leaves nothing that is taken for a template, and
// nothing that its successor does not remove.
func TestKilledMakers(t *testing.T) {
	for _, step := range []string{"building", "half made", "saved", "checking"} {
		t.Run(step, func(t *testing.T) {
			s := newStore(t)
			cmd, out := start(t, s.Dir, step)
			if line, err := out.ReadString('\n'); err != nil || line != "at "+step+"\n" {
				t.Fatalf("%q, %v", line, err)
			}
			// Somebody waits while it dies.
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, made, err := s.Make(t.Context(), describe(1), nil, save); err != nil || !made {
					t.Errorf("the successor: made %v, %v", made, err)
				}
			})
			if _, err := s.Find(t.Context(), key(1)); !errors.Is(err, ErrMissing) {
				t.Errorf("found while it was made: %v", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			wg.Wait()
			wantFiles(t, s, 1)
		})
		t.Run(step+", then a sweep", func(t *testing.T) {
			s := newStore(t)
			cmd, out := start(t, s.Dir, step)
			if line, err := out.ReadString('\n'); err != nil || line != "at "+step+"\n" {
				t.Fatalf("%q, %v", line, err)
			}
			before := files(t, s)
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := files(t, s); after != before {
				t.Errorf("a sweep took %q from under a maker, left %q", before, after)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantFiles(t, s)
		})
	}
}
