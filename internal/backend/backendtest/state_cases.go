package backendtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// The cases of saved states, for backends that claim them.

// keeper is the backend as a StateKeeper; a backend that claims no saved states
// has nothing to be held to.
func keeper(t *testing.T, h *Harness) backend.StateKeeper {
	t.Helper()
	if c := h.Backend.Capabilities(); !c.Snapshots || !c.Clones {
		t.Skip("this backend does not claim saved states")
	}
	k, is := h.Backend.(backend.StateKeeper)
	if !is {
		t.Fatal("the backend claims saved states and keeps none")
	}
	return k
}

func save(t *testing.T, m backend.Machine, dir string, o backend.SaveOptions) backend.SavedState {
	t.Helper()
	s, is := m.(backend.Saver)
	if !is {
		t.Fatal("the backend claims saved states and its machines cannot be saved")
	}
	st, err := s.Save(within(t, limit), dir, o)
	ok(t, err)
	t.Logf("saved: %+v", st)
	return st
}

// from is a specification of a VM that begins in a state.
func from(h *Harness, name, dir string) backend.Spec {
	s := h.Spec(name)
	s.From = dir
	return s
}

// clone makes and starts a VM that begins in a state.
func clone(t *testing.T, h *Harness, name, dir string) backend.Machine {
	t.Helper()
	ok(t, h.Backend.Create(within(t, limit), from(h, name, dir)))
	ok(t, h.Backend.Create(within(t, limit), from(h, name, dir))) // idempotent here too
	return start(t, h, name)
}

// remember puts a text into a guest's memory, and recall wants it there.
func remember(t *testing.T, h *Harness, m backend.Machine, text string) {
	t.Helper()
	if h.Remember == nil {
		return
	}
	ctx := within(t, h.BootDeadline)
	stream, err := m.DialAgent(ctx)
	ok(t, err)
	defer stream.Close()
	ok(t, h.Remember(ctx, stream, text))
}

func recall(t *testing.T, h *Harness, m backend.Machine, want string) {
	t.Helper()
	if h.Recall == nil {
		return
	}
	ctx := within(t, h.BootDeadline)
	stream, err := m.DialAgent(ctx)
	ok(t, err)
	defer stream.Close()
	got, err := h.Recall(ctx, stream)
	ok(t, err)
	if got != want {
		t.Errorf("the guest of %s remembers %q, want %q", m.Info().Name, got, want)
	}
}

func wantInUse(t *testing.T, err error, users ...string) {
	t.Helper()
	var u *backend.InUseError
	if !errors.As(err, &u) || !errors.Is(err, backend.ErrStateInUse) {
		t.Fatalf("got the error %v, want an *InUseError", err)
	}
	for _, dir := range users {
		if !slices.Contains(u.Users, dir) {
			t.Errorf("%s is used by %q, which lacks %s", u.Dir, u.Users, dir)
		}
	}
}

func wantUnfit(t *testing.T, h *Harness, dir string) {
	t.Helper()
	_, err := keeper(t, h).CheckState(within(t, limit), dir)
	wantKind(t, err, backend.ErrStateUnfit)
}

