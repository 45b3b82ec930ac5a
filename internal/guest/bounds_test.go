package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"sandboxforge/internal/guest/guestv1"
)

// flood is a guest that answers without end, or with too much at once.
type flood struct {
	liarFiles
	tree  *guestv1.TreeResponse
	tar   *guestv1.GetTarResponse
	fails error
}

func (f flood) Tree(ctx context.Context, _ *guestv1.TreeRequest, s *connect.ServerStream[guestv1.TreeResponse]) error {
	for f.tree != nil && ctx.Err() == nil {
		if err := s.Send(f.tree); err != nil {
			return err
		}
	}
	return f.fails
}

func (f flood) GetTar(ctx context.Context, _ *guestv1.GetTarRequest, s *connect.ServerStream[guestv1.GetTarResponse]) error {
	for ctx.Err() == nil {
		if err := s.Send(f.tar); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f flood) Stat(context.Context, *guestv1.StatRequest) (*guestv1.StatResponse, error) {
	return nil, f.fails
}

// TestFloodingGuest: no call lets a guest make the host hold without bound.
func TestFloodingGuest(t *testing.T) {
	t.Run("reports", func(t *testing.T) {
		reports := make([]string, 1000)
		for i := range reports {
			reports[i] = strings.Repeat("s", 250)
		}
		c := clientOf(t, flood{tar: &guestv1.GetTarResponse{Skipped: reports}})
		s, err := c.GetTar(t.Context(), GetTar{Root: "/", MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := io.Copy(io.Discard, s); !errors.Is(err, ErrProtocol) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("names", func(t *testing.T) {
		c := clientOf(t, flood{tree: &guestv1.TreeResponse{Entries: []*guestv1.Entry{{Path: []byte("x"), Type: 3, LinkTarget: bytes.Repeat([]byte("t"), 16<<20)}}}})
		var err error
		for _, err = range c.Tree(t.Context(), TreeRequest{Root: "/"}) {
		}
		if !errors.Is(err, ErrTruncated) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("parts", func(t *testing.T) {
		// An empty entry is two bytes.
		bomb := func(n int) []byte { return bytes.Repeat([]byte{0x0a, 0}, n) }
		if err := (codec{}).Unmarshal(bomb(maxParts+1), &guestv1.TreeResponse{}); !errors.Is(err, errParts) {
			t.Errorf("a flat bomb: %v", err)
		}
		if err := (codec{}).Unmarshal(bomb(maxParts), &guestv1.TreeResponse{}); err != nil {
			t.Errorf("as many as are allowed: %v", err)
		}
		nested, err := proto.Marshal(&guestv1.GlobResponse{Matches: []*guestv1.GlobMatch{{Pattern: "p"}}})
		if err != nil {
			t.Fatal(err)
		}
		match := nested[2:]
		for range maxParts {
			match = append(match, 0x12, 0) // entries of a match
		}
		nested = append([]byte{0x0a}, append(varint(len(match)), match...)...)
		if err := (codec{}).Unmarshal(nested, &guestv1.GlobResponse{}); !errors.Is(err, errParts) {
			t.Errorf("a nested bomb: %v", err)
		}
	})
}

// TestLongErrors: what a guest says in an error is bounded and does nothing to
// a terminal, whatever the kind of call and of error.
func TestLongErrors(t *testing.T) {
	for _, size := range []int{100, 64 << 10, 8 << 20} {
		for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
			c := clientOf(t, flood{fails: connect.NewError(code, errors.New(strings.Repeat("\x1b[31mE\u009b\x00", size/8)))})
			_, unary := c.Stat(t.Context(), "/x", false)
			var stream error
			for _, stream = range c.Tree(t.Context(), TreeRequest{Root: "/"}) {
			}
			for what, err := range map[string]error{"call": unary, "stream": stream} {
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("%s with %v of %d bytes: %T", what, code, size, err)
				}
				if what == "stream" && size > maxErrorBytes && !errors.Is(err, ErrProtocol) {
					t.Errorf("a stream that ended with %d bytes: %v", size, err)
				}
				if s := e.Error(); len(s) > maxText+200 || strings.IndexFunc(s, unicode.IsControl) >= 0 {
					t.Errorf("%s with %v of %d bytes: %d bytes, %.60q", what, code, size, len(s), s)
				}
			}
		}
	}
}

// TestImpossibleSizes: what does not fit a signed size is refused where it
// comes in.
func TestImpossibleSizes(t *testing.T) {
	const big = 1<<63 + 5
	for name, ev := range map[string]*guestv1.FollowResponse{
		"offset": {Event: &guestv1.FollowResponse_Output{Output: &guestv1.Output{Stream: 1, Offset: big, Dropped: big}}},
		"total":  {Event: &guestv1.FollowResponse_Ended{Ended: &guestv1.Process{Id: "p", Status: 2, StdoutBytes: big}}},
	} {
		c := lyingClient(t, &liar{follow: []*guestv1.FollowResponse{ev}})
		if _, err := c.Follow(t.Context(), "p", Offsets{}, nil); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, r := range map[string]*guestv1.ReadResponse{
		"offset": {Offset: big, NextOffset: big}, "total": {TotalBytes: big}, "dropped": {Dropped: big},
		"more than asked for": {Data: make([]byte, 11), NextOffset: 11, TotalBytes: 11},
	} {
		if _, err := lyingClient(t, &liar{read: r}).Read(t.Context(), "p", ReadRequest{Stream: Stdout, MaxBytes: 10}); !errors.Is(err, ErrProtocol) {
			t.Errorf("read with %s: %v", name, err)
		}
	}
}

// FuzzEnvelopes: the watch over a stream's envelopes never changes what passes
// it, however the stream is cut, and never lets a long end message begin.
func FuzzEnvelopes(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 3, 'a', 'b', 'c', 2, 0, 0, 0, 2, '{', '}'}, 1)
	f.Add([]byte{2, 0xff, 0, 0, 0, 'x'}, 4)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		e := &envelopes{ReadCloser: io.NopCloser(bytes.NewReader(b))}
		got, err := io.ReadAll(readerOf{e, max(1, cut&0xff)})
		if !bytes.HasPrefix(b, got) || err == nil && len(got) != len(b) {
			t.Fatalf("%d of %d bytes passed: %v", len(got), len(b), err)
		}
	})
}

// readerOf reads at most n bytes at once.
type readerOf struct {
	r io.Reader
	n int
}

func (r readerOf) Read(p []byte) (int, error) { return r.r.Read(p[:min(r.n, len(p))]) }

func varint(n int) []byte {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}
