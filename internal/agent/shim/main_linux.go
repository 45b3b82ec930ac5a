package shim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main runs a shim and returns its exit code. Job comes on descriptor 3.
func Main() int {
	unix.CloseOnExec(3)
	child, err := beReady()
	if err != nil {
		return 1
	}
	body, err := readJob(3)
	if err != nil {
		return 1
	}
	j, stdin, err := decodeJob(body)
	if err != nil {
		return 1
	}
	s := &shim{job: j, child: child, pidfd: -1}
	if err := s.start(stdin); err != nil {
		st := Started{Error: err.Error(), Exist: errors.Is(err, errExists)}
		writeAll(3, message(MsgStarted, st))
		return 1
	}
	s.serve()
	return 0
}

// beReady does, while the shim waits for its job, what no job changes, and goes
// once through the coding of messages: what a fresh process touches for the
// first time is slow, above all under emulation.
func beReady() (child int, err error) {
	unix.Umask(0o022)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, os.NewSyscallError("pipe", err)
	}
	go func() { // ends with the process
		for range ch {
			unix.Write(p[1], []byte{0}) //nolint:errcheck // full is as good
		}
	}()
	// Not ignored, which the process would inherit: caught and dropped.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	// Orphans of the process stay below the shim: they can be found where
	// there is no cgroup.
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) //nolint:errcheck // a refinement
	if b, err := EncodeJob(&Job{Argv: []string{"/"}, Env: []string{"A=B"}, Groups: []uint32{1}, Meta: []byte("{}")}, nil); err == nil {
		decodeJob(b[5:]) //nolint:errcheck // practice
	}
	message(MsgStarted, Started{PID: 1})
	message(MsgExited, Status{PID: 1})
	return p[0], nil
}

var errExists = errors.New("the process id is taken")

func readJob(fd int) ([]byte, error) {
	_, body, err := ReadMessage(fdReader(fd))
	return body, err
}

type fdReader int

func (fd fdReader) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 && err == nil && len(p) > 0 {
			return 0, os.ErrClosed
		}
		return max(n, 0), err
	}
}

func writeAll(fd int, b []byte) {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		b = b[n:]
	}
}

func message(typ byte, v any) []byte {
	b, _ := json.Marshal(v) //nolint:errchkjson // plain structs
	return AppendMessage(nil, typ, b)
}

type shim struct {
	job   *Job
	state *State
	out   [2]source
	stdin input
	pid   int

	listen int
	conns  []*control
	child  int // read end of the SIGCHLD pipe
	// pidfd tells of the process's end at once: a signal waits until the
	// runtime has taken the processor back from the poll, which takes up to
	// 10 ms. -1 where the kernel has none, and after the end.
	pidfd int
	tty   int // master, or -1

	ended    bool
	wait     unix.WaitStatus
	timedOut bool
	deadline time.Time
	execErr  string
}

// source is where one stream comes from.
type source struct {
	fd int // -1 when it ended
	sp *spool
}

// input is the process's standard input as far as the shim feeds it.
type input struct {
	fd    int // -1: closed or not ours
	queue []byte
	close bool // after the queue
	pty   bool
}

// control is a connection of an agent.
type control struct {
	fd  int
	in  []byte
	out []byte
}

// maxQueue bounds standard input that waits for the process.
const maxQueue = 1 << 20

// start makes the files and starts the process. A process that can't be
// executed is a process that ended; an error means that nothing was made.
func (s *shim) start(stdin []byte) error {
	j := s.job
	if err := os.Mkdir(j.SpoolDir, 0o711); err != nil {
		if errors.Is(err, os.ErrExist) {
			return errExists
		}
		return err
	}
	if err := s.prepare(); err != nil {
		os.RemoveAll(j.SpoolDir)
		return err
	}
	pid, err := s.spawn(stdin)
	if err != nil {
		s.execErr = err.Error()
		s.ended = true
		s.wait = 126 << 8
		if errors.Is(err, unix.ENOENT) {
			s.wait = 127 << 8
		}
	}
	s.pid = pid
	s.state.PID.Store(uint32(pid))
	if j.TimeoutNS > 0 {
		s.deadline = time.Now().Add(time.Duration(j.TimeoutNS))
	}
	c := &control{fd: 3, out: message(MsgStarted, Started{PID: pid})}
	unix.SetNonblock(3, true) //nolint:errcheck // a socket
	s.conns = append(s.conns, c)
	s.flush(c)
	if s.ended {
		s.finish()
	}
	return nil
}

