//go:build unix

package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
)

// awaitCancelled waits until a Follow ended in the guest.
func awaitCancelled(t *testing.T, c *Client) {
	t.Helper()
	if _, err := guestOf(c).processes.Get(testContext(t), &guestv1.GetRequest{}); err != nil {
		t.Fatalf("the guest's RPC was not cancelled: %v", err)
	}
}

func TestCancelReachesTheGuest(t *testing.T) {
	c := launch(t, testOptions(t, &fakeBackend{}))
	for _, id := range []string{"quiet", "endless"} {
		ctx, cancel := context.WithCancel(testContext(t))
		s, err := guestOf(c).processes.Follow(ctx, &guestv1.FollowRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		if !s.Receive() { // it runs
			t.Fatal(s.Err())
		}
		cancel()
		awaitCancelled(t, c)
		s.Close()
	}
}

func TestClientThatDies(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	var mu sync.Mutex
	var conns []net.Conn
	dying, err := Dial(testContext(t), o.RunDir, o.Spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	dial := dying.transport.DialContext
	dying.transport.CloseIdleConnections()
	dying.transport.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) {
		c, err := dial(ctx, n, a)
		mu.Lock()
		conns = append(conns, c)
		mu.Unlock()
		return c, err
	}
	s, err := guestOf(dying).processes.Follow(testContext(t), &guestv1.FollowRequest{Id: "quiet"})
	if err != nil || !s.Receive() {
		t.Fatal(err, s.Err())
	}
	mu.Lock()
	for _, c := range conns {
		c.Close() // as the kernel does for a process that was killed
	}
	mu.Unlock()
	awaitCancelled(t, c)
}

func TestFullDuplex(t *testing.T) {
	c := launch(t, testOptions(t, &fakeBackend{}))
	s, err := guestOf(c).dialer.Dial(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 100<<10)
	rand.Read(data)
	for i := range 20 {
		if err := s.Send(&guestv1.DialRequest{Event: &guestv1.DialRequest_Data{Data: data[i:]}}); err != nil {
			t.Fatal(err)
		}
		r, err := s.Receive() // before the request's end
		if err != nil || string(r.Data) != string(data[i:]) {
			t.Fatalf("echo %d: %d bytes, %v", i, len(r.GetData()), err)
		}
	}
	if err := s.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the half close: %v", err)
	}
}

// Streams that stand still, in both directions and more of them than fit in
// any one window, stop nobody else on the same connection.
func TestStalledStreamsBlockNobody(t *testing.T) {
	c := launch(t, testOptions(t, &fakeBackend{}))
	g := guestOf(c)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	for range 8 {
		s, err := g.processes.Follow(ctx, &guestv1.FollowRequest{Id: "endless"})
		if err != nil {
			t.Fatal(err)
		}
		if !s.Receive() { // and nothing more is read
			t.Fatal(s.Err())
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	full := make(chan struct{}, 8)
	for range 8 {
		wg.Go(func() {
			up, err := g.files.PutTar(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			up.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Open{Open: &guestv1.PutTarOpen{Root: []byte("/stuck")}}})
			// More than all windows on the way hold; blocks until cancelled.
			for i := 0; ; i++ {
				if i == 8 {
					full <- struct{}{}
				}
				if up.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Data{Data: make([]byte, 64<<10)}}) != nil {
					return
				}
			}
		})
	}
	for range 8 {
		<-full
	}
	for range 20 {
		if _, err := g.system.Ping(ctx, &guestv1.PingRequest{}); err != nil {
			t.Fatalf("a ping: %v", err)
		}
	}
	up, err := g.files.PutTar(ctx)
	if err != nil {
		t.Fatal(err)
	}
	up.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Open{Open: &guestv1.PutTarOpen{Root: []byte("/free")}}})
	for range 64 {
		if err := up.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Data{Data: make([]byte, 64<<10)}}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := up.CloseAndReceive(); err != nil || r.Bytes != 4<<20 {
		t.Errorf("an upload beside stalled ones: %v, %v", r, err)
	}
}

func TestFiftyClients(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	launch(t, o)
	ctx := testContext(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			c, err := Dial(ctx, o.RunDir, o.Spec.Name)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			want := fmt.Sprint(i)
			s, err := guestOf(c).dialer.Dial(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.CloseResponse()
			for range 10 {
				if err := s.Send(&guestv1.DialRequest{Event: &guestv1.DialRequest_Data{Data: []byte(want)}}); err != nil {
					t.Error(err)
					return
				}
				if r, err := s.Receive(); err != nil || string(r.Data) != want {
					t.Errorf("client %d got %q, %v", i, r.GetData(), err)
					return
				}
				if _, err := c.Status(ctx); err != nil {
					t.Error(err)
				}
			}
			s.CloseRequest()
		})
	}
	wg.Wait()
}

func TestLinkComesBack(t *testing.T) {
	c := launch(t, testOptions(t, &fakeBackend{}))
	ctx := testContext(t)
	g := guestOf(c)
	s, err := g.processes.Follow(ctx, &guestv1.FollowRequest{Id: "quiet"})
	if err != nil || !s.Receive() {
		t.Fatal(err, s.Err())
	}
	g.processes.Start(ctx, &guestv1.StartRequest{Id: "x", Spec: &guestv1.ProcessSpec{Command: "cut"}})
	if s.Receive() || s.Err() == nil {
		t.Errorf("an RPC over a link that broke ended well: %v", s.Err())
	}
	if err := c.Watch(ctx, func(st Status) bool { return !(st.AgentConnected && st.AgentConnections == 2) }); err != nil {
		t.Fatal(err)
	}
	if _, err := g.system.Ping(ctx, &guestv1.PingRequest{}); err != nil {
		t.Errorf("after the link came back: %v", err)
	}
	if st, err := c.Status(ctx); err != nil || st.State != StateReady {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestNoLinkIsUnavailable(t *testing.T) {
	o := testOptions(t, &fakeBackend{NoAgent: true})
	o.Tuning.StallTimeout = time.Minute
	ctx := testContext(t)
	c, err := Launch(ctx, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := guestOf(c).system.Ping(ctx, &guestv1.PingRequest{}); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("unary: %v", err)
	}
	s, err := guestOf(c).processes.Follow(ctx, &guestv1.FollowRequest{})
	if err == nil {
		s.Receive()
		err = s.Err()
	}
	if connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("stream: %v", err)
	}
}

// BenchmarkPing is the way of a small RPC: client, supervisor, link, agent.
func BenchmarkPing(b *testing.B) {
	c := launch(b, testOptions(b, &fakeBackend{}))
	g := guestOf(c)
	ctx := b.Context()
	for b.Loop() {
		if _, err := g.system.Ping(ctx, &guestv1.PingRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpload(b *testing.B) {
	c := launch(b, testOptions(b, &fakeBackend{}))
	up, err := guestOf(c).files.PutTar(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 64<<10)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := up.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Data{Data: data}}); err != nil {
			b.Fatal(err)
		}
	}
	up.CloseAndReceive()
}
