package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// withImage makes a backend whose only image is changed.
func withImage(t *testing.T, change func(*Image)) *Backend {
	t.Helper()
	c := newConfig(t)
	change(&c.Image)
	c.Images = oneImage{c.Image}
	b, err := New(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, b) })
	return b
}

func startVM(t *testing.T, b *Backend, name string) *vm {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := b.Create(ctx, spec(name)); err != nil {
		t.Fatal(err)
	}
	m, err := b.Start(ctx, name, backend.StartOptions{Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.Background(), 0) })
	return m.(*vm)
}

// A kernel without its initrd finds no root device and panics: a boot that
// fails is told from a slow one, and its end has its reason.
func TestPanicIsSeen(t *testing.T) {
	b := withImage(t, func(i *Image) { i.Initrd = "" })
	v := startVM(t, b, "vm-1")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := v.WatchBoot(ctx)
	if !errors.Is(err, backend.ErrBootFailed) || !strings.Contains(err.Error(), panicText) {
		t.Fatalf("WatchBoot: %v\n%s", err, v.Console(2000))
	}
	t.Log(err)
	select {
	case <-v.Done(): // panic=-1 and -no-reboot: QEMU leaves
	case <-ctx.Done():
		t.Fatal("QEMU stayed after the panic")
	}
	if e := v.Exit(); e.Reason != backend.ExitGuestPanic || !strings.Contains(e.Detail, panicText) {
		t.Errorf("exit %+v", e)
	}
	if err := v.WatchBoot(ctx); !errors.Is(err, backend.ErrBootFailed) {
		t.Errorf("WatchBoot after the end: %v", err)
	}
	log, err := os.ReadFile(filepath.Join(b.dir("vm-1"), consoleFile))
	if err != nil || !strings.Contains(string(log), panicText) {
		t.Errorf("console.log does not tell: %v", err)
	}
}

func TestSilentGuestIsSeen(t *testing.T) {
	b := withImage(t, func(i *Image) { i.Cmdline, i.Initrd = "quiet", "" })
	b.limits.tcgSilence = 500 * time.Millisecond
	v := startVM(t, b, "vm-1")
	err := v.WatchBoot(t.Context())
	if !errors.Is(err, backend.ErrBootFailed) || !strings.Contains(err.Error(), "silent") {
		t.Fatalf("WatchBoot: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.limits.tcgSilence = time.Hour
	if err := v.WatchBoot(ctx); err != nil {
		t.Errorf("an owner that stops watching: %v", err)
	}
}

func TestStartFailureSaysWhy(t *testing.T) {
	b := withImage(t, func(i *Image) {
		garbage := filepath.Join(t.TempDir(), "kernel")
		if err := os.WriteFile(garbage, []byte("this is no kernel"), 0o600); err != nil {
			t.Fatal(err)
		}
		i.Kernel = garbage
	})
	if err := b.Create(t.Context(), spec("vm-1")); err != nil {
		t.Fatal(err)
	}
	_, err := b.Start(t.Context(), "vm-1", backend.StartOptions{Accel: "tcg"})
	f := fault.From(err)
	if f.Code != fault.BackendCommandFailed || f.Cause == "" || f.Details["qemu_output"] == "" {
		t.Fatalf("%+v", f)
	}
	t.Log(f, "—", f.Cause)
	if i, err := b.Inspect(t.Context(), "vm-1"); err != nil || i.State != backend.Stopped {
		t.Errorf("afterwards: %+v, %v", i, err)
	}
}

// The process is what the package promises: filtered, in its own group, with
// nothing of ours open but what it needs.
func TestProcessIsConfined(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "hunter2")
	b, _ := newBackend(t)
	v := startVM(t, b, "vm-1")
	pid := v.Info().PID
	read := func(what string) string {
		t.Helper()
		s, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, what))
		if err != nil {
			t.Fatal(err)
		}
		return string(s)
	}
	bin, err := b.binary("amd64")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := b.facts(t.Context(), bin, "amd64"); err != nil {
		t.Fatal(err)
	} else if seccomp := regexp.MustCompile(`Seccomp:\s+2`).MatchString(read("status")); seccomp != f.Sandbox {
		t.Errorf("seccomp filter: %v, QEMU can: %v", seccomp, f.Sandbox)
	}
	if strings.Contains(read("environ"), "hunter2") {
		t.Error("QEMU has the server's environment")
	}
	if in, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid)); err != nil || in != "/dev/null" {
		t.Errorf("stdin is %q, %v", in, err)
	}
	var pgrp int
	stat := read("stat")
	fmt.Sscanf(stat[strings.LastIndexByte(stat, ')')+1:], " %1s %d %d", new(string), new(int), &pgrp)
	if pgrp != pid {
		t.Errorf("process group %d, want its own %d", pgrp, pid)
	}
	if st, err := os.Stat(b.agentSocket("vm-1")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("agent socket: %v, %v", st, err)
	}
	if st, err := os.Stat(b.dir("vm-1")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", st, err)
	}
}

