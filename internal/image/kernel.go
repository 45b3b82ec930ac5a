package image

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// bootKernel turns a packaged kernel into what QEMU boots fastest: the ELF
// image inside an x86 bzImage (entered through its PVH note, so that no
// emulated CPU decompresses it), and the plain Image inside an arm64 EFI zboot
// file (which QEMU before 8.0 cannot load). A kernel in a form that is not
// known here is returned as it is: it boots, only slower.
func bootKernel(arch string, packaged []byte) ([]byte, error) {
	switch arch {
	case "amd64":
		return fromBzImage(packaged)
	case "arm64":
		return fromZboot(packaged)
	}
	return packaged, nil
}

// fromBzImage follows Documentation/arch/x86/boot.rst: the setup header names
// the compressed payload relative to the protected-mode code.
func fromBzImage(k []byte) ([]byte, error) {
	if len(k) < 0x250 || string(k[0x202:0x206]) != "HdrS" {
		return k, nil
	}
	sectors := int(k[0x1f1])
	if sectors == 0 {
		sectors = 4
	}
	offset := (sectors+1)*512 + int(binary.LittleEndian.Uint32(k[0x248:]))
	length := int(binary.LittleEndian.Uint32(k[0x24c:]))
	if length < 4 || offset < 0 || offset+length > len(k) {
		return nil, errors.New("kernel: the payload lies outside the file")
	}
	// The last four bytes are the unpacked size.
	payload := k[offset : offset+length-4]
	elf, err := decompress(payload)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	if elf == nil {
		return k, nil
	}
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil, errors.New("kernel: the payload is not an ELF image")
	}
	return elf, nil
}

// fromZboot reads the header of a Linux EFI zboot image: "MZ\0\0zimg", payload
// offset and size, and the name of the compression.
func fromZboot(k []byte) ([]byte, error) {
	if len(k) < 64 || string(k[:2]) != "MZ" || string(k[4:8]) != "zimg" {
		if len(k) > 2 && k[0] == 0x1f && k[1] == 0x8b {
			return decompress(k)
		}
		return k, nil
	}
	offset, size := int(binary.LittleEndian.Uint32(k[8:])), int(binary.LittleEndian.Uint32(k[12:]))
	if offset < 0 || size < 0 || offset+size > len(k) {
		return nil, errors.New("kernel: the payload lies outside the file")
	}
	plain, err := decompress(k[offset : offset+size])
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	if plain == nil {
		return k, nil
	}
	return plain, nil
}

// maxKernel bounds what a kernel may unpack to, in bytes.
const maxKernel = 512 << 20

// decompress unpacks zstd and gzip; nil without an error means a format that
// is not known here.
func decompress(packed []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(packed, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return readAll(z)
	case bytes.HasPrefix(packed, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return readAll(z)
	}
	return nil, nil
}

func readAll(r io.Reader) ([]byte, error) {
	plain, err := io.ReadAll(io.LimitReader(r, maxKernel+1))
	if err == nil && len(plain) > maxKernel {
		err = errors.New("unpacks to more than 512 MiB")
	}
	return plain, err
}
