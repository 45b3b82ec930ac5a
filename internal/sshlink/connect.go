package sshlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guestbin"
)

// ErrHostKey: the guest's host key is not the pinned one.
var ErrHostKey = errors.New("the guest's ssh host key is not the expected one")

// finalError ends an attempt: trying again would bring the same.
type finalError struct{ err error }

func (e finalError) Error() string { return e.err.Error() }
func (e finalError) Unwrap() error { return e.err }

// keys decides about host keys, and remembers.
type keys struct {
	cfg     *Config
	pinned  []ssh.PublicKey
	strange time.Time // when another key than a pinned one was first shown
}

func (k *keys) check(key ssh.PublicKey) error {
	raw := key.Marshal()
	for _, p := range k.pinned {
		if bytes.Equal(p.Marshal(), raw) {
			return nil
		}
	}
	if len(k.pinned) == 0 && k.cfg.FirstUse != nil {
		if err := k.cfg.FirstUse(key); err != nil {
			return finalError{fault.Wrap(errors.Join(ErrHostKey, err), fault.BackendCommandFailed, "the guest's ssh host key %s was refused", ssh.FingerprintSHA256(key))}
		}
		k.pinned = []ssh.PublicKey{key}
		return nil
	}
	err := fault.Wrap(ErrHostKey, fault.BackendCommandFailed, "the guest shows the ssh host key %s", ssh.FingerprintSHA256(key)).
		Because("something else answers at the guest's address, or the guest made itself new keys").
		Next("destroy the instance and create another one")
	if k.strange.IsZero() {
		k.strange = time.Now()
	}
	if time.Since(k.strange) < k.cfg.HostKeyGrace {
		return err
	}
	return finalError{err}
}

// algorithms asks for the pinned keys' kinds, so that a guest with several keys
// shows that one.
func (k *keys) algorithms() (all []string) {
	for _, p := range k.pinned {
		if p.Type() == ssh.KeyAlgoRSA {
			all = append(all, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		} else {
			all = append(all, p.Type())
		}
	}
	return all
}

// connect makes one ssh connection. ctx bounds the handshake.
func connect(ctx context.Context, cfg *Config, k *keys) (*ssh.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	conn, err := cfg.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	var keyErr error
	c, channels, requests, err := ssh.NewClientConn(conn, cfg.Address, &ssh.ClientConfig{
		User: cfg.User,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(cfg.Signer)},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			keyErr = k.check(key)
			return keyErr
		},
		HostKeyAlgorithms: k.algorithms(),
	})
	if !stop() && err == nil {
		c.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if keyErr != nil {
			return nil, keyErr // ssh wraps it as text
		}
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

// open makes a connection whose relay runs, with as much of an installation as
// the guest needs.
func open(ctx context.Context, cfg *Config, k *keys, want func(arch string) (string, error)) (*stream, error) {
	client, err := connect(ctx, cfg, k)
	if err != nil {
		return nil, err
	}
	s, err := establish(ctx, cfg, client, want)
	if err != nil {
		client.Close()
		return nil, err
	}
	return s, nil
}

func establish(ctx context.Context, cfg *Config, client *ssh.Client, want func(arch string) (string, error)) (*stream, error) {
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	for installed := false; ; installed = true {
		s, h, err := greet(ctx, cfg, client)
		if err != nil {
			return nil, err
		}
		wanted, err := want(h.arch)
		if err != nil {
			return nil, finalError{err}
		}
		if h.stamp == wanted && h.active {
			if _, err := io.WriteString(s.in, "relay\n"); err != nil {
				return nil, err
			}
			if !stop() {
				return nil, context.Cause(ctx)
			}
			s.dead = make(chan struct{})
			go func() { client.Wait(); close(s.dead) }() // ends with the connection
			return s, nil
		}
		s.session.Close()
		if installed {
			return nil, fmt.Errorf("the agent was installed and does not run (init %s)", h.init)
		}
		if err := install(ctx, cfg, client, h, wanted); err != nil {
			return nil, err
		}
	}
}

// greet starts the command that becomes the relay, and returns when the guest
// has described itself.
func greet(ctx context.Context, cfg *Config, client *ssh.Client) (*stream, hello, error) {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	s := &stream{client: client, stderr: &clip{}}
	var err error
	if s.session, err = client.NewSession(); err != nil {
		return nil, hello{}, err
	}
	s.session.Stderr = s.stderr
	if s.in, err = s.session.StdinPipe(); err != nil {
		return nil, hello{}, err
	}
	if s.out, err = s.session.StdoutPipe(); err != nil {
		return nil, hello{}, err
	}
	if err := s.session.Start(asRoot(script("hello.sh"), cfg.Root)); err != nil {
		return nil, hello{}, err
	}
	h, err := readHello(s.out)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, hello{}, cause
		}
		if errors.Is(err, errStrange) {
			return nil, hello{}, commandFault(cfg, "look at", err.Error())
		}
		// What the guest says on stderr comes with the session's end.
		exit := s.session.Wait()
		var status *ssh.ExitError
		if errors.As(exit, &status) {
			return nil, hello{}, commandFault(cfg, "look at", s.stderr.String())
		}
		return nil, hello{}, err
	}
	return s, h, nil
}

// install puts the agent into the guest, unless only its start is missing.
func install(ctx context.Context, cfg *Config, client *ssh.Client, h hello, stamp string) error {
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	defer session.Close()
	said := &clip{}
	session.Stderr, session.Stdout = said, said
	text, args := script("start.sh"), []string{cfg.Root}
	if h.stamp == stamp {
		cfg.report("agent", "starting the agent in the guest")
	} else {
		b, err := cfg.binaries(h.arch)
		if err != nil {
			return finalError{err}
		}
		cfg.report("agent", fmt.Sprintf("installing the agent in the guest (%d MiB)", (len(b.Agent)+len(b.Shim))>>20))
		text = script("install.sh") + text
		session.Stdin = files(b)
		args = append(args, stamp, guestbin.Digest(b.Agent), guestbin.Digest(b.Shim))
	}
	err = session.Run(asRoot(text, args...))
	var status *ssh.ExitError
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.As(err, &status):
		return commandFault(cfg, "install the agent in", said.String())
	}
	return err
}

// commandFault is a command of ours that failed in the guest.
func commandFault(cfg *Config, what, said string) error {
	e := fault.New(fault.RuntimeNotReady, "could not %s the guest over ssh as %s", what, cfg.User).
		Because("%s", orText(said, "the command failed without a word")).
		Next("the guest needs a POSIX shell, tar, sha256sum, and sudo without a password for %s", cfg.User)
	if strings.Contains(said, "No space left") {
		e.Next("set vm.disk_gib higher")
	}
	return commandError{e}
}

// commandError may pass: a guest that boots is not complete.
type commandError struct{ err *fault.Error }

func (e commandError) Error() string { return e.err.Error() }
func (e commandError) Unwrap() error { return e.err }

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
