package hyperv

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/fault"
)

// Files of keys in a VM's directory.
const (
	hostKeyFile = "host_key" // of the guest, which gets it with the seed
	userKeyFile = "user_key"
)

// newKey makes a key pair and keeps the private half in a file.
func newKey(path, comment string) (ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, err
	}
	if err := writeFile(path, pem.EncodeToMemory(block)); err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(private)
}

func readKey(path string) (ssh.Signer, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ssh.ParsePrivateKey(raw)
}

// operatorKey reads the key of HYPERV_SSH_KEY_PATH.
func (b *Backend) operatorKey() (ssh.Signer, error) {
	key, err := readKey(b.c.SSHKeyPath)
	if err == nil {
		return key, nil
	}
	f := fault.Wrap(err, fault.BackendUnavailable, "the ssh key %s cannot be used", b.c.SSHKeyPath)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, f.Because("it is protected by a passphrase").Next("set HYPERV_SSH_KEY_PATH to a key without one, or leave it unset: each VM then gets a key of its own")
	}
	return nil, f.Next("set HYPERV_SSH_KEY_PATH to a private key in OpenSSH's format, or leave it unset: each VM then gets a key of its own")
}

// keys are the two ends of a VM's ssh connection.
type keys struct {
	user ssh.Signer
	host ssh.Signer
}

// makeKeys makes what a new VM needs.
func (b *Backend) makeKeys(name string) (k keys, err error) {
	if k.host, err = newKey(filepath.Join(b.dir(name), hostKeyFile), name); err != nil {
		return k, err
	}
	if b.c.SSHKeyPath != "" {
		k.user, err = b.operatorKey()
		return k, err
	}
	k.user, err = newKey(filepath.Join(b.dir(name), userKeyFile), "sandboxforge "+name)
	return k, err
}

// readKeys reads those of a VM that is there.
func (b *Backend) readKeys(name string) (k keys, err error) {
	if k.host, err = readKey(filepath.Join(b.dir(name), hostKeyFile)); err != nil {
		return k, fmt.Errorf("the guest's host key: %w", err)
	}
	if b.c.SSHKeyPath != "" {
		k.user, err = b.operatorKey()
		return k, err
	}
	if k.user, err = readKey(filepath.Join(b.dir(name), userKeyFile)); err != nil {
		return k, fmt.Errorf("the key of the ssh connection: %w", err)
	}
	return k, nil
}
