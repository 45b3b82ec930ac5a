package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The whole of "does it run" rests on these.
func TestLockLivesInTheChildAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	mine, err := openLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := tryLock(mine, wholeFile); !ok || err != nil {
		t.Fatal(ok, err)
	}
	child := exec.Command("cat") // until its stdin ends
	child.ExtraFiles = []*os.File{mine}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	mine.Close()
	held := func() bool {
		t.Helper()
		f, err := openLock(path) // opening and closing must not disturb
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		h, err := lockHeld(f, wholeFile)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for range 3 {
		if !held() {
			t.Fatal("the child does not hold the lock")
		}
	}
	other, err := openLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if ok, _ := tryLock(other, wholeFile); ok {
		t.Fatal("two hold it")
	}
	child.Process.Kill()
	child.Wait()
	stdin.Close()
	if held() {
		t.Fatal("the lock outlived its holder")
	}
	if ok, err := tryLock(other, wholeFile); !ok {
		t.Fatal("it cannot be taken again", err)
	}
}

func TestNamesAreLockedOneByOne(t *testing.T) {
	b := &Backend{c: Config{StateDir: t.TempDir()}}
	a, err := b.lockName(t.Context(), "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.lockName(t.Context(), "b", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	busy := 0
	if _, err := b.lockName(ctx, "a", func() { busy++ }); !errors.Is(err, context.DeadlineExceeded) || busy != 1 {
		t.Fatalf("%v, busy %d times", err, busy)
	}
	got := make(chan error, 1)
	go func() {
		f, err := b.lockName(t.Context(), "a", nil)
		if err == nil {
			f.Close()
		}
		got <- err
	}()
	a.Close()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}
