package sshlink

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/guestbin"
)

// Config says how to reach a guest. Address or Dial, User, Signer, and HostKeys
// or FirstUse are needed.
type Config struct {
	// Address is host:port of the guest's sshd.
	Address string
	// Dial opens the transport instead, for guests whose address must be asked
	// for each time.
	Dial func(ctx context.Context) (net.Conn, error)
	// User logs in with Signer and must become root with sudo without a
	// password, unless it is root.
	User   string
	Signer ssh.Signer
	// HostKeys are the keys of which the guest must show one.
	HostKeys []ssh.PublicKey
	// FirstUse is asked about the key of a guest for which HostKeys is empty:
	// nil pins it for the life of the Link, an error refuses it. The caller
	// records it.
	FirstUse func(ssh.PublicKey) error
	// HostKeyGrace is how long another key than the pinned one is taken for a
	// guest that has not got its keys yet, from the first such key on: it is
	// refused all the same, and asked again. 0: it is the end of the attempt.
	HostKeyGrace time.Duration
	// Binaries returns the executables for a guest's architecture, a GOARCH
	// name. Nil: those of this build.
	Binaries func(arch string) (Binaries, error)
	// Progress is told what an installation does; must not block; may be nil.
	Progress func(stage, message string)
	// Root is a directory that the guest's paths begin with, and Service false
	// for one without a service manager; for tests.
	Root string
}

// Binaries are what is installed.
type Binaries struct{ Agent, Shim []byte }

// Bounds of one attempt; a guest under emulation and load is slow.
const (
	handshakeLimit = 30 * time.Second
	helloLimit     = 60 * time.Second
	installLimit   = 5 * time.Minute
	minPause       = 100 * time.Millisecond
	maxPause       = 2 * time.Second
)

func (c Config) check() error {
	switch {
	case c.Address == "" && c.Dial == nil:
		return fmt.Errorf("sshlink: neither an address nor a way to dial")
	case c.User == "" || c.Signer == nil:
		return fmt.Errorf("sshlink: no user or no key to log in with")
	case len(c.HostKeys) == 0 && c.FirstUse == nil:
		return fmt.Errorf("sshlink: neither a pinned host key nor a decision about the first one")
	}
	return nil
}

func (c Config) report(stage, message string) {
	if c.Progress != nil {
		c.Progress(stage, message)
	}
}

func (c Config) binaries(arch string) (Binaries, error) {
	if c.Binaries != nil {
		return c.Binaries(arch)
	}
	agent, err := guestbin.Agent(arch)
	if err != nil {
		return Binaries{}, err
	}
	shim, err := guestbin.Shim(arch)
	return Binaries{agent, shim}, err
}

func (c Config) dial(ctx context.Context) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial(ctx)
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	return d.DialContext(ctx, "tcp", c.Address)
}
