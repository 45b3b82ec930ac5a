package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// keeper keeps states that are a directory with a file "memory", which says
// "good", and a directory "users" with one file per user.
type keeper struct {
	backend.StateKeeper                  // no other method is called
	checking            func(dir string) // before each CheckState
}

func (k keeper) CheckState(ctx context.Context, dir string) (backend.SavedState, error) {
	if k.checking != nil {
		k.checking(dir)
	}
	b, err := os.ReadFile(filepath.Join(dir, "memory"))
	if err != nil || !strings.HasPrefix(string(b), "good") {
		return backend.SavedState{}, fault.Wrap(backend.ErrStateUnfit, fault.BackendCommandFailed, "its memory is %q, %v", b, err)
	}
	return backend.SavedState{Dir: dir, MemoryBytes: int64(len(b))}, context.Cause(ctx)
}

func (keeper) SettleState(context.Context, string) error { return nil }

func (keeper) RemoveState(_ context.Context, dir string) error {
	if users := usersOf(dir); users != nil {
		return &backend.InUseError{Dir: dir, Users: users}
	}
	return os.RemoveAll(dir)
}

func (keeper) StateUsers(_ context.Context, dir string) ([]string, error) { return usersOf(dir), nil }

func usersOf(dir string) (users []string) {
	entries, _ := os.ReadDir(filepath.Join(dir, "users"))
	for _, e := range entries {
		users = append(users, "/vms/"+e.Name())
	}
	return users
}

func addUser(t *testing.T, dir, name string) (leave func()) {
	t.Helper()
	path := filepath.Join(dir, "users", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() { os.Remove(path) }
}

func key(n int) string { return fmt.Sprintf("%016x%048x", n, n) }

func describe(n int) Description {
	return Description{Key: key(n), Backend: "test", Image: "default", CPUs: 2, MemoryMiB: 512}
}

func newStore(t *testing.T) *Store {
	return &Store{Dir: filepath.Join(t.TempDir(), "templates"), Keeper: keeper{}}
}

// save is a build that works.
func save(_ context.Context, dir string, _ backend.Progress) error {
	return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "memory"), []byte("good"), 0o600))
}

func mustMake(t *testing.T, s *Store, n int) *Template {
	t.Helper()
	tm, made, err := s.Make(t.Context(), describe(n), nil, save)
	if err != nil || !made {
		t.Fatalf("made %v, %v", made, err)
	}
	return tm
}

