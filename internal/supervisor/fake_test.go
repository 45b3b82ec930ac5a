//go:build unix

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/guest/guestv1/guestv1connect"
	"sandboxforge/internal/link"
)

// The tests re-execute this binary as the supervisor, whose VM is a
// fakeMachine within that process.
func TestMain(m *testing.M) {
	RegisterBackend("test", func(c json.RawMessage) (backend.Backend, error) {
		b := &fakeBackend{}
		if err := json.Unmarshal(c, b); err != nil {
			return nil, err
		}
		if b.HelloVersion != 0 {
			helloVersion = b.HelloVersion
		}
		return b, nil
	})
	if handled, code := Main(os.Args); handled {
		os.Exit(code)
	}
	if len(os.Args) == 3 && os.Args[1] == "launch-and-hang" {
		launchAndHang(os.Args[2])
	}
	os.Exit(m.Run())
}

// fakeBackend is configured by JSON, so that it also works in a child.
type fakeBackend struct {
	BadBoots     int           // so many boots fail
	BadKind      string        // "panic", "hang", "exit"
	NoAgent      bool          // the agent never answers
	BootDelay    time.Duration // before the agent answers
	HelloVersion uint32        // what the supervisor says
	StartError   string
	GrowRoot     bool          // the disk is larger than the file system
	BadIdentity  bool          // SetIdentity fails
	StopHangs    bool          // Stop with grace does not succeed
	Stumbles     bool          // Info fails once after a save
	SaveWork     time.Duration // what a save takes after the VM has ended
	Trace        string        // file to which events are appended

	starts atomic.Int32
}

func (b *fakeBackend) Name() string { return "test" }
func (b *fakeBackend) Probe(context.Context, backend.Progress) (backend.Report, error) {
	return backend.Report{Usable: true}, nil
}
func (b *fakeBackend) Capabilities() backend.Capabilities {
	return backend.Capabilities{DiesWithOwner: true}
}
func (b *fakeBackend) Create(context.Context, backend.Spec) error { return nil }
func (b *fakeBackend) Inspect(context.Context, string) (backend.Info, error) {
	return backend.Info{}, backend.ErrNotFound
}
func (b *fakeBackend) List(context.Context) ([]backend.Info, error) { return nil, nil }
func (b *fakeBackend) Delete(context.Context, string) error         { return nil }

func (b *fakeBackend) trace(format string, args ...any) {
	if b.Trace == "" {
		return
	}
	f, err := os.OpenFile(b.Trace, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintf(f, format+"\n", args...)
		f.Close()
	}
}

func (b *fakeBackend) Start(_ context.Context, name string, o backend.StartOptions) (backend.Machine, error) {
	n := int(b.starts.Add(1))
	b.trace("start %d cautious=%v", n, o.Cautious)
	if b.StartError != "" {
		return nil, errors.New(b.StartError)
	}
	m := &fakeMachine{b: b, name: name, done: make(chan struct{}), console: []byte("SeaBIOS\r\nLinux version 6\r\n")}
	switch {
	case n <= b.BadBoots && b.BadKind == "panic":
		m.console = append(m.console, "[ 0.1] Kernel panic - not syncing: Attempted to kill init!\r\n"...)
	case n <= b.BadBoots && b.BadKind == "exit":
		m.end("hypervisor died", "signal: segmentation fault")
	case n <= b.BadBoots && b.BadKind == "hang", b.NoAgent:
	default:
		m.agent = newFakeAgent(m, b.BootDelay)
	}
	return m, nil
}

type fakeMachine struct {
	b     *fakeBackend
	name  string
	agent *fakeAgent // nil: nothing answers

	stumble atomic.Bool

	mu      sync.Mutex
	once    sync.Once
	done    chan struct{}
	exit    backend.Exit
	console []byte
	stream  io.Closer
}

func (m *fakeMachine) DialAgent(ctx context.Context) (io.ReadWriteCloser, error) {
	host, port := pipe()
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return nil, backend.ErrNotRunning
	default:
	}
	if m.stream != nil {
		m.stream.Close()
	}
	m.stream = host
	if m.agent != nil {
		m.agent.serve(port)
	} else {
		go io.Copy(io.Discard, port)
	}
	return host, nil
}

// cut breaks the stream to the agent.
func (m *fakeMachine) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stream.Close()
}

func (m *fakeMachine) end(reason, detail string) {
	m.once.Do(func() {
		m.exit = backend.Exit{At: time.Now(), Reason: reason, Detail: detail}
		close(m.done)
		m.b.trace("end %s", reason)
		m.mu.Lock()
		if m.stream != nil {
			m.stream.Close()
		}
		m.mu.Unlock()
	})
}

func (m *fakeMachine) Done() <-chan struct{} { return m.done }
func (m *fakeMachine) Exit() backend.Exit    { return m.exit }
func (m *fakeMachine) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 && m.b.StopHangs {
		return errors.New("the guest does not shut down")
	}
	m.end("stopped", "")
	return nil
}

