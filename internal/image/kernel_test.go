package image

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"testing"

	"github.com/klauspost/compress/zstd"
)

const elf = "\x7fELF the unpacked kernel"

// bzImage makes the parts of a bzImage that the boot protocol names.
func bzImage(payload []byte) []byte {
	const setup = 4 // sectors
	k := make([]byte, (setup+1)*512+64)
	k[0x1f1] = setup
	copy(k[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(k[0x248:], 64)
	binary.LittleEndian.PutUint32(k[0x24c:], uint32(len(payload)+4))
	k = append(k, payload...)
	return binary.LittleEndian.AppendUint32(k, uint32(len(elf)))
}

func zstdOf(t testing.TB, s string) []byte {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll([]byte(s), nil)
}

func gzipOf(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.Bytes()
}

func zboot(payload []byte) []byte {
	k := make([]byte, 128)
	copy(k, "MZ\x00\x00zimg")
	binary.LittleEndian.PutUint32(k[8:], 128)
	binary.LittleEndian.PutUint32(k[12:], uint32(len(payload)))
	copy(k[24:], "gzip")
	return append(k, payload...)
}

func TestBootKernel(t *testing.T) {
	for name, c := range map[string]struct {
		arch     string
		packaged []byte
		want     string // "" = an error
	}{
		"bzImage, zstd":              {"amd64", bzImage(zstdOf(t, elf)), elf},
		"bzImage, gzip":              {"amd64", bzImage(gzipOf(elf)), elf},
		"bzImage, unknown packing":   {"amd64", bzImage([]byte("LZMA....")), string(bzImage([]byte("LZMA....")))},
		"bzImage, not an ELF":        {"amd64", bzImage(gzipOf("something else")), ""},
		"bzImage, broken payload":    {"amd64", bzImage(gzipOf(elf)[:12]), ""},
		"bzImage, payload outside":   {"amd64", bzImage(gzipOf(elf))[:0x260], ""},
		"not a bzImage":              {"amd64", []byte(elf), elf},
		"zboot, gzip":                {"arm64", zboot(gzipOf("Image")), "Image"},
		"zboot, payload outside":     {"arm64", zboot(gzipOf("Image"))[:120], ""},
		"gzipped Image":              {"arm64", gzipOf("Image"), "Image"},
		"plain Image":                {"arm64", []byte("MZ plain"), "MZ plain"},
		"an architecture of its own": {"riscv64", []byte("x"), "x"},
	} {
		got, err := bootKernel(c.arch, c.packaged)
		if (err != nil) != (c.want == "") || err == nil && string(got) != c.want {
			t.Errorf("%s: got %.40q, %v", name, got, err)
		}
	}
}

func FuzzBootKernel(f *testing.F) {
	f.Add(true, bzImage(gzipOf(elf)))
	f.Add(true, bzImage(zstdOf(f, elf)))
	f.Add(false, zboot(gzipOf("Image")))
	f.Fuzz(func(t *testing.T, x86 bool, k []byte) {
		arch := "arm64"
		if x86 {
			arch = "amd64"
		}
		got, err := bootKernel(arch, k)
		if err == nil && got == nil && len(k) > 0 {
			t.Fatal("neither a kernel nor an error")
		}
	})
}
