package supervisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/gofrs/flock"
)

// Only a process that has the lock is killed: a pid that the directory still
// has from an earlier supervisor may be anybody's by now.
func TestOnlyTheHolderIsKilled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockFile)
	lock := flock.New(path)
	if ok, err := lock.TryLock(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	defer lock.Close()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	start := func(extra ...*os.File) *exec.Cmd {
		cmd := exec.Command("cat")
		cmd.ExtraFiles = extra
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); cmd.Wait() })
		if err := os.WriteFile(filepath.Join(dir, pidFile), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	bystander := start()
	if killHolder(dir) {
		t.Error("a process without the lock was killed")
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
	holder := start(file)
	if !killHolder(dir) {
		t.Fatal("the holder was not killed")
	}
	if err := holder.Wait(); err == nil || holder.ProcessState.Success() {
		t.Errorf("the holder ended by itself: %v", holder.ProcessState)
	}
	for _, text := range []string{"", "\n", "1\n", "-1\n", "x\n", strconv.Itoa(os.Getpid()) + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, pidFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if killHolder(dir) {
			t.Errorf("%q: something was killed", text)
		}
	}
}

// A directory whose supervisor was killed has its pid until the next one takes
// the lock.
func TestTakingTheDirectoryForgetsTheLastPID(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	pid := filepath.Join(o.Dir, pidFile)
	if err := os.WriteFile(pid, []byte("4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := takeDir(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := os.Stat(pid); !os.IsNotExist(err) {
		t.Errorf("the pid is left: %v", err)
	}
}
