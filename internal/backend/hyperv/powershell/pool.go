package powershell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Options say which PowerShell is run, and how many.
type Options struct {
	// Path is the executable, absolute.
	Path string
	// Dir is its working directory; empty: ours.
	Dir string
	// Max bounds the processes, so the requests that run at once. 0: 3.
	Max int
	// Idle is after how long without a request a process ends. 0: 5 minutes.
	Idle time.Duration
	// StartLimit bounds the start of a process. 0: 60 s: the very first start
	// on a computer can take more than 10.
	StartLimit time.Duration
	// Logger is told about processes that had to be replaced; may be nil.
	Logger *slog.Logger
}

// Request is one script to run.
type Request struct {
	// Name is for messages.
	Name string
	// Script is PowerShell; it has the parameter $p.
	Script string
	// Parameters become $p, through JSON.
	Parameters any
	// Limit is when a process that has not answered is killed. 0: 2 minutes.
	Limit time.Duration
}

// Pool runs requests. It may be used by many goroutines.
type Pool struct {
	o     Options
	slots chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	idle   []*shell
	timer  *time.Timer
	closed bool
}

// NewPool makes a pool; nothing is started.
func NewPool(o Options) *Pool {
	if o.Max <= 0 {
		o.Max = 3
	}
	if o.Idle <= 0 {
		o.Idle = 5 * time.Minute
	}
	if o.StartLimit <= 0 {
		o.StartLimit = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pool{o: o, slots: make(chan struct{}, o.Max)}
}

// Run runs a script and decodes its result into v, if that is not nil. It
// fails with *Error for what the script failed with; with an error that is
// ErrUnknown when the request was sent and no reply came, because ctx or the
// limit ended or the process did; with ctx's error, and no effect, when ctx
// ends before that; and with a fault when PowerShell cannot be used at all.
func (p *Pool) Run(ctx context.Context, r Request, v any) error {
	parameters, err := json.Marshal(r.Parameters)
	if err != nil {
		return err
	}
	limit := r.Limit
	if limit <= 0 {
		limit = 2 * time.Minute
	}
	s, err := p.take(ctx)
	if err != nil {
		return err
	}
	nonce := newNonce()
	answer := make(chan outcome, 1)
	go func() { // ends with the reply or the limit; take has counted it
		defer p.wg.Done()
		sctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, fmt.Errorf("%w: %s took more than %s", ErrUnknown, r.Name, limit))
		defer cancel()
		var got reply
		err := s.write(sctx, request(nonce, r.Script, parameters))
		if err == nil {
			var bad error
			err = s.await(sctx, func(line []byte) bool {
				var perr error
				if got, perr = parseReply(line, nonce); perr == errNotReply {
					return false
				}
				bad = perr
				return true
			})
			if err == nil {
				err = bad
			}
		}
		if err != nil {
			// A shell that did not answer as it should is not used again.
			p.o.Logger.Warn("a PowerShell process is replaced", "request", r.Name, "error", err)
			s.kill()
			if !errors.Is(err, ErrUnknown) {
				err = fmt.Errorf("%w: %w", ErrUnknown, err)
			}
		}
		p.give(s)
		answer <- outcome{got, err}
	}()
	// Decoded here: nothing is written to v after Run has returned.
	select {
	case o := <-answer:
		return o.into(v)
	case <-ctx.Done():
	}
	select {
	case o := <-answer: // both at once: what is known counts
		return o.into(v)
	default:
	}
	return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
}

// outcome is what became of a request.
type outcome struct {
	reply reply
	err   error
}

func (o outcome) into(v any) error {
	if o.err != nil {
		return o.err
	}
	return o.reply.result(v)
}

// take gets a shell of its own for the caller.
func (p *Pool) take(ctx context.Context) (*shell, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.slots
		return nil, errClosed
	}
	p.wg.Add(1) // under the lock that Close takes before it waits
	for len(p.idle) > 0 {
		s := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if s.alive() {
			p.mu.Unlock()
			return s, nil
		}
		s.kill()
	}
	p.mu.Unlock()
	s, err := start(ctx, p.o)
	if err != nil {
		<-p.slots
		p.wg.Done()
		return nil, err
	}
	return s, nil
}

// give takes a shell back.
func (p *Pool) give(s *shell) {
	p.mu.Lock()
	defer p.mu.Unlock()
	<-p.slots
	if p.closed || !s.alive() {
		s.kill()
		return
	}
	s.used = time.Now()
	p.idle = append(p.idle, s)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.o.Idle, p.expire)
	}
}

// expire ends the shells that were idle for long.
func (p *Pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	kept := p.idle[:0]
	for _, s := range p.idle {
		if time.Since(s.used) >= p.o.Idle || !s.alive() {
			s.kill()
		} else {
			kept = append(kept, s)
		}
	}
	p.idle = kept
	if len(kept) > 0 && !p.closed {
		p.timer = time.AfterFunc(max(p.o.Idle/4, time.Second), p.expire)
	}
}

// Close ends the processes that serve nobody, and the others when they have
// answered. It waits for them.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, s := range idle {
		s.kill()
		<-s.gone
	}
	p.wg.Wait()
}
