package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/guest/guestv1"
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

func validID(id string) bool { return idPattern.MatchString(id) && id != "." && id != ".." }

// registry holds the processes that the agent knows.
type registry struct {
	a      *Agent
	bootID string

	mu      sync.Mutex
	procs   map[string]*process
	killed  map[string]time.Time // ids that were killed before they were started; see bury
	closed  bool
	idle    chan *idleShim
	refills chan struct{}
	wg      sync.WaitGroup
}

func newRegistry(a *Agent) *registry {
	r := &registry{
		a: a, bootID: bootID(), procs: map[string]*process{}, killed: map[string]time.Time{},
		idle: make(chan *idleShim, max(a.cfg.IdleShims, 1)), refills: make(chan struct{}, 1),
	}
	if a.cfg.IdleShims > 0 {
		r.wg.Go(r.keepIdle)
		r.refill()
	}
	return r
}

// meta is what the agent records of a process; a later agent reads it.
type meta struct {
	BootID        string
	StartedUnixNS int64
	Cgroup        string
	Spec          []byte // ProcessSpec, without stdin
}

// idleShim is a shim that waits for its job.
type idleShim struct {
	conn net.Conn
	cmd  *exec.Cmd
}

// newShim starts a shim.
func (r *registry) newShim() (*idleShim, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "shim"), os.NewFile(uintptr(fds[1]), "shim")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	argv := r.a.cfg.Shim
	cmd := exec.Command(argv[0], argv[1:]...)
	// A shim is one thread and a few buffers.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=50")
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	return &idleShim{conn: conn, cmd: cmd}, nil
}

func (s *idleShim) discard() {
	s.conn.Close()
	s.cmd.Wait() //nolint:errcheck // it ends because its job will never come
}

// keepIdle refills the stock of waiting shims.
func (r *registry) keepIdle() {
	for {
		select {
		case <-r.a.ctx.Done():
			for {
				select {
				case s := <-r.idle:
					s.discard()
				default:
					return
				}
			}
		case <-r.refills:
			r.letStart()
		}
		for len(r.idle) < r.a.cfg.IdleShims && r.a.ctx.Err() == nil {
			s, err := r.newShim()
			if err != nil {
				r.a.log.Warn("no idle shim", "error", err)
				break
			}
			r.idle <- s // there is room: this goroutine alone adds
		}
	}
}

// refillDelay is how long a refill waits for the process whose start asked for
// it: starting a shim beside it would take the processor that it needs.
const refillDelay = 100 * time.Millisecond

// letStart waits for refillDelay while there is a shim for the next start.
func (r *registry) letStart() {
	t := time.NewTimer(refillDelay)
	defer t.Stop()
	for len(r.idle) > 0 {
		select {
		case <-t.C:
			return
		case <-r.a.ctx.Done():
			return
		case <-r.refills:
		}
	}
}

func (r *registry) refill() {
	select {
	case r.refills <- struct{}{}:
	default:
	}
}

func (r *registry) takeShim() (*idleShim, error) {
	select {
	case s := <-r.idle:
		return s, nil
	default:
		return r.newShim()
	}
}

func (r *registry) close() {
	r.mu.Lock()
	r.closed = true
	procs := r.list()
	r.mu.Unlock()
	for _, p := range procs {
		p.hangUp()
	}
	r.wg.Wait()
}

// list returns the processes, oldest first; r.mu is held.
func (r *registry) list() []*process {
	out := make([]*process, 0, len(r.procs))
	for _, p := range r.procs {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *process) int {
		if a.started != b.started {
			if a.started < b.started {
				return -1
			}
			return 1
		}
		return strings.Compare(a.id, b.id)
	})
	return out
}

func (r *registry) get(id string) (*process, error) {
	if !validID(id) {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("process id %q is not made of 1 to 64 of A-Z a-z 0-9 _ . -", id))
	}
	r.mu.Lock()
	p := r.procs[id]
	r.mu.Unlock()
	if p == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no process %q", id))
	}
	return p, nil
}

// A caller that gives up while its start is on the way kills an id that the
// agent has not heard of; the start that comes in then must not run. So many
// such ids are remembered, for so long: far longer than a request can be late.
const (
	maxKilled  = 1024
	killedLife = 5 * time.Minute
)

// bury remembers that nothing may be started under an id any more, unless a
// process has it already: every start is before the kill or refused.
func (r *registry) bury(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.procs[id] != nil {
		return
	}
	if len(r.killed) >= maxKilled {
		oldest, at := "", time.Time{}
		for k, t := range r.killed {
			if time.Since(t) > killedLife {
				delete(r.killed, k)
			} else if oldest == "" || t.Before(at) {
				oldest, at = k, t
			}
		}
		if len(r.killed) >= maxKilled {
			delete(r.killed, oldest)
		}
	}
	r.killed[id] = time.Now()
}

