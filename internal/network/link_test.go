package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"
)

// TestLongFrames: a frame that is too long is dropped and the link goes on; a
// length that no hypervisor sends ends it.
func TestLongFrames(t *testing.T) {
	c := &counters{}
	l := newLink(DefaultMTU, c, func(verdict, packet) {})
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := l.run(ctx, ours)
		ended <- err
	}()
	send := func(frame []byte) {
		t.Helper()
		if _, err := theirs.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
			t.Fatal(err)
		}
	}
	send(make([]byte, frameLimit+1))
	send(make([]byte, placeLimit))
	ask := appendEthernet(nil, typeARP)
	copy(ask, broadcastMAC[:])
	copy(ask[6:], guestMAC[:])
	gateway, guest := GatewayAddress.As4(), GuestAddress.As4()
	ask = append(ask, 0, 1, 8, 0, 6, 4, 0, 1)
	ask = append(append(ask, guestMAC[:]...), guest[:]...)
	ask = append(append(ask, make([]byte, 6)...), gateway[:]...)
	send(ask)
	answer := make([]byte, 4+ethernetHeader+arpBody)
	if _, err := io.ReadFull(theirs, answer); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(answer[4:10], guestMAC[:]) || c.filtered[dropMalformed].Load() != 2 || c.framesIn.Load() != 3 {
		t.Errorf("answered %x; %d dropped of %d", answer, c.filtered[dropMalformed].Load(), c.framesIn.Load())
	}
	if _, err := theirs.Write(binary.BigEndian.AppendUint32(nil, placeLimit+1)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the link goes on without its place")
	}
}

// levels is a log that keeps nothing but the lines above Debug.
type levels struct {
	slog.Handler
	lines chan string
}

func (l levels) Enabled(_ context.Context, at slog.Level) bool { return at > slog.LevelDebug }

func (l levels) Handle(_ context.Context, r slog.Record) error {
	l.lines <- r.Level.String()
	return nil
}

// TestLinkLoss: a link that stays away is worth one warning and a line when it
// is back, one that ends just before its machine's end is worth nothing.
func TestLinkLoss(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Hour} {
		noLeaks(t)
		lines := make(chan string, 100)
		n, err := New(Config{Resolver: noResolver{}, Log: slog.New(levels{slog.DiscardHandler, lines})})
		if err != nil {
			t.Fatal(err)
		}
		n.patience = patience
		ctx, cancel := context.WithCancel(t.Context())
		dials := make(chan net.Conn) // each dial's; nil fails
		served := make(chan error, 1)
		go func() {
			served <- n.Serve(ctx, func(ctx context.Context) (net.Conn, error) {
				select {
				case c := <-dials:
					if c != nil {
						return c, nil
					}
					return nil, errors.New("nobody there")
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
		}()
		ours, theirs := net.Pipe()
		dials <- ours
		theirs.Close()
		for range 3 {
			dials <- nil
		}
		ours, theirs = net.Pipe()
		dials <- ours
		// Connected now, whatever is to be said of the past was said.
		eventually(t, "the link is back", func() bool { return n.Stats().Connects == 2 && n.Stats().Connected })
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		theirs.Close()
		n.Close()
		close(lines)
		var got []string
		for l := range lines {
			got = append(got, l)
		}
		want := []string{"WARN", "INFO"}
		if patience > 0 {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("with a patience of %v the log has %q, want %q", patience, got, want)
		}
	}
}
