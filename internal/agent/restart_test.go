package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sandboxforge/internal/agent"
	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/guest"
)

// agentProcess is the test binary as an agent: a process that can be killed.
func agentProcess() int {
	exe, err := os.Executable()
	if err != nil {
		return 1
	}
	dir := os.Getenv("SANDBOXFORGE_TEST_DIR")
	a, err := agent.New(agent.Config{
		Version: "test", RunDir: filepath.Join(dir, "run"), SpoolDir: filepath.Join(dir, "spool"),
		Etc: filepath.Join(dir, "etc"), User: fmt.Sprint(os.Geteuid()), Cgroup: os.Getenv("SANDBOXFORGE_TEST_CGROUP"),
		Shim:      []string{"/usr/bin/env", "SANDBOXFORGE_TEST_ROLE=shim", exe},
		IdleShims: 1,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sock := filepath.Join(dir, "sock")
	os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a.ServeSocket(context.Background(), l)
	return 0
}

// agentWorld is an agent in a process of its own.
type agentWorld struct {
	t      *testing.T
	dir    string
	cgroup string
	cmd    *exec.Cmd
	client *guest.Client
	link   *guest.Link
}

func newAgentWorld(t *testing.T, cgroup string) *agentWorld {
	dir, err := os.MkdirTemp("", "sf")
	if err != nil {
		t.Fatal(err)
	}
	w := &agentWorld{t: t, dir: dir, cgroup: cgroup}
	os.Mkdir(filepath.Join(dir, "etc"), 0o755)
	b, _ := os.ReadFile("/etc/passwd")
	os.WriteFile(filepath.Join(dir, "etc/passwd"), b, 0o644)
	w.start()
	w.link = guest.NewLink(func(ctx context.Context) (io.ReadWriteCloser, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, "sock"))
	}, nil)
	w.client = guest.NewClient(w.link)
	t.Cleanup(func() {
		ctx := w.context()
		if list, err := w.client.List(ctx); err == nil {
			for _, p := range list {
				w.client.Signal(ctx, p.ID, guest.SIGKILL, true)
			}
		}
		w.kill()
		w.link.Close()
		os.RemoveAll(dir)
		if cgroup != "" {
			shim.RemoveCgroup(cgroup)
		}
	})
	return w
}

func (w *agentWorld) start() {
	exe, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	w.cmd = exec.Command(exe)
	w.cmd.Env = append(os.Environ(), "SANDBOXFORGE_TEST_ROLE=agent", "SANDBOXFORGE_TEST_DIR="+w.dir, "SANDBOXFORGE_TEST_CGROUP="+w.cgroup)
	w.cmd.Stderr = os.Stderr
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// kill is kill -9.
func (w *agentWorld) kill() {
	w.cmd.Process.Kill()
	w.cmd.Wait()
}

func (w *agentWorld) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	if err := w.link.WaitConnected(ctx); err != nil {
		w.t.Fatal(err)
	}
	return ctx
}

