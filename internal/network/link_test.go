package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
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