// saveGoesOn: the source goes on, VMs begin where it was, and each goes its own
// way; who needs the state keeps it.
func saveGoesOn(t *testing.T, h *Harness) {
	k := keeper(t, h)
	dir := filepath.Join(t.TempDir(), "state")
	create(t, h, "vm-1")
	source, id := boot(t, h, "vm-1")
	remember(t, h, source, "before")
	st := save(t, source, dir, backend.SaveOptions{})
	key, err := k.StateKey(within(t, limit), h.Spec("vm-1"))
	ok(t, err)
	if st.Dir != dir || st.Key != key || st.Spec != h.Spec("vm-1") || st.Pause <= 0 || st.MemoryBytes <= 0 || st.CreatedAt.IsZero() {
		t.Errorf("the saved state is %+v; its key should be %s", st, key)
	}
	if again := reach(t, h, source); again != id {
		t.Errorf("the source is %q after the save, %q before", again, id)
	}
	remember(t, h, source, "after")
	checked, err := h.again(t).(backend.StateKeeper).CheckState(within(t, limit), dir)
	ok(t, err)
	if checked.Key != st.Key || checked.Spec != st.Spec || checked.Dir != dir {
		t.Errorf("saved %+v, checked %+v", st, checked)
	}
	other := from(h, "vm-2", dir)
	other.CPUs++
	if err := h.Backend.Create(within(t, limit), other); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("a VM with other CPUs than its state's: %v", err)
	}
	wantGone(t, h, "vm-2")

	child := clone(t, h, "vm-2", dir)
	reach(t, h, child)
	recall(t, h, child, "before")
	remember(t, h, child, "child")
	recall(t, h, source, "after")
	second := clone(t, h, "vm-3", dir)
	reach(t, h, second)
	recall(t, h, second, "before")
	recall(t, h, child, "child")

	wantInUse(t, k.RemoveState(within(t, limit), dir), child.Info().Dir, second.Info().Dir)
	_, err = k.CheckState(within(t, limit), dir) // and is unchanged
	ok(t, err)
	ok(t, h.Backend.Delete(within(t, limit), "vm-3"))
	ok(t, child.Stop(within(t, limit), 0))
	wantInUse(t, k.RemoveState(within(t, limit), dir), child.Info().Dir)
	ok(t, h.Backend.Delete(within(t, limit), "vm-2"))
	for range 2 {
		ok(t, k.RemoveState(within(t, limit), dir))
		wantUnfit(t, h, dir)
	}
	reach(t, h, source) // whose disk builds on it
	recall(t, h, source, "after")
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	ok(t, k.RemoveState(within(t, limit), dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state is left after its last user went: %v", err)
	}
}

