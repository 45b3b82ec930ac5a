package host

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestThisMachineHasResources(t *testing.T) {
	if m, err := MemoryAvailable(); err != nil || m < 1<<20 {
		t.Errorf("MemoryAvailable = %d, %v", m, err)
	}
	free, err := DiskFree(filepath.Join(t.TempDir(), "not", "made", "yet"))
	if err != nil || free <= 0 {
		t.Errorf("DiskFree of a directory to come = %d, %v", free, err)
	}
	mine := make([]byte, 8<<20)
	for i := range mine {
		mine[i] = 1
	}
	defer runtime.KeepAlive(mine)
	// The kernel's counters lag behind by some pages for each processor.
	if ProcessPrivate(os.Getpid()) < 4<<20 || ProcessPSS(os.Getpid()) < 1<<20 {
		t.Error("this process uses no memory?")
	}
	if ProcessPrivate(1<<30) != 0 || ProcessPSS(1<<30) != 0 {
		t.Error("a process that is not there uses memory")
	}
}

func TestKibibytes(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal: 1 kB\nMemAvailable:   12 kB\n": 12 << 10,
		"MemAvailable: x kB\n":                    -1,
		"MemTotal: 1 kB\n":                        -1,
		"":                                        -1,
	} {
		n, err := kibibytes([]byte(text), "MemAvailable:")
		if err != nil {
			n = -1
		}
		if n != want {
			t.Errorf("%q: %d, want %d", text, n, want)
		}
	}
}
