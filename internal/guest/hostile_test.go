package guest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/guest/guestv1/guestv1connect"
)

// liar answers what each test wants.
type liar struct {
	follow []*guestv1.FollowResponse
	read   *guestv1.ReadResponse
	entry  *guestv1.Entry
	put    *guestv1.PutTarResponse
}

func (l *liar) Follow(_ context.Context, _ *guestv1.FollowRequest, s *connect.ServerStream[guestv1.FollowResponse]) error {
	for _, m := range l.follow {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (l *liar) Read(context.Context, *guestv1.ReadRequest) (*guestv1.ReadResponse, error) {
	return l.read, nil
}

// liarFiles shows the liar's other half.
type liarFiles struct {
	guestv1connect.UnimplementedFilesHandler
	l *liar
}

func (l liarFiles) Read(context.Context, *guestv1.ReadFileRequest) (*guestv1.ReadFileResponse, error) {
	return &guestv1.ReadFileResponse{}, nil
}

func (l liarFiles) Tree(_ context.Context, _ *guestv1.TreeRequest, s *connect.ServerStream[guestv1.TreeResponse]) error {
	return s.Send(&guestv1.TreeResponse{Entries: []*guestv1.Entry{l.l.entry}})
}

func (l liarFiles) Stat(context.Context, *guestv1.StatRequest) (*guestv1.StatResponse, error) {
	return &guestv1.StatResponse{Entry: l.l.entry}, nil
}

func (l liarFiles) PutTar(_ context.Context, s *connect.ClientStream[guestv1.PutTarRequest]) (*guestv1.PutTarResponse, error) {
	for s.Receive() {
	}
	return l.l.put, s.Err()
}

func lyingClient(t *testing.T, l *liar) *Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewProcessesHandler(&liarProcs{l}))
	mux.Handle(guestv1connect.NewFilesHandler(liarFiles{l: l}))
	return muxClient(t, mux)
}

// clientOf returns a client of a guest that knows files only.
func clientOf(t *testing.T, files guestv1connect.FilesHandler) *Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewFilesHandler(files))
	return muxClient(t, mux)
}

func muxClient(t *testing.T, mux http.Handler) *Client {
	t.Helper()
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	tr := &http.Transport{Protocols: srv.Config.Protocols}
	t.Cleanup(tr.CloseIdleConnections)
	return NewClient(rewrite{tr, srv.Listener.Addr().String()})
}

// liarProcs shows the liar's process half only.
type liarProcs struct{ l *liar }

func (p *liarProcs) Start(context.Context, *guestv1.StartRequest) (*guestv1.StartResponse, error) {
	return &guestv1.StartResponse{}, nil
}
func (p *liarProcs) Follow(ctx context.Context, r *guestv1.FollowRequest, s *connect.ServerStream[guestv1.FollowResponse]) error {
	return p.l.Follow(ctx, r, s)
}
func (p *liarProcs) Run(context.Context, *guestv1.RunRequest, *connect.ServerStream[guestv1.FollowResponse]) error {
	return nil
}
func (p *liarProcs) Attach(context.Context, *connect.BidiStream[guestv1.AttachRequest, guestv1.FollowResponse]) error {
	return nil
}
func (p *liarProcs) Read(ctx context.Context, r *guestv1.ReadRequest) (*guestv1.ReadResponse, error) {
	return p.l.Read(ctx, r)
}
func (p *liarProcs) Get(context.Context, *guestv1.GetRequest) (*guestv1.GetResponse, error) {
	return &guestv1.GetResponse{Process: &guestv1.Process{Id: "other", Status: 1}}, nil
}
func (p *liarProcs) List(context.Context, *guestv1.ListRequest) (*guestv1.ListResponse, error) {
	return &guestv1.ListResponse{Processes: []*guestv1.Process{{Id: "x", Status: 99}}}, nil
}
func (p *liarProcs) Signal(context.Context, *guestv1.SignalRequest) (*guestv1.SignalResponse, error) {
	return &guestv1.SignalResponse{}, nil
}
func (p *liarProcs) Forget(context.Context, *guestv1.ForgetRequest) (*guestv1.ForgetResponse, error) {
	return &guestv1.ForgetResponse{}, nil
}

type rewrite struct {
	rt   http.RoundTripper
	host string
}

func (r rewrite) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = r.host
	return r.rt.RoundTrip(req)
}