// prepare makes the socket before the files that announce it.
func (s *shim) prepare() error {
	j := s.job
	var err error
	if s.listen, err = Listen(j.RunDir, j.ID); err != nil {
		return err
	}
	if s.state, err = MapState(filepath.Join(j.SpoolDir, "state"), true); err != nil {
		return err
	}
	for i, name := range []string{"stdout", "stderr"} {
		path := filepath.Join(j.SpoolDir, name)
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o640)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		if !j.KeepUser {
			// The user may read its own output, not change it.
			unix.Fchown(fd, -1, int(j.GID)) //nolint:errcheck // it stays root's
		}
		s.out[i] = source{fd: -1, sp: newSpool(fd, &s.state.Streams[i], j.SpoolLimit)}
	}
	return writeFile(filepath.Join(j.SpoolDir, "meta"), j.Meta)
}

// spawn starts the process with its three descriptors.
func (s *shim) spawn(stdin []byte) (int, error) {
	j := s.job
	attr := &syscall.SysProcAttr{Setsid: true, PidFD: &s.pidfd}
	if !j.KeepUser {
		attr.Credential = &syscall.Credential{Uid: j.UID, Gid: j.GID, Groups: j.Groups}
	}
	var theirs []int
	defer func() {
		for _, fd := range theirs {
			unix.Close(fd)
		}
	}()
	var files [3]uintptr
	s.stdin.fd, s.tty = -1, -1
	if j.TTY {
		master, slave, err := openPTY(j.Rows, j.Cols)
		if err != nil {
			return 0, err
		}
		theirs = append(theirs, slave)
		s.own(slave)
		unix.SetNonblock(master, true) //nolint:errcheck // a terminal
		s.tty, s.out[0].fd = master, master
		s.stdin = input{fd: master, queue: stdin, pty: true, close: !j.StdinOpen && j.HasStdin}
		files = [3]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
		attr.Setctty, attr.Ctty = true, 0
	} else {
		in, err := s.openStdin(stdin)
		if err != nil {
			return 0, err
		}
		theirs = append(theirs, in)
		files[0] = uintptr(in)
		for i := range s.out {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return 0, err
			}
			theirs = append(theirs, p[1])
			s.own(p[1])
			unix.SetNonblock(p[0], true)                           //nolint:errcheck // a pipe
			unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<18) //nolint:errcheck // a refinement
			s.out[i].fd = p[0]
			files[i+1] = uintptr(p[1])
		}
	}
	if j.Cgroup != "" {
		if err := os.Mkdir(j.Cgroup, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return 0, err
		}
		fd, err := unix.Open(j.Cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, &os.PathError{Op: "open", Path: j.Cgroup, Err: err}
		}
		defer unix.Close(fd)
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	restore := resetOOM()
	defer restore()
	pid, err := syscall.ForkExec(j.Argv[0], j.Argv, &syscall.ProcAttr{Dir: j.Dir, Env: j.Env, Files: files[:], Sys: attr})
	if err != nil {
		if _, derr := os.Stat(j.Dir); j.Dir != "" && derr != nil {
			return 0, derr
		}
		return 0, &os.PathError{Op: "execute", Path: j.Argv[0], Err: err}
	}
	return pid, nil
}

