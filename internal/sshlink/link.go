package sshlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"sandboxforge/internal/fault"
)

// commandTries is how often a command may fail in a guest that answers before
// the attempt is over.
const commandTries = 4

// Link is the way to one guest for as long as it runs. Its methods may be called
// concurrently.
type Link struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	keys keys // of the attempt that runs

	mu     sync.Mutex
	closed bool
	cur    *stream  // handed out
	job    *attempt // runs, or has what nobody took yet
	final  error    // of an attempt, while none succeeded since
	failed chan struct{}

	stampMu sync.Mutex
	stamps  map[string]string // by architecture
}

// attempt goes on while nobody waits: an installation takes longer than some
// callers have patience.
type attempt struct {
	done   chan struct{}
	stream *stream
	err    error

	mu   sync.Mutex
	last error
}

// New makes a Link. Nothing happens before Dial. An unusable Config is what
// Dial fails with.
func New(cfg Config) *Link {
	l := &Link{cfg: cfg, failed: make(chan struct{}), stamps: map[string]string{}}
	l.keys = keys{cfg: &l.cfg, pinned: slices.Clone(cfg.HostKeys)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Dial opens the stream to the agent, in the place of the one before, which is
// closed. It waits while the guest boots and the agent is installed. When ctx
// ends first, the attempt goes on for the next call, until it succeeds, fails for
// good, or the Link is closed; the error then says what the last try met. It
// fails at once for what trying again does not mend: ErrHostKey, an architecture
// without an agent, a guest in which our commands fail.
func (l *Link) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := l.cfg.check(); err != nil {
		return nil, err
	}
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return nil, net.ErrClosed
		}
		if l.cur != nil {
			l.cur.Close()
			l.cur = nil
		}
		j := l.job
		if j == nil {
			j = &attempt{done: make(chan struct{})}
			l.job = j
			l.wg.Go(func() { l.run(j) })
		}
		l.mu.Unlock()
		select {
		case <-j.done:
		case <-ctx.Done():
			j.mu.Lock()
			last := j.last
			j.mu.Unlock()
			if last == nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("no ssh connection to the guest yet: %w (last: %w)", context.Cause(ctx), last)
		}
		l.mu.Lock()
		if l.job != j { // another call has it
			l.mu.Unlock()
			continue
		}
		l.job = nil
		if j.err != nil {
			l.mu.Unlock()
			return nil, j.err
		}
		if j.stream.over() { // it waited for somebody too long
			l.mu.Unlock()
			j.stream.Close()
			continue
		}
		if err := context.Cause(ctx); err != nil {
			l.job = j
			l.mu.Unlock()
			return nil, err
		}
		l.cur = j.stream
		l.mu.Unlock()
		return j.stream, nil
	}
}

// run tries until there is a stream.
func (l *Link) run(j *attempt) {
	defer close(j.done)
	pause, refused := minPause, 0
	for {
		s, err := open(l.ctx, &l.cfg, &l.keys, l.wanted)
		if err == nil {
			l.mu.Lock()
			if l.closed {
				l.mu.Unlock()
				s.Close()
				j.err = net.ErrClosed
				return
			}
			j.stream, l.final = s, nil
			l.mu.Unlock()
			return
		}
		if l.ctx.Err() != nil {
			j.err = net.ErrClosed
			return
		}
		var over finalError
		var command commandError
		if errors.As(err, &command) {
			if refused++; refused == commandTries {
				over = finalError{command.err}
			}
		}
		if errors.As(err, &over) || over.err != nil {
			j.err = over.err
			l.fail(over.err)
			return
		}
		j.mu.Lock()
		j.last = err
		j.mu.Unlock()
		select {
		case <-l.ctx.Done():
			j.err = net.ErrClosed
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

func (l *Link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = err
	select {
	case <-l.failed:
	default:
		close(l.failed)
	}
}

// WaitFailed blocks until an attempt has failed for good, and returns its error;
// nil if ctx ends first. It is for a Machine's WatchBoot.
func (l *Link) WaitFailed(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.failed:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.final != nil {
			return l.final
		}
		return fault.New(fault.RuntimeNotReady, "the guest could not be reached over ssh")
	}
}

// wanted is the stamp that a guest of an architecture is to have, worked out
// once. The executables are not kept: the process that owns a VM is small.
func (l *Link) wanted(arch string) (string, error) {
	l.stampMu.Lock()
	defer l.stampMu.Unlock()
	if w := l.stamps[arch]; w != "" {
		return w, nil
	}
	b, err := l.cfg.binaries(arch)
	if err != nil {
		return "", fault.Wrap(err, fault.UnsupportedByBackend, "there is no agent for guests of architecture %.20q", arch).
			Next("use a guest of amd64 or arm64")
	}
	l.stamps[arch] = stamp(b)
	return l.stamps[arch], nil
}

// Close ends the stream and the attempt there may be, and waits for them.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	cur, j := l.cur, l.job
	l.cur, l.job = nil, nil
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
	if cur != nil {
		cur.Close()
	}
	if j != nil && j.stream != nil {
		j.stream.Close()
	}
	return nil
}

// Dial is New and Link.Dial for one stream: closing it ends everything.
func Dial(ctx context.Context, cfg Config) (io.ReadWriteCloser, error) {
	l := New(cfg)
	s, err := l.Dial(ctx)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &single{s, l}, nil
}

type single struct {
	io.ReadWriteCloser
	l *Link
}

func (s *single) Close() error { return s.l.Close() }