func TestLyingGuest(t *testing.T) {
	ctx := t.Context()
	running := &guestv1.Process{Id: "p", Status: guestv1.ProcessStatus_PROCESS_STATUS_RUNNING}
	exited := &guestv1.Process{Id: "p", Status: guestv1.ProcessStatus_PROCESS_STATUS_EXITED}
	output := func(stream guestv1.Stream, off, dropped uint64, data string) *guestv1.FollowResponse {
		return &guestv1.FollowResponse{Event: &guestv1.FollowResponse_Output{Output: &guestv1.Output{Stream: stream, Offset: off, Dropped: dropped, Data: []byte(data)}}}
	}
	ended := func(p *guestv1.Process) *guestv1.FollowResponse {
		return &guestv1.FollowResponse{Event: &guestv1.FollowResponse_Ended{Ended: p}}
	}
	for name, events := range map[string][]*guestv1.FollowResponse{
		"no end":               {output(1, 0, 0, "x")},
		"ended but running":    {ended(running)},
		"another process":      {ended(&guestv1.Process{Id: "q", Status: 2})},
		"no process":           {ended(nil)},
		"no event":             {{}},
		"backwards":            {output(1, 0, 0, "abc"), output(1, 1, 0, "bc"), ended(exited)},
		"a silent gap":         {output(1, 0, 0, "abc"), output(1, 9, 0, "x"), ended(exited)},
		"a gap too large":      {output(1, 0, 0, "abc"), output(1, 9, 7, "x"), ended(exited)},
		"no such stream":       {output(3, 0, 0, "abc"), ended(exited)},
		"offset overflow":      {output(1, 1<<64-1, 1<<64-1, "abc"), ended(exited)},
		"more dropped than is": {ended(&guestv1.Process{Id: "p", Status: 2, StdoutDropped: 5})},
	} {
		t.Run("follow/"+name, func(t *testing.T) {
			c := lyingClient(t, &liar{follow: events})
			if _, err := c.Follow(ctx, "p", Offsets{}, nil); !errors.Is(err, ErrProtocol) {
				t.Fatalf("err = %v", err)
			}
		})
	}
	c := lyingClient(t, &liar{follow: []*guestv1.FollowResponse{output(1, 0, 0, "abc"), output(2, 5, 5, ""), output(1, 9, 6, "x"), ended(exited)}})
	if _, err := c.Follow(ctx, "p", Offsets{}, nil); err != nil {
		t.Fatalf("an honest guest: %v", err)
	}

	for _, path := range []string{"", ".//x", "/abs", "..", "../x", "a/../../x", "a/", "a\x00b", "a//b", "./a"} {
		l := &liar{entry: &guestv1.Entry{Path: []byte(path), Type: 1}, put: &guestv1.PutTarResponse{Entries: []*guestv1.Entry{{Path: []byte(path), Type: 1}}}}
		c := lyingClient(t, l)
		var err error
		for _, err = range c.Tree(ctx, TreeRequest{Root: "/"}) {
		}
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("tree %q: %v", path, err)
		}
		if _, err = c.PutTar(ctx, PutTar{Root: "/"}, http.NoBody); !errors.Is(err, ErrProtocol) {
			t.Errorf("put %q: %v", path, err)
		}
	}
	for name, e := range map[string]*guestv1.Entry{
		"relative": {Path: []byte("x"), Type: 1}, "type": {Path: []byte("/x"), Type: 9}, "size": {Path: []byte("/x"), Type: 1, Size: 1 << 63},
		"hash": {Path: []byte("/x"), Type: 1, Sha256: []byte("short")}, "mode": {Path: []byte("/x"), Type: 1, Mode: 0o10000}, "none": nil,
	} {
		if _, err := lyingClient(t, &liar{entry: e}).Stat(ctx, "/x", false); !errors.Is(err, ErrProtocol) {
			t.Errorf("stat %s: %v", name, err)
		}
	}
	for name, r := range map[string]*guestv1.ReadResponse{
		"next": {Data: []byte("abc"), Offset: 5, NextOffset: 9}, "before": {Data: []byte("abc"), Offset: 1, NextOffset: 4},
		"large": {Data: make([]byte, 2<<20), Offset: 5, NextOffset: 5 + 2<<20},
	} {
		if _, err := lyingClient(t, &liar{read: r}).Read(ctx, "p", ReadRequest{Stream: Stdout, Offset: 5}); !errors.Is(err, ErrProtocol) {
			t.Errorf("read %s: %v", name, err)
		}
	}
	c = lyingClient(t, &liar{read: &guestv1.ReadResponse{Data: make([]byte, maxAnswer+1)}})
	if _, err := c.Read(ctx, "p", ReadRequest{Stream: Stdout}); !errors.Is(err, ErrProtocol) {
		t.Errorf("oversized message: %v", err)
	}
	if _, err := c.Get(ctx, "p", 0); !errors.Is(err, ErrProtocol) {
		t.Errorf("get: %v", err)
	}
	if _, err := c.List(ctx); !errors.Is(err, ErrProtocol) {
		t.Errorf("list: %v", err)
	}
	if _, _, err := c.Start(ctx, "p", Spec{}); !errors.Is(err, ErrProtocol) {
		t.Errorf("start: %v", err)
	}
}
