package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"sandboxforge/internal/backends"
	"sandboxforge/internal/host"
)

// peers decides whose HTTP connections are served. A hypervisor with a network of
// its own can reach the loopback of this machine, and what comes from there looks
// like a program of this machine in everything but the process that holds the
// connection.
type peers struct {
	log    *slog.Logger
	token  bool         // every request must carry one
	told   map[int]bool // processes that were logged; 0 stands for unknown ones
	recent []int        // the last peers, the newest first: a guest that calls all the time costs little
	lookup func(conn net.Conn, likely ...int) (pid int, exe string, err error)
}

const maxRecent = 8

func newPeers(log *slog.Logger, token bool) *peers {
	return &peers{log: log, token: token, told: map[int]bool{}, lookup: host.PeerProcess}
}

// refuse implements mcpserver.Options.RefusePeer. What cannot be identified is
// served only where a token settles who it is: it may be another user's VM, or
// a VM that has let go of its end after sending.
func (p *peers) refuse(conn net.Conn) string {
	pid, exe, err := p.lookup(conn, p.recent...)
	if err == nil && !slices.Contains(p.recent, pid) {
		p.recent = slices.Insert(p.recent, 0, pid)
		p.recent = p.recent[:min(len(p.recent), maxRecent)]
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return "" // no backend of this platform has a network that gets here
	case err != nil && p.token:
		return ""
	case err != nil:
		p.tell(0, "a connection to the HTTP endpoint was refused: its process has ended or cannot be identified, and without a token only programs of this user are served; "+
			"for programs of other users set MCP_HTTP_TOKEN", "peer", conn.RemoteAddr().String(), "reason", err.Error())
		return err.Error()
	case backends.IsHypervisor(exe):
		p.tell(pid, "a connection to the HTTP endpoint was refused: it comes from a hypervisor, so from code inside a VM", "pid", pid, "executable", exe)
		return fmt.Sprintf("pid %d is %s", pid, exe)
	}
	return ""
}

// tell warns once for each process: a guest must not fill the log.
func (p *peers) tell(pid int, msg string, args ...any) {
	if p.told[pid] || len(p.told) >= 1000 {
		return
	}
	p.told[pid] = true
	p.log.Warn(msg, args...)
}
