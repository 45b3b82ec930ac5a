package qemu

import (
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// running is one QEMU with its console being read.
type running struct {
	process *process
	console *console
	monitor net.Conn // host's end of QMP; nil when the machine has none
	network net.Conn // host's end of the card; nil when the machine has none
	log     *boundedLog

	host   []net.Conn // our ends
	reader sync.WaitGroup
}

// handles are the descriptors that only a VM has, not a trial.
type handles struct {
	lock  *os.File // holds vm.lock
	agent *os.File // listening socket
	state *os.File // what a saved state is read from; nil: none
}

// launch starts QEMU for m. The descriptors in h stay the caller's to close.
// On success, the console is read until end, or until QEMU is gone.
func launch(bin string, m machine, dir string, h *handles, log *boundedLog) (_ *running, err error) {
	r := &running{console: newConsole(""), log: log}
	if h != nil {
		r.console.path = dir + "/" + consoleFile
	}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			for _, c := range r.host {
				c.Close()
			}
		}
	}()
	pair := func() (*os.File, net.Conn, error) {
		f, c, err := socketPair()
		if err == nil {
			theirs, r.host = append(theirs, f), append(r.host, c)
		}
		return f, c, err
	}
	monitor, control, err := pair()
	if err != nil {
		return nil, err
	}
	serial, output, err := pair()
	if err != nil {
		return nil, err
	}
	inherit := []*os.File{nil, monitor, serial} // in the order of the fd constants
	if h != nil {
		card, network, err := pair()
		if err != nil {
			return nil, err
		}
		inherit = []*os.File{h.lock, monitor, serial, h.agent, card}
		if h.state != nil {
			inherit = append(inherit, h.state)
		}
		r.monitor, r.network = control, network
	}
	if r.process, err = startProcess(bin, m.args(), dir, inherit, log); err != nil {
		return nil, err
	}
	r.reader.Go(func() { r.console.readFrom(output) })
	return r, nil
}

// end kills QEMU if it runs, and waits for it and for the end of its console.
func (r *running) end() {
	r.process.kill()
	r.wait()
}

// wait blocks until QEMU has ended and all its output is taken in.
func (r *running) wait() {
	<-r.process.exited
	r.reader.Wait()
	for _, c := range r.host {
		c.Close()
	}
	r.log.Close()
}

// socketPair returns QEMU's end and ours.
func socketPair() (*os.File, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs, ours := os.NewFile(uintptr(fds[0]), "qemu"), os.NewFile(uintptr(fds[1]), "host")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return theirs, c, nil
}

// newTailLog keeps only the end of what QEMU prints, in memory.
func newTailLog() *boundedLog { return &boundedLog{} }
