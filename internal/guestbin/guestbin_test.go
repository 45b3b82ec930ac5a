package guestbin

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
	"testing/fstest"

	"sandboxforge/internal/fault"
)

func zip(t *testing.T, plain string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write([]byte(plain)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestLoad(t *testing.T) {
	packed := zip(t, "an executable")
	from := fstest.MapFS{
		"bin/agent-linux-amd64.gz": {Data: packed},
		"bin/agent-linux-arm64.gz": {Data: packed[:len(packed)-3]},
		"bin/init-linux-amd64.gz":  {Data: []byte("no gzip")},
	}
	for _, c := range []struct{ name, arch, plain, remedy string }{
		{"agent", "amd64", "an executable", ""},
		{"agent", "arm64", "", "remove internal/guestbin/bin"},
		{"init", "amd64", "", "remove internal/guestbin/bin"},
		{"init", "arm64", "", "make build"},
		{"agent", "riscv64", "", "make build"},
	} {
		got, err := load(from, c.name, c.arch)
		if string(got) != c.plain || (err == nil) != (c.remedy == "") {
			t.Errorf("%s %s: got %q, %v", c.name, c.arch, got, err)
		}
		if err != nil && !strings.Contains(strings.Join(fault.From(err).NextSteps, " "), c.remedy) {
			t.Errorf("%s %s: remedy %q lacks %q", c.name, c.arch, fault.From(err).NextSteps, c.remedy)
		}
	}
}

func TestDigest(t *testing.T) {
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got := Digest([]byte("abc")); got != abc {
		t.Errorf("Digest(abc) = %s", got)
	}
}
