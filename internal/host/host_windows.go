package host

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

func diskFree(path string) (int64, error) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, nil, nil); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", path, err)
	}
	return int64(free), nil
}

var globalMemoryStatusEx = windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")

// MemoryAvailable is the physical memory that Windows calls available
// (ullAvailPhys of MEMORYSTATUSEX).
func MemoryAvailable() (int64, error) {
	var st struct {
		length, load                                             uint32
		totalPhys, availPhys, totalPage, availPage, totalV, avlV uint64
		availExtended                                            uint64
	}
	st.length = uint32(unsafe.Sizeof(st))
	if r, _, err := globalMemoryStatusEx.Call(uintptr(unsafe.Pointer(&st))); r == 0 {
		return 0, fmt.Errorf("GlobalMemoryStatusEx: %w", err)
	}
	return int64(st.availPhys), nil
}

// ProcessPSS is not told by this system.
func ProcessPSS(int) int64 { return 0 }

// ProcessPrivate is not told cheaply by this system.
func ProcessPrivate(int) int64 { return 0 }
