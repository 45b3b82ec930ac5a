package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"net"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// streamPair is a raw stream in memory: two unix-socket-like ends with room for
// stale bytes.
func streamPair(t testing.TB) (host, guest *bufferedEnd) {
	t.Helper()
	a, b := NewBuffer(1<<20), NewBuffer(1<<20)
	return &bufferedEnd{r: a, w: b}, &bufferedEnd{r: b, w: a}
}

type bufferedEnd struct {
	r, w *Buffer
}

func (e *bufferedEnd) Read(p []byte) (int, error)  { return e.r.Read(p) }
func (e *bufferedEnd) Write(p []byte) (int, error) { return e.w.Write(p) }
func (e *bufferedEnd) Close() error {
	e.r.Close(net.ErrClosed)
	e.w.CloseWrite(io.EOF)
	return nil
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestRoundTrip(t *testing.T) {
	host, guest := streamPair(t)
	l := NewListener(guest)
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(c, c)
		c.Close()
	})
	c, err := Dial(testContext(t), host)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 3<<20)
	rand.New(rand.NewSource(1)).Read(data)
	for i := 0; i < len(data); i += 100_000 {
		copy(data[i:], magic) // content that looks like frames
	}
	copy(data[300_000:], appendFrame(nil, frame{typ: typeHello, session: 7, payload: []byte{version, 0}}))
	wg.Go(func() { c.Write(data) })
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatal("data differs")
	}
	c.Close()
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("write after close: %v", err)
	}
}

func TestPayloadNeverContainsMagic(t *testing.T) {
	p := bytes.Repeat(magic, 3)
	var enc []byte
	frames := 0
	for len(p) > 0 {
		n := splitPayload(p)
		if n <= 0 || bytes.Contains(p[:n], magic) {
			t.Fatalf("split at %d", n)
		}
		enc = appendFrame(enc, frame{typ: typeData, session: 1, payload: p[:n]})
		p = p[n:]
		frames++
	}
	if got := bytes.Count(enc, magic); got != frames {
		t.Fatalf("%d magics in %d frames", got, frames)
	}
}

// TestDecoderResyncs lets the decoder read frames with garbage, cut frames and
// damaged frames between them, in reads of every size.
func TestDecoderResyncs(t *testing.T) {
	good := func(seq uint32) []byte {
		return appendFrame(nil, frame{typ: typeData, session: 9, seq: seq, payload: bytes.Repeat([]byte{byte(seq)}, 500)})
	}
	damaged := good(99)
	damaged[headerSize+10] ^= 1
	huge := good(98)
	huge[11] = 0xff
	for name, junk := range map[string][]byte{
		"none":                nil,
		"noise":               []byte("some old bytes"),
		"half a magic":        magic[:4],
		"a magic":             magic,
		"a cut header":        good(50)[:20],
		"a cut payload":       good(50)[:headerSize+100],
		"a cut at the end":    good(50)[:headerSize+499],
		"the tail of a frame": good(50)[200:],
		"a damaged frame":     damaged,
		"an impossible size":  huge,
	} {
		t.Run(name, func(t *testing.T) {
			stream := append(append(append([]byte{}, junk...), good(1)...), junk...)
			stream = append(stream, good(2)...)
			for _, r := range []io.Reader{bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream)), iotest.HalfReader(bytes.NewReader(stream))} {
				d := newDecoder(r)
				var got []uint32
				for {
					f, err := d.next()
					if errors.Is(err, errGarbage) {
						continue
					}
					if err != nil {
						break
					}
					got = append(got, f.seq)
				}
				if diff := cmp.Diff([]uint32{1, 2}, got); diff != "" {
					t.Fatal(diff)
				}
			}
		})
	}
}

// TestDamageEndsTheSession flips single bits of a running session's stream.
func TestDamageEndsTheSession(t *testing.T) {
	for bit := range (headerSize + 20) * 8 {
		host, guest := streamPair(t)
		l := NewListener(guest)
		enc := appendFrame(nil, frame{typ: typeHello, session: 3, payload: []byte{version, 0}})
		data := appendFrame(nil, frame{typ: typeData, session: 3, payload: []byte("twenty bytes of data")})
		data[bit/8] ^= 1 << (bit % 8)
		more := appendFrame(nil, frame{typ: typeData, session: 3, seq: 1, payload: []byte("more")})
		host.Write(append(append(enc, data...), more...))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if err == nil || len(b) != 0 {
			t.Fatalf("bit %d: read %q, %v", bit, b, err)
		}
		l.Close()
	}
}

