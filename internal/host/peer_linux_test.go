package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// dialEnv makes the test binary a peer: it dials the address, says so, and
// keeps the connection until its standard input ends.
const dialEnv = "SANDBOXFORGE_TEST_DIAL"

func TestMain(m *testing.M) {
	addr := os.Getenv(dialEnv)
	if addr == "" {
		os.Exit(m.Run())
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	io.Copy(io.Discard, os.Stdin)
	conn.Close()
}

// peer starts a copy of this binary under a name of its own.
func peer(t *testing.T, name, addr string) (path string, pid int, end func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(path, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), dialEnv+"="+addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			in.Close()
			cmd.Wait()
		}
	}
	t.Cleanup(end)
	return path, cmd.Process.Pid, end
}

func TestPeerProcess(t *testing.T) {
	for _, c := range []struct{ network, listen, dial string }{
		{"tcp4", "127.0.0.1:0", "127.0.0.1"},
		{"tcp6", "[::1]:0", "::1"},
		{"tcp", "[::]:0", "127.0.0.1"}, // one end is of the other family
	} {
		t.Run(c.network+" "+c.dial, func(t *testing.T) {
			ln, err := net.Listen(c.network, c.listen)
			if err != nil {
				t.Skip(err) // a machine without IPv6
			}
			defer ln.Close()
			path, pid, end := peer(t, "some-peer", net.JoinHostPort(c.dial, fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)))
			conn, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			got, exe, err := PeerProcess(conn)
			if err != nil || got != pid || exe != path {
				t.Errorf("pid %d, %q, %v; want %d and %q", got, exe, err, pid, path)
			}
			for _, likely := range [][]int{{pid}, {os.Getpid(), 1 << 30, -1, 0}} {
				if got, _, err := PeerProcess(conn, likely...); err != nil || got != pid {
					t.Errorf("likely %v: pid %d, %v", likely, got, err)
				}
			}
			if err := os.Remove(path); err != nil { // an upgrade while the process runs
				t.Fatal(err)
			}
			if _, exe, err = PeerProcess(conn); err != nil || exe != path {
				t.Errorf("replaced: %q, %v", exe, err)
			}
			end()
			if got, _, err := PeerProcess(conn); !errors.Is(err, ErrPeerUnknown) {
				t.Errorf("an ended peer: pid %d, %v", got, err)
			}
		})
	}
}

func TestPeerProcessOfAPipe(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, _, err := PeerProcess(a); !errors.Is(err, ErrPeerUnknown) {
		t.Error(err)
	}
}

func TestPortHolder(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if name, pid := PortHolder(port); name != filepath.Base(exe) || pid != os.Getpid() {
		t.Errorf("%q, process %d", name, pid)
	}
	ln.Close()
	if name, pid := PortHolder(port); pid != 0 {
		t.Errorf("nobody listens: %q, process %d", name, pid)
	}
}

func TestParseSocket(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		line string
		want tcpSocket
		ok   bool
	}{
		{"   0: 0100007F:223D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 200866 1 0000 100 0 0 10 0",
			tcpSocket{at("127.0.0.1:8765"), at("0.0.0.0:0"), true, 200866}, true},
		{"1: 0100007F:223D 0100007F:1F90 01 0:0 0:0 0 1000 0 7", tcpSocket{at("127.0.0.1:8765"), at("127.0.0.1:8080"), false, 7}, true},
		{"1: 0100007F:223D 0100007F:1F90 04 0:0 0:0 0 0 0 0", tcpSocket{at("127.0.0.1:8765"), at("127.0.0.1:8080"), false, 0}, true},
		{"2: 00000000000000000000000001000000:223D 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 77",
			tcpSocket{at("[::1]:8765"), at("[::]:0"), true, 77}, true},
		{"3: 0000000000000000FFFF00000100007F:223D 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0 0 0 8",
			tcpSocket{at("127.0.0.1:8765"), at("127.0.0.1:8080"), false, 8}, true},
		{"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", tcpSocket{}, false},
		{"", tcpSocket{}, false},
		{"0: garbage 0:0 0A 0:0 0:0 0 0 0 77", tcpSocket{}, false},
		{"0: 0100007F:223D 00000000:0000 0A 0:0 0:0 0 0 0 many", tcpSocket{}, false},
		{"0: 0100:223D 00000000:0000 0A 0:0 0:0 0 0 0 1", tcpSocket{}, false},
		{"0: 0100007F:1223D 00000000:0000 0A 0:0 0:0 0 0 0 1", tcpSocket{}, false},
	} {
		got, ok := parseSocket(c.line)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %+v %t", c.line, got, ok)
		}
	}
}
