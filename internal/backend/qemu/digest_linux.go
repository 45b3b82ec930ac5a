package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// digestFile is a digest of a file's data and of where it lies; holes cost
// nothing. A block of zeros that lies in a hole in one file and on the disk in
// another one makes different digests: it is for one file that may be damaged,
// not for copies.
func digestFile(ctx context.Context, path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	err = dataExtents(f, func(off, end int64) error {
		var at [16]byte
		binary.BigEndian.PutUint64(at[:], uint64(off))
		binary.BigEndian.PutUint64(at[8:], uint64(end))
		h.Write(at[:])
		for off < end {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n, err := f.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
			if n == 0 {
				return errors.Join(err, io.ErrUnexpectedEOF)
			}
			h.Write(buf[:n])
			off += int64(n)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// dataExtents calls fn for each stretch of a file that is not a hole.
func dataExtents(f *os.File, fn func(off, end int64) error) error {
	for off := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		if err := fn(data, hole); err != nil {
			return err
		}
		off = hole
	}
}