// Somebody who has the lock file open, or a record with a pid that is now
// another process, must not be killed in the VM's place.
func TestDeleteKillsNobodyElse(t *testing.T) {
	b, _ := newBackend(t)
	if err := b.Create(t.Context(), spec("vm-1")); err != nil {
		t.Fatal(err)
	}
	dir := b.dir("vm-1")
	reader, err := openLock(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ticks, err := startTicks(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []runRecord{{PID: os.Getppid(), StartTicks: ticks}, {PID: os.Getppid(), StartTicks: 1}, {PID: 1}, {PID: -1}, {PID: 0}} {
		if err := writeJSON(filepath.Join(dir, runFile), r, false); err != nil {
			t.Fatal(err)
		}
		b.killRecorded(t.Context(), "vm-1")
		if err := b.killRunning(t.Context(), "vm-1"); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := startTicks(os.Getppid()); err != nil || now != ticks {
		t.Fatal("the parent was killed") // unlikely to be printed
	}
	if err := b.Delete(t.Context(), "vm-1"); err != nil {
		t.Fatal(err)
	}
}

// A QEMU that the record does not name (its owner was killed before it wrote
// it) is found by the lock it holds.
func TestDeleteWithoutARecord(t *testing.T) {
	b, _ := newBackend(t)
	v := startVM(t, b, "vm-1")
	pid := v.Info().PID
	if err := os.Remove(filepath.Join(b.dir("vm-1"), runFile)); err != nil {
		t.Fatal(err)
	}
	// In this process the holder is found by its own pid, not ours.
	if err := b.Delete(t.Context(), "vm-1"); err != nil {
		t.Fatal(err)
	}
	if err := waitGone(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	<-v.Done()
	if e := v.Exit(); e.Reason != backend.ExitStopped {
		t.Errorf("exit %+v", e)
	}
}

func TestDamagedRecordIsBroken(t *testing.T) {
	b, _ := newBackend(t)
	for name, damage := range map[string]func(dir string) error{
		"record-cut": func(d string) error { return os.Truncate(filepath.Join(d, vmFile), 20) },
		"record-other": func(d string) error {
			return os.WriteFile(filepath.Join(d, vmFile), []byte(`{"version":1,"spec":{"name":"x"}}`), 0o600)
		},
		"record-new": func(d string) error { return os.WriteFile(filepath.Join(d, vmFile), []byte(`{"version":9}`), 0o600) },
		"disk-gone":  func(d string) error { return os.Remove(filepath.Join(d, diskFile)) },
		"disk-link": func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, diskFile)), os.Symlink("/dev/zero", filepath.Join(d, diskFile)))
		},
	} {
		if err := b.Create(t.Context(), spec(name)); err != nil {
			t.Fatal(err)
		}
		if err := damage(b.dir(name)); err != nil {
			t.Fatal(err)
		}
		i, err := b.Inspect(t.Context(), name)
		if err != nil || i.State != backend.Broken || i.Detail == "" {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
		if m, err := b.Start(t.Context(), name, backend.StartOptions{Accel: "tcg"}); err == nil {
			t.Errorf("%s: was started", name)
			m.Stop(t.Context(), 0)
		}
	}
	all, err := b.List(t.Context())
	if err != nil || len(all) != 5 {
		t.Errorf("List: %d VMs, %v", len(all), err)
	}
}
