package host

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PeerProcess finds the process of this machine that holds the other end of a
// TCP connection, and the path of its executable. The error is ErrPeerUnknown,
// or wraps it, where there is none to be seen; on other platforms it wraps
// errors.ErrUnsupported.
//
// A call reads the kernel's table of sockets and the descriptors of the
// processes that this one may look at: ask once per connection. Those of likely
// are looked at first, which saves the rest if one of them it is.
func PeerProcess(conn net.Conn, likely ...int) (pid int, exe string, err error) {
	// Seen from the peer, its own address is the one that is remote here.
	local, remote := addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())
	if !local.IsValid() || !remote.IsValid() {
		return 0, "", fmt.Errorf("%w: %s is no TCP address", ErrPeerUnknown, conn.RemoteAddr())
	}
	// The table is read in pieces, between which it changes: a line can be
	// missed on a busy machine, but hardly each time.
	var sockets map[string]bool
	for try := 0; try < 3 && len(sockets) == 0; try++ {
		sockets, err = socketsWhere(func(s tcpSocket) bool { return s.local == local && s.remote == remote })
		if err != nil {
			return 0, "", fmt.Errorf("%w: %w", ErrPeerUnknown, err)
		}
	}
	pid, ok := holderOf(sockets, likely)
	if !ok {
		return 0, "", ErrPeerUnknown
	}
	exe, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return 0, "", fmt.Errorf("%w: %w", ErrPeerUnknown, err)
	}
	// What the kernel adds where the file was replaced, as an upgrade does.
	return pid, strings.TrimSuffix(exe, " (deleted)"), nil
}

// PortHolder is the process that listens on a TCP port of this machine, and the
// name of its program; pid is 0 if that cannot be told.
func PortHolder(port int) (name string, pid int) {
	sockets, err := socketsWhere(func(s tcpSocket) bool { return s.listens && int(s.local.Port()) == port })
	if err != nil {
		return "", 0
	}
	pid, ok := holderOf(sockets, nil)
	if !ok {
		return "", 0
	}
	// The kernel's name for it has 15 letters at most.
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		return strings.TrimSuffix(filepath.Base(exe), " (deleted)"), pid
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "", 0
	}
	return strings.TrimSpace(string(comm)), pid
}

func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return plain(t.AddrPort())
}

// plain brings both families' spellings of an address together.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// tcpSocket is a line of /proc/net/tcp or tcp6.
type tcpSocket struct {
	local, remote netip.AddrPort
	listens       bool
	inode         uint64 // 0: no process holds it any more
}

// socketsWhere returns the inodes of the sockets that keep is true for.
func socketsWhere(keep func(tcpSocket) bool) (map[string]bool, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if os.IsNotExist(err) && table == "/proc/net/tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		err = readSockets(f, func(s tcpSocket) {
			if s.inode != 0 && keep(s) {
				inodes["socket:["+strconv.FormatUint(s.inode, 10)+"]"] = true
			}
		})
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return inodes, nil
}

func readSockets(r io.Reader, each func(tcpSocket)) error {
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		if s, ok := parseSocket(sc.Text()); ok {
			each(s)
		}
	}
	return sc.Err()
}

// parseSocket reads a line; the heading is none.
func parseSocket(line string) (tcpSocket, bool) {
	const local, remote, state, inode = 1, 2, 3, 9
	f := strings.Fields(line)
	if len(f) <= inode {
		return tcpSocket{}, false
	}
	l, ok1 := parseAddrPort(f[local])
	r, ok2 := parseAddrPort(f[remote])
	n, err := strconv.ParseUint(f[inode], 10, 64)
	return tcpSocket{local: l, remote: r, listens: f[state] == "0A", inode: n}, ok1 && ok2 && err == nil
}

// parseAddrPort reads an address as the kernel prints it: 32-bit words in the
// machine's order, and the port as a number.
func parseAddrPort(s string) (netip.AddrPort, bool) {
	words, hexPort, _ := strings.Cut(s, ":")
	port, err := strconv.ParseUint(hexPort, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(words)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return plain(netip.AddrPortFrom(a, uint16(port))), ok
}

// holderOf finds a process that has one of the sockets open. A process whose
// descriptors may not be read is passed over.
func holderOf(inodes map[string]bool, likely []int) (pid int, ok bool) {
	if len(inodes) == 0 {
		return 0, false
	}
	for _, pid := range likely {
		if holds(pid, inodes) {
			return pid, true
		}
	}
	procs, err := os.Open("/proc")
	if err != nil {
		return 0, false
	}
	defer procs.Close()
	names, err := procs.Readdirnames(-1)
	if err != nil {
		return 0, false
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && holds(pid, inodes) {
			return pid, true
		}
	}
	return 0, false
}

func holds(pid int, inodes map[string]bool) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	fds, err := d.Readdirnames(-1)
	if err != nil && len(fds) == 0 {
		return false
	}
	for _, fd := range fds {
		if link, err := os.Readlink(filepath.Join(dir, fd)); err == nil && inodes[link] {
			return true
		}
	}
	return false
}
