package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/qmp"
)

// How the state of a VM that goes on is saved depends on what this host allows
// with the process of this QEMU. A save finds out by itself, from the very QEMU
// that it saves; this is to know it ahead, and to say it.

// saveWay is how VMs are saved here.
type saveWay string

const (
	saveByReading saveWay = "fast"     // the memory of QEMU's process is read
	saveBySending saveWay = "fallback" // QEMU sends it
	saveNot       saveWay = "none"
)

// saveVerdict is a saveWay with what keeps it from being a better one.
type saveVerdict struct {
	Way saveWay `json:"way"`
	Why string  `json:"why,omitempty"`
}

// Commands that every save needs, and those that one by sending does.
var (
	saveCommands = []string{"stop", "cont", "blockdev-add", "blockdev-snapshot", "xen-save-devices-state"}
	sendCommands = []string{"migrate", "migrate-continue", "migrate-set-capabilities", "query-migrate"}
)

// saveProbeLimit bounds a trial, which takes a tenth of a second on an idle host.
const saveProbeLimit = 30 * time.Second

// saveWay says how VMs are saved with a QEMU, by a trial of it that this process
// remembers. That the best way works is remembered in CacheDir too, until the
// host is booted: no server should pay for it in its first create. Another
// answer may be mended meanwhile. An error says only that it could not be found
// out.
func (b *Backend) saveWay(ctx context.Context, bin string, f facts) (saveVerdict, error) {
	st, err := os.Stat(bin)
	if err != nil {
		return saveVerdict{}, err
	}
	id := sha256.Sum256(fmt.Appendf(nil, "1\x00%s\x00%d\x00%d\x00%s\x00%d\x00%s\x00%t",
		bin, st.Size(), st.ModTime().UnixNano(), hostBootID(), os.Geteuid(), ptraceScope(), b.blind))
	name := "saves-" + hex.EncodeToString(id[:8]) + ".json"
	b.saveWays.Lock()
	defer b.saveWays.Unlock()
	if v, known := b.saveWays.of[name]; known {
		return v, nil
	}
	file := filepath.Join(b.c.CacheDir, name)
	var v saveVerdict
	if readJSON(file, &v) != nil || v.Way != saveByReading {
		if v, err = b.trySaving(ctx, bin, f); err != nil {
			return v, err
		}
		if v.Way == saveByReading {
			if err := writeJSON(file, v, false); err != nil {
				b.c.Logger.Warn("cannot remember how VMs are saved", "error", err)
			}
		}
	}
	if b.saveWays.of == nil {
		b.saveWays.of = map[string]saveVerdict{}
	}
	b.saveWays.of[name] = v
	return v, nil
}

// trySaving starts a QEMU without a machine, as VMs are started, whose memory is
// a private mapping that it has written to, and reads it.
func (b *Backend) trySaving(ctx context.Context, bin string, f facts) (v saveVerdict, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, saveProbeLimit, fmt.Errorf("QEMU did not answer within %s", saveProbeLimit))
	defer cancel()
	dir, err := os.MkdirTemp(b.c.CacheDir, ".saves-*")
	if err != nil {
		return v, err
	}
	defer os.RemoveAll(dir)
	content := bytes.Repeat([]byte("SandboxForge"), 1<<20/12+1)[:1<<20]
	path := filepath.Join(dir, "memory")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return v, err
	}
	// prealloc has QEMU write to each page, what is in it already.
	args := []string{"-nodefaults", "-no-user-config", "-display", "none", "-S", "-machine", "none",
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=1M,share=off,prealloc=on,mem-path=%s", comma(path)),
		"-chardev", "socket,id=monitor,fd=3", "-mon", "chardev=monitor,mode=control"}
	if f.Sandbox {
		args = append(args, "-sandbox", sandboxArg)
	}
	theirs, ours, err := socketPair()
	if err != nil {
		return v, err
	}
	log := newTailLog()
	p, err := startProcess(bin, args, dir, []*os.File{theirs}, log)
	theirs.Close()
	if err != nil {
		ours.Close()
		return v, err
	}
	defer func() {
		p.kill()
		<-p.exited
	}()
	control, known, err := commandsOf(ctx, ours)
	if err != nil {
		return v, fmt.Errorf("%w: %s", err, firstLine([]byte(log.text())))
	}
	defer control.Close()
	for _, c := range saveCommands {
		if !known[c] {
			return saveVerdict{saveNot, "this QEMU has no command " + c}, nil
		}
	}
	err = b.tryReading(p.pid(), path, content)
	if err == nil {
		return saveVerdict{Way: saveByReading}, nil
	}
	for _, c := range sendCommands {
		if !known[c] {
			return saveVerdict{saveNot, fmt.Sprintf("the memory of QEMU cannot be read (%v), and it has no command %s", err, c)}, nil
		}
	}
	return saveVerdict{saveBySending, err.Error()}, nil
}

// commandsOf asks a QEMU what it understands.
func commandsOf(ctx context.Context, conn net.Conn) (*qmp.Client, map[string]bool, error) {
	control, err := qmp.Connect(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	var list []struct{ Name string }
	if err := control.Do(ctx, "query-commands", nil, &list); err != nil {
		control.Close()
		return nil, nil, err
	}
	known := map[string]bool{}
	for _, c := range list {
		known[c.Name] = true
	}
	return control, known, nil
}

// tryReading copies the pages of its own that a process has of a file, which
// have to be all, with the content given.
func (b *Backend) tryReading(pid int, path string, content []byte) error {
	m, err := b.openMemory(pid, path)
	if err != nil {
		return err
	}
	defer m.Close()
	to, err := os.OpenFile(path+".copy", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := m.copyOwn(to); err != nil {
		return err
	}
	got := make([]byte, len(content))
	if n, _ := to.ReadAt(got, 0); n != len(got) || !bytes.Equal(got, content) {
		return fmt.Errorf("the kernel does not tell which pages of QEMU are its own")
	}
	return nil
}

// reportSaves adds to a probe's report how VMs are saved.
func (b *Backend) reportSaves(ctx context.Context, r *backend.Report, bin string, f facts) {
	v, err := b.saveWay(ctx, bin, f)
	if err != nil {
		if ctx.Err() == nil {
			r.Evidence = append(r.Evidence, fmt.Sprintf("How VMs are saved here could not be found out: %s.", clause(err)))
		}
		return
	}
	problem := func(what, fix string) {
		r.Problems = append(r.Problems, backend.Problem{What: what, Fix: fix})
	}
	switch v.Way {
	case saveByReading:
		r.Evidence = append(r.Evidence, "Snapshots and forks are made the fast way: QEMU's memory can be read from its process.")
	case saveBySending:
		problem("snapshots and forks are made the slow way, in which QEMU sends the memory: its process cannot be read ("+v.Why+")",
			readingRemedy())
	case saveNot:
		problem("VMs cannot be saved, so there are no templates, snapshots and forks: "+v.Why, "install a QEMU with all its commands: "+installHint(bin))
	}
}

// ptraceScope is Yama's setting; empty: there is no Yama.
func ptraceScope() string {
	b, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return strings.TrimSpace(string(b))
}

// readingRemedy says what lets a process read the memory of its child.
func readingRemedy() string {
	switch ptraceScope() {
	case "2":
		return "let a process read the memory of its children: sudo sysctl kernel.yama.ptrace_scope=1"
	case "3":
		return "let a process read the memory of its children: boot the host with kernel.yama.ptrace_scope=1"
	}
	return "see that the server's user may read QEMU's executable, and that nothing (a container, a security module) keeps a process from reading the memory of its children; or do without"
}
