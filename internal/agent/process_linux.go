package agent

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/guest/guestv1"
)

// process is one process as the agent sees it: files that its shim writes, and
// a connection that wakes it.
type process struct {
	r        *registry
	id, dir  string
	spec     *guestv1.ProcessSpec
	started  int64
	cgroup   string
	ready    chan struct{} // closed when the start is decided
	startErr error

	state *shim.State
	out   [2]shim.Spool

	mu     sync.Mutex
	conn   net.Conn
	wake   chan struct{} // closed and replaced on news
	status *shim.Status  // nil while it runs
	gone   string        // why it is LOST
}

func newProcess(r *registry, id string) *process {
	return &process{
		r: r, id: id, dir: filepath.Join(r.a.cfg.SpoolDir, id),
		ready: make(chan struct{}), wake: make(chan struct{}),
	}
}

// open maps the shim's files.
func (p *process) open() error {
	state, err := shim.MapState(filepath.Join(p.dir, "state"), false)
	if err != nil {
		return err
	}
	// The mapping and the descriptors live as long as anyone holds p, also
	// after it was forgotten: then a follower may still read.
	p.state = state
	runtime.AddCleanup(p, func(s *shim.State) { s.Unmap() }, state)
	for i, name := range []string{"stdout", "stderr"} {
		f, err := os.OpenFile(filepath.Join(p.dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		p.out[i] = shim.Spool{F: f, C: &state.Streams[i]}
	}
	return nil
}

// attach takes the connection to the shim and follows its news.
func (p *process) attach(c net.Conn) {
	p.mu.Lock()
	p.conn = c
	p.mu.Unlock()
	p.r.wg.Go(func() {
		defer c.Close()
		for {
			typ, body, err := shim.ReadMessage(c)
			if err != nil {
				break
			}
			if typ == shim.MsgExited {
				st := new(shim.Status)
				if json.Unmarshal(body, st) == nil {
					p.mu.Lock()
					if p.status == nil {
						p.status = st
					}
					p.mu.Unlock()
				}
			}
			p.news()
		}
		if p.r.a.ctx.Err() == nil && !p.isEnded() {
			p.lost("its shim was killed")
		}
	})
}

// lost records the end of a process whose shim is gone: how it ended if that
// was recorded, else LOST. What is left of it is killed, so that LOST is true.
func (p *process) lost(why string) {
	var st *shim.Status
	if b, err := os.ReadFile(filepath.Join(p.dir, "status")); err == nil {
		st = new(shim.Status)
		if json.Unmarshal(b, st) != nil {
			st = nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status != nil {
		return
	}
	if st == nil {
		if p.cgroup != "" {
			shim.SignalCgroup(p.cgroup, unix.SIGKILL) //nolint:errcheck // it may never have been made
		} else if pid := int(p.state.PID.Load()); pid > 1 && why != "the guest was rebooted" {
			shim.SignalSession(pid, 0, unix.SIGKILL)
		}
		p.gone = why
		st = &shim.Status{
			PID: int(p.state.PID.Load()), FinishedUnixNS: time.Now().UnixNano(),
			StdoutEnd: p.state.Streams[0].Total.Load(), StderrEnd: p.state.Streams[1].Total.Load(),
		}
	}
	p.status = st
	p.newsLocked()
}

func (p *process) news() {
	p.mu.Lock()
	p.newsLocked()
	p.mu.Unlock()
}

func (p *process) newsLocked() {
	close(p.wake)
	p.wake = make(chan struct{})
}

// changes returns a channel that is closed on the next news. Whoever looks at
// the state after calling it misses nothing.
func (p *process) changes() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == nil && p.state != nil {
		p.state.Waiting.Store(1)
	}
	return p.wake
}

func (p *process) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status != nil
}

func (p *process) ending() *shim.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// hangUp closes the connection to the shim, which goes on.
func (p *process) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn.Close()
	}
}

// send sends a message to the shim. The shim always reads; a deadline guards
// against one that is stopped.
func (p *process) send(typ byte, body ...byte) {
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	if c != nil {
		c.SetWriteDeadline(time.Now().Add(5 * time.Second)) //nolint:errcheck // a socket
		c.Write(shim.AppendMessage(nil, typ, body))         //nolint:errcheck // the shim may be gone, which is news of its own
	}
}

// signal signals the process or its tree.
func (p *process) signal(sig unix.Signal, tree, foreground bool) error {
	if tree && p.cgroup != "" {
		err := shim.SignalCgroup(p.cgroup, sig)
		if os.IsNotExist(err) {
			return nil // empty and removed
		}
		return err
	}
	if !tree && p.isEnded() {
		return nil
	}
	b := func(v bool) byte {
		if v {
			return 1
		}
		return 0
	}
	p.send(shim.MsgSignal, byte(sig), b(tree), b(foreground))
	return nil
}

// describe is the process as the protocol shows it.
func (p *process) describe() *guestv1.Process {
	p.mu.Lock()
	st, gone := p.status, p.gone
	p.mu.Unlock()
	out := &guestv1.Process{
		Id: p.id, Status: guestv1.ProcessStatus_PROCESS_STATUS_RUNNING,
		Pid: p.state.PID.Load(), StartedUnixNs: p.started, SpoolPath: p.dir, Spec: p.spec,
		StdoutBytes: p.state.Streams[0].Total.Load(), StderrBytes: p.state.Streams[1].Total.Load(),
		StdoutDropped: p.state.Streams[0].Dropped(), StderrDropped: p.state.Streams[1].Dropped(),
	}
	if st == nil {
		return out
	}
	out.FinishedUnixNs = st.FinishedUnixNS
	out.TimedOut = st.TimedOut
	out.ErrorMessage = strings.ToValidUTF8(st.Error, "\uFFFD")
	switch {
	case gone != "":
		out.Status = guestv1.ProcessStatus_PROCESS_STATUS_LOST
		out.ErrorMessage = gone
	case st.Signal != 0:
		out.Status = guestv1.ProcessStatus_PROCESS_STATUS_SIGNALED
		out.Signal = int32(st.Signal)
	default:
		out.Status = guestv1.ProcessStatus_PROCESS_STATUS_EXITED
		out.ExitCode = int32(st.ExitCode)
	}
	return out
}
