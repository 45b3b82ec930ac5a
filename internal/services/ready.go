package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
)

// ReadyTimeout is how long all services together get to answer, counted from
// when their containers run.
const ReadyTimeout = 90 * time.Second

// A server that is being set up under software emulation takes minutes. Wait.
// Extend waits for it as long as it demonstrably works: it prints something, or
// uses a tenth of a processor; but not longer than most.
const (
	extendBy = 20 * time.Second
	most     = 10 * time.Minute
)

// crashes is how often a server may end before it is given up.
const crashes = 3

// probeLimit bounds one query: an emulated guest on a busy host takes many
// seconds to start a client.
const probeLimit = time.Minute

// A port that is not open is not asked, as to start a client costs a slow guest
// more than to dial; but every so many times it is asked all the same, for
// networks on which the guest reaches no container.
const askAnyway = 8

// logLines of a container go into a fault.
const logLines = 15

// Wait says how long Await waits.
type Wait struct {
	Deadline time.Time
	Extend   bool
}

// Await returns when the service has answered a real query, and notes that in
// r, with the password that is in force. SERVICE_NOT_READY carries the last
// lines of the container's log. A server that keeps ending is stopped, so that
// it does not use up the guest.
func (p Place) Await(ctx context.Context, r *Running, w Wait) error {
	began := time.Now()
	end := began.Add(most)
	signs := newSigns(began)
	said := "it was not asked yet"
	for pause := 100 * time.Millisecond; ; pause = min(pause*3/2, 3*time.Second) {
		look, cancel := context.WithTimeout(ctx, lookLimit)
		c, err := p.Engine.Container(look, r.ID)
		cancel()
		switch {
		case ctx.Err() != nil:
			return p.fault(ctx, r.Service, err, "")
		case errors.Is(err, docker.ErrNotFound):
			return p.notReady(ctx, r, began, "its container is gone")
		case err != nil:
			said = oneLine(err.Error())
		case !c.Running() && (c.Restarts >= crashes || c.Status == "exited" || c.Status == "dead"):
			// Not while it runs: this time it may stay, and its exit code is 0.
			f := p.notReady(ctx, r, began, "the server keeps ending, the last time with exit code "+strconv.Itoa(c.ExitCode)+"; its container was stopped")
			stop, cancel := context.WithTimeout(ctx, stopGrace+lookLimit)
			err := p.Engine.StopContainer(stop, r.ID, stopGrace)
			cancel()
			if err != nil && ctx.Err() != nil {
				return p.fault(ctx, r.Service, err, "")
			}
			return f
		case c.Running():
			r.Attempts++
			var ok bool
			if ok, said = p.probe(ctx, r); ok {
				r.Ready = true
				p.report("%s is ready", r.Name)
				return nil
			}
		default:
			said = "its container is " + c.Status
		}
		now := time.Now()
		if w.Extend {
			p.look(ctx, r, signs, now)
		}
		if !now.Before(w.Deadline) {
			if !w.Extend || now.Sub(signs.last) > extendBy || now.After(end) {
				return p.notReady(ctx, r, began, said)
			}
			w.Deadline = now.Add(extendBy)
		}
		p.report("%s: waiting until it answers, %.0f s", r.Name, now.Sub(began).Seconds())
		select {
		case <-time.After(min(pause, max(time.Until(w.Deadline), 10*time.Millisecond))):
		case <-ctx.Done():
			return p.fault(ctx, r.Service, ctx.Err(), "")
		}
	}
}

// connect opens a connection to the service's port. ErrUnsupported says that it
// cannot be known whether that is possible.
func (p Place) connect(ctx context.Context, r *Running) (net.Conn, error) {
	if p.Dial == nil || r.Address == "" {
		return nil, errors.ErrUnsupported
	}
	return p.Dial(ctx, "tcp", net.JoinHostPort(r.Address, strconv.Itoa(r.Port)))
}

// probe asks the server once, with each password that may be in force, and says
// what came back: over the network, and where that fails, with the client that
// is in its container.
func (p Place) probe(ctx context.Context, r *Running) (ready bool, said string) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	for _, password := range r.passwords {
		s := r.Service
		s.Password = password
		err := p.overNetwork(ctx, r, func(ctx context.Context, c net.Conn) error { return s.kind.ask(ctx, c, s) })
		switch {
		case err == nil:
			r.Password = password
			return true, ""
		case errors.Is(err, errClosed) && r.Attempts%askAnyway != 0:
			return false, "nothing listens on port " + strconv.Itoa(r.Port)
		}
	}
	for _, password := range r.passwords {
		s := r.Service
		s.Password = password
		c := s.kind.probe(s)
		x, err := p.Engine.Exec(ctx, docker.Exec{Container: r.ID, Argv: c.Argv, Env: c.Env})
		switch {
		case err != nil:
			return false, oneLine(r.hide(err.Error(), r.passwords...))
		case x.ExitCode == 0 && strings.TrimSpace(x.Stdout) == s.kind.answer:
			r.Password = password
			return true, ""
		}
		said = oneLine(r.hide(x.Stderr+" "+x.Stdout, r.passwords...))
		if said == "" {
			said = "the query ended with exit code " + strconv.Itoa(x.ExitCode)
		}
	}
	return false, said
}