// own gives a pipe or terminal to the user, who may otherwise not open
// /dev/stdout and the like.
func (s *shim) own(fd int) {
	if !s.job.KeepUser {
		unix.Fchown(fd, int(s.job.UID), int(s.job.GID)) //nolint:errcheck // a refinement
	}
}

func (s *shim) openStdin(data []byte) (int, error) {
	j := s.job
	switch {
	case j.StdinOpen:
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return 0, err
		}
		s.own(p[0])
		unix.SetNonblock(p[1], true) //nolint:errcheck // a pipe
		s.stdin = input{fd: p[1], queue: data}
		return p[0], nil
	case j.HasStdin:
		fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
		if err != nil {
			return 0, err
		}
		writeAll(fd, data)
		unix.Seek(fd, 0, 0) //nolint:errcheck // a memfd
		s.own(fd)
		return fd, nil
	default:
		return unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
}

// resetOOM lets the process start with the ordinary score where the agent and
// its shims are protected.
func resetOOM() (restore func()) {
	const path = "/proc/self/oom_score_adj"
	old, err := os.ReadFile(path)
	if err != nil || string(old) == "0\n" || os.WriteFile(path, []byte("0"), 0) != nil {
		return func() {}
	}
	return func() { os.WriteFile(path, old, 0) } //nolint:errcheck // best effort
}

// Listen binds the control socket. The directory is named by descriptor: a
// socket's path has about 100 bytes.
func Listen(dir, id string) (int, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	path := "/proc/self/fd/" + strconv.Itoa(d) + "/" + id + ".sock"
	unix.Unlink(path) //nolint:errcheck // left by a shim that was killed
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("listen", err)
	}
	return fd, nil
}

// writeFile writes a file that appears whole.
func writeFile(path string, b []byte) error {
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func openPTY(rows, cols uint16) (master, slave int, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	if err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err == nil {
		var n uint32
		if n, err = unix.IoctlGetUint32(master, unix.TIOCGPTN); err == nil {
			slave, err = unix.Open("/dev/pts/"+strconv.Itoa(int(n)), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		}
	}
	if err != nil {
		unix.Close(master)
		return -1, -1, os.NewSyscallError("openpty", err)
	}
	setWindow(master, rows, cols)
	return master, slave, nil
}

func setWindow(fd int, rows, cols uint16) {
	if rows == 0 || cols == 0 {
		rows, cols = 24, 80
	}
	unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}) //nolint:errcheck // the size is a hint
}

func (s *shim) handle(c *control, typ byte, body []byte) {
	switch typ {
	case MsgStdin:
		if s.stdin.fd >= 0 && !s.stdin.close {
			s.stdin.queue = append(s.stdin.queue, body...)
			s.feed()
		}
	case MsgStdinClose:
		s.stdin.close = true
		s.feed()
	case MsgWindow:
		if s.tty >= 0 && len(body) == 4 {
			setWindow(s.tty, binary.LittleEndian.Uint16(body), binary.LittleEndian.Uint16(body[2:]))
		}
	case MsgSignal:
		if len(body) == 3 {
			s.signal(unix.Signal(body[0]), body[1] != 0, body[2] != 0)
		}
	case MsgDiscard:
		for i := range s.out {
			s.out[i].sp.discard()
		}
	}
	_ = c
}

func (s *shim) signal(sig unix.Signal, tree, foreground bool) {
	switch {
	case tree && s.job.Cgroup != "":
		SignalCgroup(s.job.Cgroup, sig) //nolint:errcheck // nobody to tell; the caller sees who lives
	case tree:
		SignalSession(s.pid, os.Getpid(), sig)
	case s.ended:
	case foreground && s.tty >= 0:
		if pgrp, err := unix.IoctlGetInt(s.tty, unix.TIOCGPGRP); err == nil && pgrp > 0 {
			unix.Kill(-pgrp, sig) //nolint:errcheck // it may be gone
		}
	default:
		// Not reaped yet, so the pid is still the process's.
		unix.Kill(s.pid, sig) //nolint:errcheck // it may be a zombie
	}
}
