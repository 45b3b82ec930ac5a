package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rootDevice finds the block device of the root file system and its size.
func rootDevice() (path string, size uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return "", 0, err
	}
	major, minor := unix.Major(st.Dev), unix.Minor(st.Dev)
	if major == 0 {
		return "", 0, errors.New("the root file system is on no block device")
	}
	sys := fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)
	b, err := os.ReadFile(sys + "/size")
	if err != nil {
		return "", 0, err
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return "", 0, err
	}
	uevent, err := os.ReadFile(sys + "/uevent")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(uevent)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return "/dev/" + name, sectors * 512, nil
		}
	}
	return "", 0, errors.New("the root device has no name")
}

// superblock is what is needed of an ext4 superblock.
type superblock struct{ blocks, blockSize uint64 }

func readSuperblock(device string) (superblock, error) {
	f, err := os.Open(device)
	if err != nil {
		return superblock{}, err
	}
	defer f.Close()
	b := make([]byte, 1024)
	if _, err := f.ReadAt(b, 1024); err != nil {
		return superblock{}, err
	}
	return parseSuperblock(b)
}

func parseSuperblock(b []byte) (superblock, error) {
	le := binary.LittleEndian
	if len(b) < 1024 || le.Uint16(b[56:]) != 0xef53 {
		return superblock{}, errors.New("not an ext4 file system")
	}
	logSize := le.Uint32(b[24:])
	if logSize > 6 {
		return superblock{}, errors.New("not an ext4 file system: impossible block size")
	}
	s := superblock{blocks: uint64(le.Uint32(b[4:])), blockSize: 1024 << logSize}
	if le.Uint32(b[96:])&0x80 != 0 { // 64bit
		s.blocks |= uint64(le.Uint32(b[336:])) << 32
	}
	return s, nil
}

func ext4Size(device string) (uint64, error) {
	s, err := readSuperblock(device)
	return s.blocks * s.blockSize, err
}

// growRoot grows the mounted root file system to its device by the kernel's
// own call; no tool is needed in the guest.
func growRoot() error {
	device, size, err := rootDevice()
	if err != nil {
		return err
	}
	s, err := readSuperblock(device)
	if err != nil {
		return fmt.Errorf("%s: %w", device, err)
	}
	want := size / s.blockSize
	if want <= s.blocks {
		return nil
	}
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	const ext4IocResizeFS = 0x40086610 // _IOW('f', 16, __u64)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), ext4IocResizeFS, uintptr(unsafe.Pointer(&want))); errno != 0 {
		return fmt.Errorf("growing %s to %d blocks: %w", device, want, errno)
	}
	return nil
}