// TestAgentKilled kills the agent in the middle of commands: each goes on, its
// output is complete, its exact end is known, and a follower notices nothing.
func TestAgentKilled(t *testing.T) {
	for name, cgroup := range map[string]string{"session": "", "cgroup": cgroupRoot()} {
		if name == "cgroup" && cgroup == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := newAgentWorld(t, cgroup)
			gate := filepath.Join(w.dir, "gate")
			wait := "; while ! test -e " + gate + "; do sleep 0.02; done; "

			// Followed all the time.
			followed := make(chan error, 1)
			var out, errb bytes.Buffer
			go func() {
				p, err := w.client.Run(w.context(), "followed", guest.Spec{Command: patternCommand(1000) + wait + "exit 42"}, collect(&out, &errb))
				if err == nil && p.ExitCode != 42 {
					err = fmt.Errorf("%+v", p)
				}
				followed <- err
			}()
			// Ends while there is no agent.
			if _, _, err := w.client.Start(w.context(), "between", guest.Spec{Command: "echo a; sleep 0.3; echo b; kill -15 $$"}); err != nil {
				t.Fatal(err)
			}
			// Its timeout passes while there is no agent.
			if _, _, err := w.client.Start(w.context(), "timeout", guest.Spec{Command: "sleep 600", Timeout: 300 * time.Millisecond}); err != nil {
				t.Fatal(err)
			}
			// Is killed, tree and all, by the next agent.
			if _, _, err := w.client.Start(w.context(), "tree", guest.Spec{Command: "setsid sleep 601 & sleep 601"}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "output", func() bool {
				c, err := w.client.Read(w.context(), "followed", guest.ReadRequest{Stream: guest.Stdout, TailBytes: 1})
				return err == nil && c.TotalBytes == 16000
			})
			before := w.cmd.Process.Pid
			w.kill()
			eventually(t, "the status of the one that ends", func() bool {
				_, err := os.Stat(filepath.Join(w.dir, "spool", "between", "status"))
				_, err2 := os.Stat(filepath.Join(w.dir, "spool", "timeout", "status"))
				return err == nil && err2 == nil
			})
			w.start()
			t.Logf("agent %d, then %d", before, w.cmd.Process.Pid)
			os.WriteFile(gate, nil, 0o644)
			if err := <-followed; err != nil {
				t.Fatal(err)
			}
			if out.Len() != 16000 {
				t.Fatalf("%d bytes", out.Len())
			}
			checkPattern(t, 0, out.Bytes())

			p, err := w.client.Get(w.context(), "between", time.Minute)
			if err != nil || p.Status != guest.StatusSignaled || p.Signal != 15 || p.StdoutBytes != 4 {
				t.Fatalf("%+v %v", p, err)
			}
			if p, err = w.client.Get(w.context(), "timeout", time.Minute); err != nil || !p.TimedOut || p.Signal != 9 {
				t.Fatalf("%+v %v", p, err)
			}
			_, existed, err := w.client.Start(w.context(), "between", guest.Spec{Command: "echo again"})
			if err != nil || !existed {
				t.Fatalf("started again: %v %v", existed, err)
			}
			if _, err := w.client.Signal(w.context(), "tree", guest.SIGKILL, true); err != nil {
				t.Fatal(err)
			}
			if p, err = w.client.Get(w.context(), "tree", time.Minute); err != nil || p.Signal != 9 {
				t.Fatalf("%+v %v", p, err)
			}
			if p.Spec.Command == "" || p.StartedAt.IsZero() {
				t.Fatalf("forgot what it was: %+v", p)
			}
		})
	}
}

// TestShimKilled: a process whose shim is killed is LOST, and gone.
func TestShimKilled(t *testing.T) {
	killModes(t, func(t *testing.T, w *world) {
		id := guest.NewID("lost-")
		p, _, err := w.client.Start(w.context(), id, guest.Spec{Command: "echo before; sleep 602"})
		if err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		ppid, err := strconv.Atoi(string(bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[1]))
		if err != nil || ppid == os.Getpid() {
			t.Fatalf("parent %d, %v", ppid, err)
		}
		eventually(t, "output", func() bool {
			c, err := w.client.Read(w.context(), id, guest.ReadRequest{Stream: guest.Stdout})
			return err == nil && len(c.Data) == 7
		})
		shimProcess, _ := os.FindProcess(ppid)
		shimProcess.Kill()
		got, err := w.client.Follow(w.context(), id, guest.Offsets{}, nil)
		if err != nil || got.Status != guest.StatusLost || got.ErrorMessage == "" || got.StdoutBytes != 7 {
			t.Fatalf("%+v %v", got, err)
		}
		eventually(t, "the process is gone", func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
			return err != nil || bytes.Contains(b, []byte(") Z "))
		})
	})
}

// TestGuestRebooted: what an earlier boot left is LOST, or ended as recorded.
func TestGuestRebooted(t *testing.T) {
	w := newWorld(t)
	w.run(guest.Spec{Command: "true"})
	done, _, err := w.client.Start(w.context(), "done", guest.Spec{Command: "echo hi; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Get(w.context(), "done", time.Minute); err != nil {
		t.Fatal(err)
	}
	// As if the record were of another boot.
	other := filepath.Join(w.cfg.SpoolDir, "cut")
	os.CopyFS(other, os.DirFS(done.SpoolPath))
	for _, dir := range []string{done.SpoolPath, other} {
		b, _ := os.ReadFile(filepath.Join(dir, "meta"))
		i := bytes.Index(b, []byte(`"BootID":"`)) + len(`"BootID":"`)
		b[i] ^= 1
		os.WriteFile(filepath.Join(dir, "meta"), b, 0o600)
	}
	os.Remove(filepath.Join(other, "status"))
	w.reboot()
	p, err := w.client.Get(w.context(), "done", 0)
	if err != nil || p.ExitCode != 3 || p.Status != guest.StatusExited {
		t.Fatalf("%+v %v", p, err)
	}
	p, err = w.client.Get(w.context(), "cut", 0)
	if err != nil || p.Status != guest.StatusLost || p.ErrorMessage != "the guest was rebooted" {
		t.Fatalf("%+v %v", p, err)
	}
	c, err := w.client.Read(w.context(), "cut", guest.ReadRequest{Stream: guest.Stdout})
	if err != nil || string(c.Data) != "hi\n" {
		t.Fatalf("%q %v", c.Data, err)
	}
}