// Save implements backend.Saver.
func (m *fakeMachine) Save(_ context.Context, dir string, o backend.SaveOptions) (backend.SavedState, error) {
	m.b.trace("save end=%v", o.End)
	m.stumble.Store(m.b.Stumbles)
	if o.End {
		m.end("stopped", "")
		time.Sleep(m.b.SaveWork) // a slow disk
	}
	return backend.SavedState{Dir: dir, Pause: time.Millisecond}, nil
}
func (m *fakeMachine) Info() backend.Info {
	return backend.Info{Name: m.name, State: backend.Running, PID: os.Getpid(), Accelerator: "fake"}
}
func (m *fakeMachine) Console(max int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.console[len(m.console)-min(max, len(m.console)):]
}

// pipe is a buffered two-way stream.
func pipe() (a, b io.ReadWriteCloser) {
	x, y := link.NewBuffer(1<<20), link.NewBuffer(1<<20)
	return &pipeEnd{x, y}, &pipeEnd{y, x}
}

type pipeEnd struct{ in, out *link.Buffer }

func (p *pipeEnd) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipeEnd) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *pipeEnd) Close() error {
	p.in.Close(net.ErrClosed)
	p.out.CloseWrite(io.EOF)
	return nil
}

// fakeAgent serves just enough of the guest protocol. Commands started in it
// are events that tests ask for.
type fakeAgent struct {
	guestv1connect.UnimplementedSystemHandler
	guestv1connect.UnimplementedProcessesHandler
	guestv1connect.UnimplementedDialerHandler
	m         *fakeMachine
	http      *http.Server
	up        time.Time
	cancelled chan struct{} // one for each Follow that ended early
}

func newFakeAgent(m *fakeMachine, delay time.Duration) *fakeAgent {
	a := &fakeAgent{m: m, up: time.Now().Add(delay), cancelled: make(chan struct{}, 100)}
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewSystemHandler(a))
	mux.Handle(guestv1connect.NewProcessesHandler(a))
	mux.Handle(guestv1connect.NewFilesHandler(fakeFiles{}))
	mux.Handle(guestv1connect.NewDialerHandler(a))
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	a.http = &http.Server{Handler: mux, Protocols: p,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerConnection: 1 << 30}}
	return a
}

func (a *fakeAgent) serve(port io.ReadWriteCloser) {
	go func() {
		time.Sleep(time.Until(a.up)) // a boot takes time
		a.http.Serve(link.NewListener(port))
	}()
}

func (a *fakeAgent) Ping(context.Context, *guestv1.PingRequest) (*guestv1.PingResponse, error) {
	return &guestv1.PingResponse{AgentVersion: "fake", BootId: "boot-1"}, nil
}

func (a *fakeAgent) Info(context.Context, *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	if a.m.stumble.Swap(false) {
		return nil, connect.NewError(connect.CodeInternal, errors.New("not now"))
	}
	return &guestv1.InfoResponse{AgentVersion: "fake", BootId: "boot-1", RootDeviceLarger: a.m.b.GrowRoot}, nil
}

func (a *fakeAgent) SetIdentity(_ context.Context, r *guestv1.SetIdentityRequest) (*guestv1.SetIdentityResponse, error) {
	if a.m.b.BadIdentity {
		return nil, connect.NewError(connect.CodeInternal, errors.New("sethostname: no"))
	}
	a.m.b.trace("identity %s machine-id=%d entropy=%d clock=%v", r.Hostname, len(r.MachineId), len(r.Entropy),
		time.Since(time.Unix(0, r.TimeUnixNs)).Abs() < time.Minute)
	return &guestv1.SetIdentityResponse{}, nil
}

func (a *fakeAgent) SetDeadline(_ context.Context, r *guestv1.SetDeadlineRequest) (*guestv1.SetDeadlineResponse, error) {
	a.m.b.trace("backstop %d", time.Duration(r.RemainingNs).Round(time.Minute)/time.Minute)
	return &guestv1.SetDeadlineResponse{}, nil
}

func (a *fakeAgent) GrowRoot(context.Context, *guestv1.GrowRootRequest) (*guestv1.GrowRootResponse, error) {
	a.m.b.trace("grow")
	return &guestv1.GrowRootResponse{}, nil
}

func (a *fakeAgent) PowerOff(context.Context, *guestv1.PowerOffRequest) (*guestv1.PowerOffResponse, error) {
	a.m.b.trace("power off")
	return &guestv1.PowerOffResponse{}, nil
}

func (a *fakeAgent) Start(_ context.Context, r *guestv1.StartRequest) (*guestv1.StartResponse, error) {
	switch r.Spec.GetCommand() {
	case "poweroff":
		go a.m.end("guest powered off", "")
	case "segfault":
		go a.m.end("hypervisor died", "signal: segmentation fault")
	case "cut":
		go a.m.cut()
	}
	return &guestv1.StartResponse{Process: &guestv1.Process{Id: r.Id}}, nil
}

