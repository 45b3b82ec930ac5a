//go:build linux

package limactl

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// fakeGuest is a guest that lives in its hypervisor's process: an sshd that
// knows the commands of package sshlink by what they contain, and whose agent
// answers "who" with the guest's boot id.
type fakeGuest struct {
	bootID string
	stamp  string // file that outlives the boot, as a disk does

	mu     sync.Mutex
	active bool
	relay  ssh.Channel // the newest
}

// driver is the hypervisor of the fake guest.
func driver(c command) error {
	dir := dirOf(c.args[0])
	off := make(chan os.Signal, 1)
	signal.Notify(off, syscall.SIGTERM)
	if err := os.WriteFile(filepath.Join(dir, "serial.log"), []byte("the fake guest boots\n"), 0o600); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+c.args[1])
	if err != nil {
		return err
	}
	pub, err := os.ReadFile(filepath.Join(home(), "_config", "user.pub"))
	if err != nil {
		return err
	}
	want, _, _, _, err := ssh.ParseAuthorizedKey(pub)
	if err != nil {
		return err
	}
	conf := &ssh.ServerConfig{PublicKeyCallback: func(m ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if m.User() != "lima" || !bytes.Equal(key.Marshal(), want.Marshal()) {
			return nil, errors.New("not this key")
		}
		return nil, nil
	}}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	host, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	conf.AddHostKey(host)
	g := &fakeGuest{bootID: fmt.Sprintf("%x", host.PublicKey().Marshal()[20:36]), stamp: filepath.Join(dir, "guest-stamp")}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.serve(c, conf)
		}
	}()
	<-off
	return nil
}

func (g *fakeGuest) serve(c net.Conn, conf *ssh.ServerConfig) {
	conn, channels, requests, err := ssh.NewServerConn(c, conf)
	if err != nil {
		c.Close()
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for n := range channels {
		ch, reqs, err := n.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range reqs {
				var exec struct{ Command string }
				ok := r.Type == "exec" && ssh.Unmarshal(r.Payload, &exec) == nil
				r.Reply(ok, nil)
				if ok {
					go g.command(ch, exec.Command)
				}
			}
		}()
	}
}

// stampOf finds the stamp among an installation's arguments: root, stamp, and
// two digests, of 64 digits each.
var stampOf = regexp.MustCompile(`'([0-9a-f]{64})' '[0-9a-f]{64}' '[0-9a-f]{64}'$`)

func (g *fakeGuest) command(ch ssh.Channel, text string) {
	defer ch.Close()
	exit := func(code byte) { ch.SendRequest("exit-status", false, []byte{0, 0, 0, code}) }
	switch {
	case strings.Contains(text, "sandboxforge-hello"):
		stamp := "none"
		if b, err := os.ReadFile(g.stamp); err == nil {
			stamp = string(b)
		}
		g.mu.Lock()
		active := map[bool]string{true: "yes", false: "no"}[g.active]
		g.mu.Unlock()
		fmt.Fprintf(ch, "sandboxforge-hello 1 %s %s none %s\n", hostArch(), stamp, active)
		r := bufio.NewReader(ch)
		if word, err := r.ReadString('\n'); err != nil || word != "relay\n" {
			return
		}
		g.mu.Lock()
		if g.relay != nil {
			g.relay.Close()
		}
		g.relay = ch
		g.mu.Unlock()
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line == "who\n" {
				line = g.bootID + "\n"
			}
			if _, err := io.WriteString(ch, line); err != nil {
				return
			}
		}
	case stampOf.MatchString(text):
		io.Copy(io.Discard, ch)
		if err := os.WriteFile(g.stamp, []byte(stampOf.FindStringSubmatch(text)[1]), 0o600); err != nil {
			exit(1)
			return
		}
	}
	// Each installation ends with a start.
	g.mu.Lock()
	g.active = true
	g.mu.Unlock()
	exit(0)
}
