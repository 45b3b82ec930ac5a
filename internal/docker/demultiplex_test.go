package docker

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

func frame(stream byte, text string) []byte {
	b := []byte{stream, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[4:], uint32(len(text)))
	return append(b, text...)
}

func TestDemultiplexSeparatesTheStreams(t *testing.T) {
	big := strings.Repeat("0123456789", 20_000)
	in := bytes.Join([][]byte{frame(1, "out "), frame(2, "err"), frame(1, ""), frame(1, big)}, nil)
	var got [3]strings.Builder
	if err := demultiplex(bytes.NewReader(in), func(s int, b []byte) { got[s].Write(b) }); err != nil {
		t.Fatal(err)
	}
	if got[1].String() != "out "+big || got[2].String() != "err" {
		t.Errorf("%d bytes of stdout, stderr %q", got[1].Len(), got[2].String())
	}
	for cut := 1; cut < len(frame(2, "err")); cut++ {
		if err := demultiplex(bytes.NewReader(frame(2, "err")[:cut]), func(int, []byte) {}); err == nil {
			t.Errorf("a stream cut after %d bytes passed", cut)
		}
	}
}

// FuzzDemultiplex: whatever a guest sends, no more is handed on than came, and
// nothing for another stream.
func FuzzDemultiplex(f *testing.F) {
	f.Add(frame(1, "hello"))
	f.Add(append(frame(2, "a"), 3, 0, 0, 0, 0, 0, 0, 1, 'x'))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255, 'x'})
	f.Fuzz(func(t *testing.T, in []byte) {
		n := 0
		_ = demultiplex(bytes.NewReader(in), func(s int, b []byte) {
			if s != StreamStdout && s != StreamStderr {
				t.Fatalf("stream %d", s)
			}
			n += len(b)
		})
		if n > len(in) {
			t.Fatalf("%d bytes out of %d", n, len(in))
		}
	})
}

// FuzzParseProject: what Compose prints in the guest is taken for names only.
func FuzzParseProject(f *testing.F) {
	f.Add([]byte(`{"name":"p","services":{"a":{"networks":{"default":null}},"b":{"network_mode":"host"}}}`), "net")
	f.Fuzz(func(t *testing.T, in []byte, network string) {
		p, err := ParseProject(in)
		if err != nil {
			return
		}
		over := p.Bridge(network)
		if over == nil {
			return
		}
		again, err := ParseProject(over)
		if err != nil {
			t.Fatalf("the overlay %s is no project: %v", over, err)
		}
		for name, s := range again.Services {
			if was, ok := p.Services[name]; !ok || was.NetworkMode != "" {
				t.Fatalf("the overlay adds %q", name)
			}
			if len(s.Networks) < 2 {
				t.Fatalf("%q loses its networks: %v", name, s.Networks)
			}
		}
	})
}