// files lists what is in the store, without locks and the names of states.
func files(t *testing.T, s *Store) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == lockDir {
			return fs.SkipDir
		}
		if rel, _ := filepath.Rel(s.Dir, path); rel != "." {
			if i := strings.Index(rel, statePrefix); i >= 0 {
				rel = rel[:i+len(statePrefix)] + rel[i+len(statePrefix)+8:]
			}
			all = append(all, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing was ever made
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func wantFiles(t *testing.T, s *Store, keys ...int) {
	t.Helper()
	var want []string
	for _, n := range keys {
		k := key(n)[:keyDigits]
		want = append(want, k, k+"/state-", k+"/state-/memory", k+"/template.json", k+"/used")
	}
	if got := files(t, s); got != strings.Join(want, " ") {
		t.Errorf("on the disk: %s\nwant:        %s", got, strings.Join(want, " "))
	}
}

func TestMakeOnceFindOften(t *testing.T) {
	s := newStore(t)
	if _, err := s.Find(t.Context(), key(1)); !errors.Is(err, ErrMissing) {
		t.Fatal(err)
	}
	made := mustMake(t, s, 1)
	if again, m, err := s.Make(t.Context(), describe(1), nil, nil); err != nil || m || again.State != made.State {
		t.Fatalf("%+v, made %v, %v", again, m, err)
	}
	found, err := s.Find(t.Context(), key(1))
	if err != nil || found.State != made.State || found.Image != "default" || found.Saved.MemoryBytes != 4 || !s.InForce(found.State) {
		t.Fatalf("%+v, %v", found, err)
	}
	wantFiles(t, s, 1)
	for _, bad := range []string{"", "short", "../../../../../../etc", strings.Repeat("x", 64)} {
		if _, err := s.Find(t.Context(), bad); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("key %q: %v", bad, err)
		}
	}
}

func TestAFailedBuildLeavesNothing(t *testing.T) {
	s := newStore(t)
	boom := errors.New("boom")
	for what, build := range map[string]Build{
		"at once": func(context.Context, string, backend.Progress) error { return boom },
		"half way": func(_ context.Context, dir string, _ backend.Progress) error {
			return errors.Join(os.Mkdir(dir, 0o700), boom)
		},
		"after it": func(ctx context.Context, dir string, p backend.Progress) error {
			return errors.Join(save(ctx, dir, p), boom)
		},
		"in silence": func(ctx context.Context, dir string, p backend.Progress) error {
			return errors.Join(save(ctx, dir, p), os.WriteFile(filepath.Join(dir, "memory"), []byte("bad"), 0o600))
		},
	} {
		_, made, err := s.Make(t.Context(), describe(1), nil, build)
		if err == nil || made || what != "in silence" && !errors.Is(err, boom) {
			t.Errorf("%s: made %v, %v", what, made, err)
		}
		wantFiles(t, s)
	}
	mustMake(t, s, 1)
}

func TestDamageIsFoundAndMended(t *testing.T) {
	record := func(tm *Template) string { return filepath.Join(filepath.Dir(tm.State), recordName) }
	for what, harm := range map[string]func(tm *Template) error{
		"a memory cut short":  func(tm *Template) error { return os.Truncate(filepath.Join(tm.State, "memory"), 2) },
		"no memory":           func(tm *Template) error { return os.Remove(filepath.Join(tm.State, "memory")) },
		"no state":            func(tm *Template) error { return os.RemoveAll(tm.State) },
		"an empty record":     func(tm *Template) error { return os.Truncate(record(tm), 0) },
		"half a record":       func(tm *Template) error { return os.Truncate(record(tm), 40) },
		"no record":           func(tm *Template) error { return os.Remove(record(tm)) },
		"another one's state": func(tm *Template) error { return rewrite(record(tm), "state", "../../"+key(2)[:keyDigits]) },
		"another one's key":   func(tm *Template) error { return rewrite(record(tm), "key", key(1)[:keyDigits]+key(2)[keyDigits:]) },
		"a later format":      func(tm *Template) error { return rewrite(record(tm), "format", format+1) },
		"nothing at all":      func(tm *Template) error { return os.RemoveAll(filepath.Dir(tm.State)) },
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(t)
			old := mustMake(t, s, 1)
			if err := harm(old); err != nil {
				t.Fatal(err)
			}
			_, err := s.Find(t.Context(), key(1))
			if !errors.Is(err, ErrMissing) {
				t.Fatal(err)
			}
			t.Log(err)
			if _, err := s.Find(t.Context(), key(1)); err != ErrMissing {
				t.Errorf("the second look: %v", err)
			}
			if s.InForce(old.State) {
				t.Error("it is still in force")
			}
			anew := mustMake(t, s, 1)
			if anew.State == old.State {
				t.Error("the new one took the place of the old")
			}
			wantFiles(t, s, 1)
		})
	}
}

func rewrite(path, field string, value any) error {
	var m map[string]any
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	m[field] = value
	if err == nil {
		b, err = json.Marshal(m)
	}
	return errors.Join(err, os.WriteFile(path, b, 0o600))
}

// An unfit template whose clones still run is out of force at once, and its
// files stay until the last of them is gone.
func TestUnfitWhileInUse(t *testing.T) {
	s := newStore(t)
	old := mustMake(t, s, 1)
	leave := addUser(t, old.State, "agent-1")
	if err := s.Discard(t.Context(), old, "its clones do not come up"); err != nil {
		t.Fatal(err)
	}
	anew := mustMake(t, s, 1)
	if err := s.Discard(t.Context(), old, "told twice"); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Find(t.Context(), key(1)); err != nil || found.State != anew.State {
		t.Fatalf("%+v, %v", found, err)
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, i := range all {
		if i.Retired != (i.State == old.State) || i.Retired != (len(i.Users) == 1) || i.Bytes == 0 {
			t.Errorf("listed as %+v", i)
		}
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old.State); err != nil {
		t.Error("the files of a running clone are gone")
	}
	leave()
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old.State); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old state stays: %v", err)
	}
}