func TestNewSessionReplacesOld(t *testing.T) {
	host, guest := streamPair(t)
	l := NewListener(guest)
	defer l.Close()
	first, err := dialAccept(t, host, l)
	if err != nil {
		t.Fatal(err)
	}
	// A host process that dies leaves bytes of half a frame behind.
	host.Write(appendFrame(nil, frame{typ: typeData, session: uint64(first.RemoteAddr().(addr)), payload: make([]byte, 1000)})[:700])
	again := &bufferedEnd{r: host.r, w: host.w}
	second, err := dialAccept(t, again, l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, ErrReset) && !errors.Is(err, ErrBroken) {
		t.Fatalf("old session: %v", err)
	}
	second.Close()
}

func dialAccept(t *testing.T, host io.ReadWriteCloser, l *Listener) (guest net.Conn, err error) {
	t.Helper()
	ch := make(chan error, 1)
	go func() {
		_, err := Dial(testContext(t), host)
		ch <- err
	}()
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	return c, <-ch
}

func TestGuestRestartIsNoticed(t *testing.T) {
	host, guest := streamPair(t)
	l := NewListener(guest)
	go l.Accept()
	c, err := Dial(testContext(t), host)
	if err != nil {
		t.Fatal(err)
	}
	// A new agent on the same port.
	l2 := NewListener(&bufferedEnd{r: guest.r, w: guest.w})
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrReset) {
		t.Fatalf("read: %v", err)
	}
	c.Close()
	l2.Close()
	l.Close()
}

func TestDialGivesUp(t *testing.T) {
	host, _ := streamPair(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cause := errors.New("enough")
	ctx, cancelCause := context.WithCancelCause(ctx)
	cancelCause(cause)
	defer cancel()
	if _, err := Dial(ctx, host); !errors.Is(err, cause) {
		t.Fatalf("err = %v", err)
	}
	if _, err := host.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("stream left open: %v", err)
	}
}

func TestReadDeadline(t *testing.T) {
	host, guest := streamPair(t)
	l := NewListener(guest)
	defer l.Close()
	go l.Accept()
	c, err := Dial(testContext(t), host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	var ne net.Error
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, &ne) || !ne.Timeout() {
		t.Fatalf("err = %v", err)
	}
}

// FuzzDecoder: whatever bytes come, the decoder ends, never returns a frame
// whose checksum is wrong, and finds a valid frame that follows.
func FuzzDecoder(f *testing.F) {
	frames := appendFrame(nil, frame{typ: typeHello, session: 1, payload: []byte{version, 0}})
	frames = appendFrame(frames, frame{typ: typeData, session: 1, payload: []byte("abc")})
	f.Add(frames)
	f.Add(frames[5:])
	f.Add(append(append([]byte{}, magic...), frames...))
	f.Fuzz(func(t *testing.T, junk []byte) {
		last := appendFrame(nil, frame{typ: typeClose, session: 0xfeedbeef, seq: 77, payload: []byte("last")})
		d := newDecoder(bytes.NewReader(append(junk, last...)))
		found := false
		for steps := 0; ; steps++ {
			fr, err := d.next()
			if errors.Is(err, errGarbage) {
				if steps > 2*len(junk)+10 {
					t.Fatal("no progress")
				}
				continue
			}
			if err != nil {
				break
			}
			found = fr.session == 0xfeedbeef && fr.seq == 77
		}
		if !found {
			t.Fatal("the frame after the junk was not found")
		}
	})
}

// FuzzListener: the guest's end never panics or hangs on what the host sends.
func FuzzListener(f *testing.F) {
	frames := appendFrame(nil, frame{typ: typeHello, session: 1, payload: []byte{version, 0}})
	frames = appendFrame(frames, frame{typ: typeData, session: 1, payload: []byte("abc")})
	f.Add(appendFrame(frames, frame{typ: typeClose, session: 1}))
	f.Add(append(frames, frames...))
	f.Fuzz(func(t *testing.T, in []byte) {
		host, guest := streamPair(t)
		l := NewListener(guest)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { io.Copy(io.Discard, c); c.Close() })
			}
		})
		host.Write(in)
		host.w.CloseWrite(io.EOF)
		wg.Wait()
		l.Close()
	})
}

func BenchmarkThroughput(b *testing.B) {
	host, guest := streamPair(b)
	l := NewListener(guest)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(io.Discard, c)
		}
	}()
	c, err := Dial(testContext(b), host)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 128<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}