func (a *fakeAgent) List(context.Context, *guestv1.ListRequest) (*guestv1.ListResponse, error) {
	return &guestv1.ListResponse{Processes: []*guestv1.Process{
		{Id: "build", Status: guestv1.ProcessStatus_PROCESS_STATUS_EXITED, ExitCode: 3, StdoutBytes: 1 << 20, FinishedUnixNs: 5, StartedUnixNs: 1},
		{Id: "server", Status: guestv1.ProcessStatus_PROCESS_STATUS_RUNNING, StderrBytes: 5, StartedUnixNs: 2},
	}}, nil
}

func (a *fakeAgent) Read(_ context.Context, r *guestv1.ReadRequest) (*guestv1.ReadResponse, error) {
	if r.Id == "build" {
		n := min(r.TailBytes, 1<<20)
		return &guestv1.ReadResponse{Data: []byte(strings.Repeat("x", int(n))), Offset: 1<<20 - n, NextOffset: 1 << 20, TotalBytes: 1 << 20}, nil
	}
	if r.Stream == guestv1.Stream_STREAM_STDOUT {
		return &guestv1.ReadResponse{}, nil
	}
	return &guestv1.ReadResponse{Data: []byte("oops\n"), NextOffset: 5}, nil
}

// Follow of "endless" sends without end, of anything else waits for its end.
func (a *fakeAgent) Follow(ctx context.Context, r *guestv1.FollowRequest, s *connect.ServerStream[guestv1.FollowResponse]) error {
	defer func() { a.cancelled <- struct{}{} }()
	event := &guestv1.FollowResponse{Event: &guestv1.FollowResponse_Output{Output: &guestv1.Output{Data: make([]byte, 32<<10)}}}
	if err := s.Send(event); err != nil {
		return err
	}
	if r.Id == "endless" {
		for {
			if err := s.Send(event); err != nil {
				return err
			}
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// Get waits until a Follow was cancelled.
func (a *fakeAgent) Get(ctx context.Context, r *guestv1.GetRequest) (*guestv1.GetResponse, error) {
	select {
	case <-a.cancelled:
		return &guestv1.GetResponse{Process: &guestv1.Process{Id: "cancelled"}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type fakeFiles struct {
	guestv1connect.UnimplementedFilesHandler
}

// PutTar reads everything, or nothing if the root is /stuck.
func (fakeFiles) PutTar(ctx context.Context, s *connect.ClientStream[guestv1.PutTarRequest]) (*guestv1.PutTarResponse, error) {
	n := uint64(0)
	for s.Receive() {
		if string(s.Msg().GetOpen().GetRoot()) == "/stuck" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		n += uint64(len(s.Msg().GetData()))
	}
	return &guestv1.PutTarResponse{Bytes: n}, s.Err()
}

// Dial echoes.
func (a *fakeAgent) Dial(ctx context.Context, s *connect.BidiStream[guestv1.DialRequest, guestv1.DialResponse]) error {
	for {
		r, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&guestv1.DialResponse{Data: r.GetData()}); err != nil {
			return err
		}
	}
}

// rawGuest is the protocol below guest.Client.
type rawGuest struct {
	system    guestv1connect.SystemClient
	processes guestv1connect.ProcessesClient
	files     guestv1connect.FilesClient
	dialer    guestv1connect.DialerClient
}

func guestOf(c *Client) rawGuest {
	hc := &http.Client{Transport: c.transport}
	const url = "http://guest"
	return rawGuest{guestv1connect.NewSystemClient(hc, url), guestv1connect.NewProcessesClient(hc, url),
		guestv1connect.NewFilesClient(hc, url), guestv1connect.NewDialerClient(hc, url)}
}

// testOptions are for a VM of the fake backend with its own directories.
func testOptions(t testing.TB, b *fakeBackend) Options {
	t.Helper()
	// t.TempDir is too long for a socket.
	base, err := os.MkdirTemp("", "sfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if b.Trace == "" {
		b.Trace = filepath.Join(base, "trace")
	}
	c, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Dir: filepath.Join(base, "vm"), RunDir: filepath.Join(base, "run"), InstanceID: "inst-1",
		Backend: BackendRef{Name: "test", Config: c}, Spec: backend.Spec{Name: "vm-1", Hostname: "box"},
		Deadline: time.Now().Add(time.Hour), BootTimeout: time.Minute, LogLevel: "DEBUG",
		Tuning: Tuning{StallTimeout: 500 * time.Millisecond},
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(o.Dir, logFile))
			t.Logf("supervisor.log:\n%s", log)
			log, _ = os.ReadFile(b.Trace)
			t.Logf("trace:\n%s", log)
		}
		if c, err := Dial(context.Background(), o.RunDir, o.Spec.Name); err == nil {
			c.Stop(context.Background(), "", 0)
			c.Close()
		}
		awaitGone(t, o.Dir)
	})
	return o
}

// awaitGone waits until dir's supervisor process is no more.
func awaitGone(t testing.TB, dir string) {
	t.Helper()
	for range 2000 {
		if on, err := Running(dir); err == nil && !on {
			return
		}
		time.Sleep(5 * time.Millisecond) // nothing announces the end of a process that is not ours
	}
	t.Errorf("the supervisor of %s does not end", dir)
}