func TestRemove(t *testing.T) {
	s := newStore(t)
	a, b := mustMake(t, s, 1), mustMake(t, s, 0x10)
	leave := addUser(t, a.State, "agent-1")
	var in *backend.InUseError
	_, err := s.Remove(t.Context(), key(1)[:keyDigits])
	if !errors.As(err, &in) || len(in.Users) != 1 {
		t.Fatalf("in use: %v", err)
	}
	if next := fault.From(err).NextSteps; len(next) != 1 || !strings.Contains(next[0], "`sandboxforge destroy 1`") {
		t.Errorf("the error does not name what must go first: %q", next)
	}
	if _, err := s.Find(t.Context(), key(1)); err != nil {
		t.Fatalf("after a refused removal: %v", err)
	}
	for _, prefix := range []string{"", "0000", "ff"} {
		if _, err := s.Remove(t.Context(), prefix); !errors.Is(err, ErrMissing) {
			t.Errorf("remove %q: %v", prefix, err)
		}
	}
	leave()
	if i, err := s.Remove(t.Context(), key(1)[:keyDigits]); err != nil || i.State != a.State {
		t.Fatalf("%+v, %v", i, err)
	}
	if i, err := s.Remove(t.Context(), b.Key); err != nil || i.State != b.State {
		t.Fatalf("%+v, %v", i, err)
	}
	wantFiles(t, s)
}

// TestRemoveUnfit: what cannot be used goes and is named, the rest stays, and
// nobody is warned of what was asked for.
func TestRemoveUnfit(t *testing.T) {
	var log strings.Builder
	s := newStore(t)
	a, b := mustMake(t, s, 1), mustMake(t, s, 2)
	s.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if err := os.WriteFile(filepath.Join(a.State, "memory"), []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	removed, err := s.RemoveUnfit(t.Context())
	if err != nil || len(removed) != 1 || removed[0].Key != a.Key || removed[0].Image != "default" {
		t.Fatalf("removed %+v, %v", removed, err)
	}
	if _, err := s.Find(t.Context(), b.Key); err != nil {
		t.Errorf("the sound one: %v", err)
	}
	if _, err := os.Stat(a.State); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unfit state stays: %v", err)
	}
	if !strings.Contains(log.String(), "level=INFO") || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("log: %s", &log)
	}
}

func TestEvictTheLeastRecentlyUsed(t *testing.T) {
	s := newStore(t)
	var all []*Template
	for n := range 5 {
		tm := mustMake(t, s, n)
		if err := os.WriteFile(filepath.Join(tm.State, "memory"), []byte("good"+strings.Repeat("x", 64<<10)), 0o600); err != nil {
			t.Fatal(err)
		}
		used := time.Now().Add(time.Duration(n-10) * time.Minute)
		if err := os.Chtimes(filepath.Join(filepath.Dir(tm.State), usedName), used, used); err != nil {
			t.Fatal(err)
		}
		all = append(all, tm)
	}
	leave := addUser(t, all[1].State, "agent-1")
	defer leave()
	if _, err := s.Find(t.Context(), key(0)); err != nil { // the oldest becomes the youngest
		t.Fatal(err)
	}
	if removed, err := s.Evict(t.Context(), ""); removed != nil || err != nil {
		t.Fatalf("without a limit: %v, %v", removed, err)
	}
	s.CapBytes = 3 * (72 << 10)
	removed, err := s.Evict(t.Context(), key(2))
	if err != nil || len(removed) != 2 || removed[0].Key != key(3) || removed[1].Key != key(4) {
		t.Fatalf("removed %+v, %v", removed, err)
	}
	for n, want := range []bool{true, true, true, false, false} {
		if got := s.InForce(all[n].State); got != want {
			t.Errorf("template %d in force: %v", n, got)
		}
	}
	s.CapBytes = 1
	if removed, err = s.Evict(t.Context(), ""); err != nil || len(removed) != 2 {
		t.Fatalf("removed %+v, %v", removed, err)
	}
	if !s.InForce(all[1].State) {
		t.Error("the one in use went")
	}
}

func TestThoseWhoWaitAreTold(t *testing.T) {
	s := newStore(t)
	started, finish := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _, err := s.Make(t.Context(), describe(1), nil, func(ctx context.Context, dir string, p backend.Progress) error {
			close(started)
			<-finish
			return save(ctx, dir, p)
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-started
	told := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		p := func(_, message string) {
			select {
			case told <- message:
			default:
			}
		}
		if _, _, err := s.Make(ctx, describe(1), p, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that leaves: %v", err)
		}
	})
	if got := <-told; !strings.Contains(got, "waiting") || !strings.Contains(got, "image default") {
		t.Errorf("told %q", got)
	}
	if _, err := s.Remove(t.Context(), key(1)); !errors.Is(err, ErrMissing) {
		t.Errorf("removing one that is being made: %v", err)
	}
	if all, err := s.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("one that is being made is listed: %+v, %v", all, err)
	}
	cancel()
	wg.Go(func() {
		if _, made, err := s.Make(t.Context(), describe(1), nil, nil); err != nil || made {
			t.Errorf("a caller that stays: made %v, %v", made, err)
		}
	})
	close(finish)
}