// buried reports whether an id was killed lately. The caller holds mu.
func (r *registry) buried(id string) bool {
	at, ok := r.killed[id]
	if ok && time.Since(at) > killedLife {
		delete(r.killed, id)
		ok = false
	}
	return ok
}

// start starts a process, or returns the one that has the id. It goes on when
// ctx ends: a start is never half done.
func (r *registry) start(ctx context.Context, id string, spec *guestv1.ProcessSpec) (p *process, existed bool, err error) {
	if !validID(id) {
		_, err := r.get(id)
		return nil, false, err
	}
	if spec == nil {
		return nil, false, connect.NewError(connect.CodeInvalidArgument, errors.New("no spec"))
	}
	r.mu.Lock()
	if p := r.procs[id]; p != nil {
		r.mu.Unlock()
		select {
		case <-p.ready:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		if p.startErr != nil {
			return nil, false, p.startErr
		}
		return p, true, nil
	}
	if r.buried(id) {
		r.mu.Unlock()
		return nil, false, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %q was killed before it was started", id))
	}
	running := 0
	for _, p := range r.procs {
		if !p.isEnded() {
			running++
		}
	}
	if running >= maxRunning || r.closed {
		r.mu.Unlock()
		return nil, false, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d processes are running in the guest; stop some first", running))
	}
	p = newProcess(r, id)
	p.started = time.Now().UnixNano()
	r.procs[id] = p
	r.mu.Unlock()

	err = r.launch(ctx, p, spec)
	if err != nil {
		r.mu.Lock()
		delete(r.procs, id)
		r.mu.Unlock()
		p.startErr = err
	}
	close(p.ready)
	if err == nil {
		r.trim()
	}
	return p, false, err
}

func (r *registry) launch(ctx context.Context, p *process, spec *guestv1.ProcessSpec) error {
	job, stdin, err := r.job(ctx, p, spec)
	if err != nil {
		return err
	}
	msg, err := shim.EncodeJob(job, stdin)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		s, err := r.takeShim()
		if err != nil {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("starting a shim: %w", err))
		}
		var st shim.Started
		s.conn.SetDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // a socket
		_, err = s.conn.Write(msg)
		if err == nil {
			err = readStarted(s.conn, &st)
		}
		r.refill()
		if err != nil {
			s.cmd.Process.Kill() //nolint:errcheck // it may be gone
			s.discard()
			if _, serr := os.Stat(p.dir); serr == nil || attempt > 0 {
				// It got as far as making files: whether the process ran is
				// not known, and it is not started twice.
				return r.adoptLate(p, fmt.Errorf("the shim died: %w", err))
			}
			continue // an idle shim that somebody killed
		}
		if st.Error != "" {
			s.discard()
			if st.Exist {
				return r.adoptLate(p, errors.New("the process directory exists already"))
			}
			return connect.NewError(connect.CodeInternal, errors.New(st.Error))
		}
		s.conn.SetDeadline(time.Time{}) //nolint:errcheck // a socket
		if err := p.open(); err != nil {
			s.conn.Close()
			r.wg.Go(func() { s.cmd.Wait() }) //nolint:errcheck // recorded by the shim
			return connect.NewError(connect.CodeInternal, err)
		}
		go s.cmd.Wait() //nolint:errcheck // reaps it; ends with the shim, which may outlive the agent
		p.attach(s.conn)
		return nil
	}
}

func readStarted(c net.Conn, st *shim.Started) error {
	for {
		typ, body, err := shim.ReadMessage(c)
		if err != nil {
			return err
		}
		if typ == shim.MsgStarted {
			return json.Unmarshal(body, st)
		}
	}
}

