//go:build unix

package supervisor

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const needsPrivateMode = true

func ownedByUs(st fs.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// takeStdout moves the process's standard output to a descriptor that is ours
// alone and puts standard error in its place: a write to a broken pipe on
// descriptor 1 would kill the process, and children must not get the pipe.
func takeStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if err := dup2(2, 1); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "status"), nil
}

// redirectStdio points standard output and error at f.
func redirectStdio(f *os.File) error {
	if err := dup2(int(f.Fd()), 1); err != nil {
		return err
	}
	return dup2(int(f.Fd()), 2)
}
