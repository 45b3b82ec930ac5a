package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/link"
)

// dialBuffer is what a dialled connection holds for a reader that is late;
// HTTP/2 holds more.
const dialBuffer = 256 << 10

// DialContext connects to a socket inside the guest; network is tcp or unix. It
// fits http.Transport.DialContext. ctx governs the dialling only.
//
// The connection has CloseWrite. A write deadline that passes ends it.
func (c *Client) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	const op = "dial"
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := c.dialer.Dial(sctx)
	if err == nil {
		// The transport does not look at ctx while it waits for more of a request.
		context.AfterFunc(sctx, func() { stream.CloseRequest() }) //nolint:errcheck // cancelled
		err = stream.Send(&guestv1.DialRequest{Event: &guestv1.DialRequest_Open{Open: &guestv1.DialOpen{Network: network, Address: address}}})
	}
	if err == nil || errors.Is(err, io.EOF) {
		_, err = stream.Receive()
		if errors.Is(err, io.EOF) {
			err = protocolError(op, "an empty answer")
		}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, fail(ctx, op, false, err)
	}
	d := &dialled{stream: stream, ctx: sctx, cancel: cancel, in: link.NewBuffer(dialBuffer), addr: dialAddr{network, address}, done: make(chan struct{})}
	go d.pump()
	return d, nil
}

// dialled is a connection to a socket in the guest.
type dialled struct {
	stream *connect.BidiStreamForClientSimple[guestv1.DialRequest, guestv1.DialResponse]
	ctx    context.Context
	cancel context.CancelFunc
	in     *link.Buffer
	addr   dialAddr
	done   chan struct{}

	wmu     sync.Mutex
	wclosed bool

	tmu      sync.Mutex
	timer    *time.Timer
	deadline time.Time // of writes
}

// pump moves what comes into the buffer; it ends with the stream.
func (d *dialled) pump() {
	defer close(d.done)
	for {
		m, err := d.stream.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				d.in.CloseWrite(io.EOF)
			} else {
				d.in.CloseWrite(fail(d.ctx, "read from the guest's socket", false, err))
			}
			return
		}
		if _, err := d.in.Write(m.Data); err != nil {
			return
		}
	}
}

func (d *dialled) Read(p []byte) (int, error) { return d.in.Read(p) }

func (d *dialled) Write(p []byte) (int, error) {
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if d.wclosed {
		return 0, net.ErrClosed
	}
	d.tmu.Lock()
	late := !d.deadline.IsZero() && !time.Now().Before(d.deadline)
	d.tmu.Unlock()
	if late {
		return 0, os.ErrDeadlineExceeded
	}
	const most = 64 << 10
	for total := 0; ; {
		n := min(len(p)-total, most)
		if n == 0 {
			return total, nil
		}
		err := d.stream.Send(&guestv1.DialRequest{Event: &guestv1.DialRequest_Data{Data: p[total : total+n]}})
		if err != nil {
			if errors.Is(err, io.EOF) {
				return total, io.ErrClosedPipe
			}
			return total, fail(d.ctx, "write to the guest's socket", true, err)
		}
		total += n
	}
}

// CloseWrite shuts down the writing side.
func (d *dialled) CloseWrite() error {
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if d.wclosed {
		return nil
	}
	d.wclosed = true
	return d.stream.CloseRequest()
}

// Close ends the connection at once.
func (d *dialled) Close() error {
	d.in.Close(net.ErrClosed)
	d.cancel()
	d.SetWriteDeadline(time.Time{}) //nolint:errcheck // never fails
	<-d.done
	d.stream.CloseResponse() //nolint:errcheck // cancelled
	return nil
}

func (d *dialled) LocalAddr() net.Addr  { return dialAddr{d.addr.network, "host"} }
func (d *dialled) RemoteAddr() net.Addr { return d.addr }

func (d *dialled) SetDeadline(t time.Time) error {
	d.in.SetReadDeadline(t)
	return d.SetWriteDeadline(t)
}

func (d *dialled) SetReadDeadline(t time.Time) error {
	d.in.SetReadDeadline(t)
	return nil
}

func (d *dialled) SetWriteDeadline(t time.Time) error {
	d.tmu.Lock()
	defer d.tmu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.deadline = t
	if !t.IsZero() && d.ctx.Err() == nil {
		// Only a write that waits is cut off: it holds the lock.
		d.timer = time.AfterFunc(time.Until(t), func() {
			if !d.wmu.TryLock() {
				d.cancel()
				return
			}
			d.wmu.Unlock()
		})
	}
	return nil
}

type dialAddr struct{ network, address string }

func (a dialAddr) Network() string { return a.network }
func (a dialAddr) String() string  { return a.address }
