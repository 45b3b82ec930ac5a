package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRetryEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		errs   []error // the last one repeats
		calls  int
		result error
	}{
		{"at once", []error{nil}, 1, nil},
		{"interrupted", []error{unix.EINTR, unix.EINTR, nil}, 3, nil},
		{"busy for a moment", []error{unix.EAGAIN, unix.EAGAIN, nil}, 3, nil},
		{"another error", []error{unix.EAGAIN, unix.ENOENT}, 2, unix.ENOENT},
		{"busy without end", []error{unix.EAGAIN}, busyTries, unix.EAGAIN},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			_, err := retry(func() (int, error) {
				calls++
				return 0, c.errs[min(calls, len(c.errs))-1]
			})
			if calls != c.calls || !errors.Is(err, c.result) {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
	}
}

// A process of the guest can hold a lease on a file and never give it up.
func TestLeasedFile(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "leased"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("no leases here: ", err)
	}
	tree, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.close()
	if fd, err := tree.open("leased", unix.O_RDONLY|unix.O_NONBLOCK, 0); !errors.Is(err, unix.EAGAIN) {
		unix.Close(fd)
		t.Errorf("%v", err)
	}
}
