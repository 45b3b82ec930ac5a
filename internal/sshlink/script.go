package sshlink

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sandboxforge/internal/guestbin"
)

//go:embed scripts
var scripts embed.FS

func script(name string) string {
	b, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

// asRoot is the command line that runs a script as root of the guest with
// arguments. The login shell, whatever it is, sees words in single quotes only.
func asRoot(text string, args ...string) string {
	const become = `if [ "$(id -u)" = 0 ]; then exec sh -c "$@"; else exec sudo -n sh -c "$@"; fi`
	words := append([]string{"sh", "-c", become, "sh", text, "sh"}, args...)
	for i, w := range words {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return "exec " + strings.Join(words, " ")
}

// stamp identifies what an installation of b makes of a guest.
func stamp(b Binaries) string {
	h := sha256.New()
	for _, part := range []string{guestbin.Digest(b.Agent), guestbin.Digest(b.Shim), script("install.sh"), script("loop"), script("sandboxforge-agent.service")} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// files is the tar that install.sh reads.
func files(b Binaries) io.Reader {
	var buf bytes.Buffer
	buf.Grow(len(b.Agent) + len(b.Shim) + 16<<10)
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{"agent", b.Agent}, {"shim", b.Shim}, {"loop", []byte(script("loop"))},
		{"sandboxforge-agent.service", []byte(script("sandboxforge-agent.service"))},
	} {
		h := tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		// A buffer takes everything.
		w.WriteHeader(&h)  //nolint:errcheck
		w.Write(f.content) //nolint:errcheck
	}
	w.Close() //nolint:errcheck
	return &buf
}

// hello is what a guest says of itself.
type hello struct {
	arch   string // GOARCH
	stamp  string
	init   string // systemd, none
	active bool
}

// maxChatter bounds what a login may print before the guest's word.
const maxChatter = 64 << 10

// errStrange: the guest answers, and not as our command does.
var errStrange = errors.New("not our command's answer")

const helloPrefix = "sandboxforge-hello 1 "

// readHello reads up to and including the hello line, and not a byte more.
func readHello(r io.Reader) (hello, error) {
	var line []byte
	b := make([]byte, 1)
	for n := 0; n < maxChatter; n++ {
		if _, err := io.ReadFull(r, b); err != nil {
			return hello{}, err
		}
		if b[0] != '\n' {
			line = append(line, b[0])
			continue
		}
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(string(line), "\r"), helloPrefix); ok {
			return parseHello(rest)
		}
		line = line[:0]
	}
	return hello{}, fmt.Errorf("%w: the guest's login prints more than %d bytes", errStrange, maxChatter)
}

func parseHello(rest string) (hello, error) {
	f := strings.Fields(rest)
	if len(f) != 4 || len(rest) > 1024 {
		return hello{}, fmt.Errorf("%w: the guest describes itself as %.100q", errStrange, rest)
	}
	h := hello{arch: f[0], stamp: f[1], init: f[2], active: f[3] == "yes"}
	switch h.arch {
	case "x86_64":
		h.arch = "amd64"
	case "aarch64":
		h.arch = "arm64"
	}
	return h, nil
}