// cloneOfClone: a state of a VM that began in a state.
func cloneOfClone(t *testing.T, h *Harness) {
	k := keeper(t, h)
	tmp := t.TempDir()
	first, second := filepath.Join(tmp, "first"), filepath.Join(tmp, "second")
	create(t, h, "vm-1")
	source, _ := boot(t, h, "vm-1")
	remember(t, h, source, "one")
	save(t, source, first, backend.SaveOptions{})
	child := clone(t, h, "vm-2", first)
	reach(t, h, child)
	remember(t, h, child, "two")
	save(t, child, second, backend.SaveOptions{})
	grandchild := clone(t, h, "vm-3", second)
	reach(t, h, grandchild)
	recall(t, h, grandchild, "two")
	recall(t, h, source, "one")

	wantInUse(t, k.RemoveState(within(t, limit), first), child.Info().Dir)
	ok(t, h.Backend.Delete(within(t, limit), "vm-2"))
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	ok(t, k.RemoveState(within(t, limit), first)) // only disks build on it now
	wantUnfit(t, h, first)
	_, err := k.CheckState(within(t, limit), second)
	ok(t, err)
	recall(t, h, grandchild, "two")
	late := clone(t, h, "vm-4", second)
	reach(t, h, late)
	recall(t, h, late, "two")
	ok(t, k.SettleState(within(t, limit), second)) // also while VMs use it
	_, err = k.CheckState(within(t, limit), second)
	ok(t, err)
	ok(t, h.Backend.Delete(within(t, limit), "vm-3"))
	ok(t, h.Backend.Delete(within(t, limit), "vm-4"))
	ok(t, k.RemoveState(within(t, limit), second))
	ok(t, k.RemoveState(within(t, limit), first))
	for _, dir := range []string{first, second} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// saveAndEnd is how a template is made: the state does not need its source.
func saveAndEnd(t *testing.T, h *Harness) {
	k := keeper(t, h)
	tmp := t.TempDir()
	staged, dir := filepath.Join(tmp, "staged"), filepath.Join(tmp, "final")
	s := h.Spec("vm-1")
	s.MemoryFile = true
	ok(t, h.Backend.Create(within(t, limit), s))
	m, _ := boot(t, h, "vm-1")
	remember(t, h, m, "template")
	save(t, m, staged, backend.SaveOptions{End: true})
	wantExit(t, m, backend.ExitStopped)
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wantGone(t, h, "vm-1")
	// A state that nobody uses may be given its final name.
	ok(t, os.Rename(staged, dir))
	st, err := k.CheckState(within(t, limit), dir)
	ok(t, err)
	if st.Dir != dir {
		t.Errorf("the renamed state says that it is at %s", st.Dir)
	}
	child := clone(t, h, "vm-2", dir)
	reach(t, h, child)
	recall(t, h, child, "template")
	ok(t, h.Backend.Delete(within(t, limit), "vm-2"))
	ok(t, k.RemoveState(within(t, limit), dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state is left: %v", err)
	}
}

func saveRefused(t *testing.T, h *Harness) {
	keeper(t, h)
	tmp := t.TempDir()
	create(t, h, "vm-1")
	m := start(t, h, "vm-1")
	saver := m.(backend.Saver)

	precious := filepath.Join(tmp, "precious")
	ok(t, os.Mkdir(precious, 0o755))
	ok(t, os.WriteFile(filepath.Join(precious, "file"), []byte("x"), 0o600))
	_, err := saver.Save(within(t, limit), precious, backend.SaveOptions{})
	if !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("a save over an existing directory: %v", err)
	}
	if all, err := os.ReadDir(precious); err != nil || len(all) != 1 {
		t.Errorf("the existing directory was changed: %v, %v", all, err)
	}
	if _, err := saver.Save(within(t, limit), "relative", backend.SaveOptions{}); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("a save under a relative path: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(tmp, "state")
	if _, err := saver.Save(over, dir, backend.SaveOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a save that was cancelled before it began: %v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a cancelled save left something: %v", err)
	}
	wantState(t, h.Backend, "vm-1", backend.Running)
	ok(t, m.Stop(within(t, limit), 0))
	_, err = saver.Save(within(t, limit), dir, backend.SaveOptions{})
	wantKind(t, err, backend.ErrNotRunning)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a save of an ended VM left something: %v", err)
	}
}

func savesAtOnce(t *testing.T, h *Harness) {
	k := keeper(t, h)
	tmp := t.TempDir()
	create(t, h, "vm-1")
	m := start(t, h, "vm-1")
	dirs := []string{"a", "b", "same", "same"}
	errs := make([]error, len(dirs))
	var wg sync.WaitGroup
	for i, d := range dirs {
		wg.Go(func() {
			_, errs[i] = m.(backend.Saver).Save(within(t, limit), filepath.Join(tmp, d), backend.SaveOptions{})
		})
	}
	wg.Wait()
	ok(t, errs[0])
	ok(t, errs[1])
	won, lost := errs[2], errs[3]
	if won != nil {
		won, lost = lost, won
	}
	ok(t, won)
	if !fault.Is(lost, fault.InvalidArgument) {
		t.Errorf("the second save into one directory: %v", lost)
	}
	for _, d := range dirs[:3] {
		_, err := k.CheckState(within(t, limit), filepath.Join(tmp, d))
		ok(t, err)
	}
	wantState(t, h.Backend, "vm-1", backend.Running)
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	for _, d := range dirs[:3] { // of which each builds on the one before
		ok(t, k.RemoveState(within(t, limit), filepath.Join(tmp, d)))
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// savedAgainAfterAStart: what a VM calls its disks after a save is nothing that
// a second life of it may trip over.
func savedAgainAfterAStart(t *testing.T, h *Harness) {
	k := keeper(t, h)
	tmp := t.TempDir()
	create(t, h, "vm-1")
	dirs := []string{"a", "b", "c"}
	for _, d := range dirs {
		m := start(t, h, "vm-1")
		save(t, m, filepath.Join(tmp, d), backend.SaveOptions{})
		ok(t, m.Stop(within(t, limit), 0))
		wantState(t, h.Backend, "vm-1", backend.Stopped)
	}
	for _, d := range dirs {
		_, err := k.CheckState(within(t, limit), filepath.Join(tmp, d))
		ok(t, err)
	}
	start(t, h, "vm-1")
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	for _, d := range dirs {
		ok(t, k.RemoveState(within(t, limit), filepath.Join(tmp, d)))
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func stateDamaged(t *testing.T, h *Harness) {
	k := keeper(t, h)
	tmp := t.TempDir()
	ok(t, k.RemoveState(within(t, limit), filepath.Join(tmp, "nobody")))
	wantUnfit(t, h, filepath.Join(tmp, "nobody"))
	wantKind(t, k.SettleState(within(t, limit), filepath.Join(tmp, "nobody")), backend.ErrStateUnfit)
	for _, c := range []struct {
		name   string
		damage func(largest string) error
	}{
		{"truncated", func(f string) error {
			st, err := os.Stat(f)
			if err != nil {
				return err
			}
			return os.Truncate(f, st.Size()/2)
		}},
		{"removed", os.Remove},
		{"replaced", func(f string) error {
			b, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 1
			return errors.Join(os.Remove(f), os.WriteFile(f, b, 0o600))
		}},
	} {
		dir := filepath.Join(tmp, c.name)
		create(t, h, "vm-1")
		save(t, start(t, h, "vm-1"), dir, backend.SaveOptions{})
		ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
		_, err := k.CheckState(within(t, limit), dir)
		ok(t, err)
		ok(t, c.damage(largest(t, dir)))
		wantUnfit(t, h, dir)
		err = h.Backend.Create(within(t, limit), from(h, "vm-2", dir))
		if err == nil {
			_, err = h.Backend.Start(within(t, limit), "vm-2", backend.StartOptions{})
		}
		wantKind(t, err, backend.ErrStateUnfit)
		ok(t, h.Backend.Delete(within(t, limit), "vm-2"))
		ok(t, k.RemoveState(within(t, limit), dir))
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the %s state is left: %v", c.name, err)
		}
	}
}

// largest is the file of a state with most in it.
func largest(t *testing.T, dir string) (path string) {
	t.Helper()
	most := int64(-1)
	ok(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Size() > most {
			path, most = p, info.Size()
		}
		return err
	}))
	return path
}

// saverKilled: what is left of a save whose process was killed is a whole state
// or none, and can be removed.
func saverKilled(t *testing.T, h *Harness) {
	k := keeper(t, h)
	if !h.Backend.Capabilities().DiesWithOwner {
		t.Skip("VMs of this backend do not die with their owner")
	}
	tmp := t.TempDir()
	for i, d := range moments(0, 6*time.Millisecond, 12) {
		dir := filepath.Join(tmp, string(rune('a'+i)))
		create(t, h, "vm-1")
		done := h.killedSaving(t, "vm-1", dir, d)
		_, err := k.CheckState(within(t, limit), dir)
		switch {
		case err == nil:
		case done:
			t.Fatalf("a state whose save was reported: %v", err)
		default:
			wantKind(t, err, backend.ErrStateUnfit)
		}
		ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
		wantGone(t, h, "vm-1")
		ok(t, k.RemoveState(within(t, limit), dir))
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("something of the state is left: %v", err)
		}
	}
}

// killedSaving saves a VM in another process and kills that with SIGKILL d
// after the VM runs. It reports whether the save was done by then.
func (h *Harness) killedSaving(t *testing.T, name, dir string, d time.Duration) (done bool) {
	t.Helper()
	cmd := h.command(t, order{Op: "save", Spec: h.Spec(name), Dir: dir})
	stdin, err := cmd.StdinPipe()
	ok(t, err)
	stdout, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	defer func() {
		cmd.Process.Kill()
		stdin.Close()
		cmd.Wait()
	}()
	r := bufio.NewReader(stdout)
	line, err := r.ReadBytes('\n')
	var a answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil || a.Kind != "" {
		t.Fatalf("the other process answered %q: %v", line, err)
	}
	timer := time.AfterFunc(d, func() { cmd.Process.Kill() })
	defer timer.Stop()
	line, err = r.ReadBytes('\n')
	t.Logf("save in pid %d, killed after %s at the latest: %s", cmd.Process.Pid, d, line)
	if err != nil {
		return false
	}
	ok(t, json.Unmarshal(line, &a))
	if a.Kind != "" {
		t.Errorf("the save in another process: %+v", a)
	}
	cmd.Process.Kill()
	cmd.Wait()
	ok(t, h.WaitGone(within(t, limit), a.Info))
	return true
}