// errClosed says that nothing listens on a service's port.
var errClosed = errors.New("the port is closed")

// overNetwork has f talk to the server over a connection of its own.
func (p Place) overNetwork(ctx context.Context, r *Running, f func(context.Context, net.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	c, err := p.connect(ctx, r)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return err
	case err != nil:
		return errClosed
	}
	return f(ctx, &bounded{c, mostOfAll})
}

// mostOfAll bounds what a server may send in one exchange, in bytes: any number
// of messages, each within its own bound, are kept until the last has come.
const mostOfAll = 1 << 20

// bounded is a connection that ends after left bytes.
type bounded struct {
	net.Conn
	left int
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the server sent more than %d bytes", mostOfAll)
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// lookLimit bounds one look at a container: an engine that hangs is no server
// that is awaited.
const lookLimit = 15 * time.Second

// askLimit bounds a connection to a port, and one exchange over it.
const askLimit = 10 * time.Second

// signs are what shows that a server works.
type signs struct {
	last time.Time // a sign was seen
	at   time.Time // it was looked for
	log  string
	cpu  time.Duration
}

func newSigns(now time.Time) *signs { return &signs{last: now, at: now} }

func (p Place) look(ctx context.Context, r *Running, s *signs, now time.Time) {
	if now.Sub(s.at) < 5*time.Second {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if log, err := p.Engine.LastLog(ctx, r.ID, 3); err == nil && log != s.log {
		s.log, s.last = log, now
	}
	if cpu, err := p.Engine.CPUTime(ctx, r.ID); err == nil {
		if cpu-s.cpu > now.Sub(s.at)/10 {
			s.last = now
		}
		s.cpu = cpu
	}
	s.at = now
}

func (p Place) notReady(ctx context.Context, r *Running, began time.Time, said string) *fault.Error {
	f := fault.New(fault.ServiceNotReady, "%s did not answer within %.0f s", r.Name, time.Since(began).Seconds()).
		Because("%s", said).
		With("service", r.Name).With("container", r.Container).With("image", r.Image).With("attempts", r.Attempts)
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if log, err := p.Engine.LastLog(ctx, r.ID, logLines); err == nil {
		var lines []string
		for _, l := range strings.Split(log, "\n") {
			if l = oneLine(r.hide(l, r.passwords...)); l != "" {
				lines = append(lines, l)
			}
		}
		f = f.With("last_log_lines", lines)
	}
	return f.Next("read last_log_lines, or all of it: docker logs %s", r.Container).
		Next("call prepare_workspace again: the container goes on, and data that is being set up takes long in a slow VM").
		Next("or give the VM more memory or CPUs (vm.memory_gib, vm.cpus)")
}

// Adopt gives the running server the password that it shall have, if another
// one is in force: that of a saved state, in which others begin too. That is
// what Await has found out, or else the one that the container was made with. A
// server that obeys is ready. The new password has letters and digits only.
func (p Place) Adopt(ctx context.Context, r *Running, password string) error {
	c, ok := r.Rotate(password)
	if !ok || r.Password == password {
		return nil
	}
	p.report("%s: a password of its own", r.Name)
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	err := p.overNetwork(ctx, r, func(ctx context.Context, c net.Conn) error { return r.kind.tell(ctx, c, r.Service, password) })
	if err != nil {
		var x docker.ExecResult
		x, err = p.Engine.Exec(ctx, docker.Exec{Container: r.ID, Argv: c.Argv, Env: c.Env})
		if err == nil && x.ExitCode != 0 {
			err = errors.New(x.Stderr + " " + x.Stdout)
		}
	}
	if err != nil {
		f := p.fault(ctx, r.Service, errors.New(r.hide(err.Error(), password)), "%s could not be given a password of its own", r.Name)
		return f.Next("call prepare_workspace again")
	}
	// To obey was an answer to a real query, on the final server.
	r.Password, r.passwords, r.Ready = password, []string{password}, true
	r.Attempts++
	return nil
}
