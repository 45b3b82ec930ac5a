package sshlink

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestReadHello(t *testing.T) {
	for in, want := range map[string]hello{
		"sandboxforge-hello 1 x86_64 abc systemd yes\nrest":                          {"amd64", "abc", "systemd", true},
		"Welcome!\n\x1b[31mnoise\nsandboxforge-hello 1 aarch64 none none no\r\nrest": {"arm64", "none", "none", false},
		"sandboxforge-hello 1 riscv64 none systemd maybe\nrest":                      {"riscv64", "none", "systemd", false},
	} {
		r := strings.NewReader(in)
		got, err := readHello(r)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "rest" {
			t.Errorf("%q: the relay's bytes became %q", in, rest)
		}
	}
	for _, in := range []string{"", "hello\n", "sandboxforge-hello 1 x\n", "sandboxforge-hello 2 x86_64 a b yes\n", strings.Repeat("x", maxChatter+1), "sandboxforge-hello 1 " + strings.Repeat("a", 2000) + " b c d\n"} {
		if h, err := readHello(strings.NewReader(in)); err == nil {
			t.Errorf("%.40q: %+v", in, h)
		}
	}
}

func FuzzReadHello(f *testing.F) {
	f.Add([]byte("noise\nsandboxforge-hello 1 x86_64 abc systemd yes\nrest"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		h, err := readHello(r)
		if read := len(in) - r.Len(); read > maxChatter {
			t.Errorf("%d bytes of chatter were read", read)
		}
		if err == nil && (h.arch == "" || strings.ContainsAny(h.arch+h.stamp+h.init, " \n")) {
			t.Errorf("%q: %+v", in, h)
		}
	})
}

func FuzzClip(f *testing.F) {
	f.Add([]byte("sudo: a password\x00 is\n required\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &clip{}
		c.Write(in)
		c.Write(in)
		if s := c.String(); len(s) > maxClip || strings.ContainsAny(s, "\n\r\x00\x1b") {
			t.Errorf("%q", s)
		}
	})
}

// TestAsRoot: a login shell hands every word on as it is.
func TestAsRoot(t *testing.T) {
	line := asRoot(`echo "it's" $1`, "a b", "$(c)", "'")
	for _, want := range []string{`'echo "it'\''s" $1'`, "'a b'", "'$(c)'", `''\'''`} {
		if !strings.Contains(line, want) {
			t.Errorf("%s lacks %s", line, want)
		}
	}
}