// job turns a spec into what the shim needs; errors are the caller's fault.
func (r *registry) job(ctx context.Context, p *process, spec *guestv1.ProcessSpec) (*shim.Job, []byte, error) {
	invalid := func(format string, args ...any) error {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
	}
	u, err := r.a.users.lookup(spec.User)
	if err != nil {
		if errors.Is(err, errNoUser) {
			return nil, nil, invalid("%w", err)
		}
		return nil, nil, connect.NewError(connect.CodeInternal, err)
	}
	argv := slices.Clone(spec.Argv)
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", spec.Command}
	}
	for _, s := range append(slices.Clone(argv), spec.Cwd) {
		if strings.ContainsRune(s, 0) {
			return nil, nil, invalid("a NUL byte in the command or its directory")
		}
	}
	for k, v := range spec.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return nil, nil, invalid("environment variable %q is not valid", k)
		}
	}
	if len(spec.Stdin) > maxStdin {
		return nil, nil, invalid("stdin of %d bytes; at most %d", len(spec.Stdin), maxStdin)
	}
	if spec.Rows > 0xffff || spec.Cols > 0xffff || spec.TimeoutNs < 0 {
		return nil, nil, invalid("window size or timeout out of range")
	}
	dir := spec.Cwd
	if dir == "" {
		dir = u.home
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			dir = "/"
		}
	} else {
		if !filepath.IsAbs(dir) {
			return nil, nil, invalid("working directory %q is not absolute", dir)
		}
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return nil, nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("working directory %q: no such directory in the guest", dir))
		}
	}
	env := merge(r.a.users.environ(ctx, u), spec.Env)
	if _, ok := spec.Env["PWD"]; !ok {
		env = append(env, "PWD="+dir)
	}
	if spec.Tty && !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		env = append(env, "TERM=xterm-256color")
	}
	argv[0] = lookPath(argv[0], env, dir)

	recorded := proto.Clone(spec).(*guestv1.ProcessSpec)
	recorded.Stdin = nil
	specBytes, err := proto.Marshal(recorded)
	if err != nil {
		return nil, nil, err
	}
	p.spec = recorded
	if r.a.cfg.Cgroup != "" {
		p.cgroup = filepath.Join(r.a.cfg.Cgroup, p.id)
	}
	m, err := json.Marshal(meta{BootID: r.bootID, StartedUnixNS: p.started, Cgroup: p.cgroup, Spec: specBytes})
	if err != nil {
		return nil, nil, err
	}
	return &shim.Job{
		ID: p.id, Argv: argv, Dir: dir, Env: env,
		KeepUser: u.self(), UID: u.uid, GID: u.gid, Groups: u.groups,
		HasStdin: len(spec.Stdin) > 0, StdinOpen: spec.StdinOpen,
		TTY: spec.Tty, Rows: uint16(spec.Rows), Cols: uint16(spec.Cols),
		SpoolDir: p.dir, RunDir: r.a.cfg.RunDir, Cgroup: p.cgroup,
		SpoolLimit: min(spec.SpoolLimitBytes, 1<<30), TimeoutNS: spec.TimeoutNs,
		Meta: m,
	}, spec.Stdin, nil
}

// trim forgets the oldest ended processes beyond maxKnown.
func (r *registry) trim() {
	r.mu.Lock()
	var old []*process
	if over := len(r.procs) - maxKnown; over > 0 {
		for _, p := range r.list() {
			if over > 0 && p.isEnded() {
				old = append(old, p)
				over--
			}
		}
	}
	r.mu.Unlock()
	for _, p := range old {
		r.forget(p)
	}
}

// forget removes an ended process and its spool.
func (r *registry) forget(p *process) {
	p.send(shim.MsgDiscard)
	p.hangUp()
	r.mu.Lock()
	if r.procs[p.id] == p {
		delete(r.procs, p.id)
	}
	r.mu.Unlock()
	os.RemoveAll(p.dir)
	if p.cgroup != "" {
		shim.RemoveCgroup(p.cgroup)
	}
}

// adopt takes over what earlier agents left.
func (r *registry) adopt() error {
	entries, err := os.ReadDir(r.a.cfg.SpoolDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !validID(e.Name()) || !e.IsDir() {
			continue
		}
		p := newProcess(r, e.Name())
		if err := r.adoptOne(p); err != nil {
			r.a.log.Warn("process directory not adopted", "id", p.id, "error", err)
			os.RemoveAll(p.dir)
			continue
		}
		close(p.ready)
		r.procs[p.id] = p
	}
	return nil
}

// adoptLate is for an id whose directory appeared meanwhile.
func (r *registry) adoptLate(p *process, cause error) error {
	if err := r.adoptOne(p); err != nil {
		os.RemoveAll(p.dir)
		return connect.NewError(connect.CodeInternal, fmt.Errorf("%w; %w", cause, err))
	}
	return nil
}

// adoptOne fills p from its directory. An error means that nothing ever ran.
func (r *registry) adoptOne(p *process) error {
	var m meta
	var b []byte
	var err error
	// A shim may be between making its directory and its record.
	for range 100 {
		b, err = os.ReadFile(filepath.Join(p.dir, "meta"))
		if err == nil {
			break
		}
		if st, serr := os.Stat(p.dir); serr != nil || time.Since(st.ModTime()).Abs() > 2*time.Second {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	p.spec = new(guestv1.ProcessSpec)
	if err := proto.Unmarshal(m.Spec, p.spec); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	p.started, p.cgroup = m.StartedUnixNS, m.Cgroup
	if err := p.open(); err != nil {
		return err
	}
	if m.BootID == r.bootID {
		if c, err := dialShim(r.a.cfg.RunDir, p.id); err == nil {
			p.attach(c)
			return nil
		}
		p.lost("its shim was killed")
		return nil
	}
	p.cgroup = ""
	p.lost("the guest was rebooted")
	return nil
}

// dialShim connects to a shim's control socket.
func dialShim(dir, id string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.Dial("unix", "/proc/self/fd/"+strconv.Itoa(int(d.Fd()))+"/"+id+".sock")
}
