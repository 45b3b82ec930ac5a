package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"sandboxforge/internal/fault"
)

// StateDir holds the lease database and small state files.
func (s *Settings) StateDir() string { return filepath.Join(s.Home, "state") }

// VMDir holds one directory for each VM.
func (s *Settings) VMDir() string { return filepath.Join(s.Home, "vms") }

// InstanceDir is the directory of one VM, by its backend instance name.
func (s *Settings) InstanceDir(name string) string { return filepath.Join(s.VMDir(), name) }

// SyncDir holds the sync manifests of one VM; it goes with the VM.
func (s *Settings) SyncDir(name string) string { return filepath.Join(s.InstanceDir(name), "sync") }

// EnsureHome makes the state directories with mode 0700. Ones that are there
// may be read by others but not written: who can replace the database, or a
// VM's files, decides what this user's processes do.
func (s *Settings) EnsureHome() error {
	for _, dir := range []string{s.Home, s.StateDir(), s.VMDir(), s.ImageDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fault.Wrap(err, fault.InvalidArgument, "the state directory %q cannot be made", dir).
				Because("the file system is read-only or full, or another user owns the directory").
				Next("set SANDBOXFORGE_HOME to a directory that this user can write")
		}
	}
	for _, dir := range []string{s.Home, s.StateDir(), s.VMDir()} {
		if err := keepOthersOut(dir, os.Geteuid()); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(s.StateDir(), ".write-test-*")
	if err != nil {
		return fault.Wrap(err, fault.InvalidArgument, "the state directory %q cannot be written", s.StateDir()).
			Because("the file system is read-only or full, or another user owns the directory").
			Next("set SANDBOXFORGE_HOME to a directory that this user can write")
	}
	f.Close()
	return os.Remove(f.Name())
}

// keepOthersOut takes other users' right to write away from a directory of
// this user, and refuses one that another user than root owns.
func keepOthersOut(dir string, uid int) error {
	if runtime.GOOS == "windows" {
		return nil // the access list of the user's profile does it
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fault.Wrap(err, fault.InvalidArgument, "the state directory %q cannot be read", dir)
	}
	open := info.Mode().Perm()&0o022 != 0
	switch {
	case ownedBy(info, uid):
		if !open {
			return nil
		}
		if err := os.Chmod(dir, info.Mode().Perm()&^0o022); err != nil {
			return fault.Wrap(err, fault.InvalidArgument, "the state directory %q can be written by other users", dir).
				Next("run `chmod go-w %s`, or set SANDBOXFORGE_HOME to another directory", dir)
		}
		return nil
	case ownedBy(info, 0) && !open:
		return nil
	}
	return fault.New(fault.InvalidArgument, "the state directory %q is another user's, or other users can write it", dir).
		Because("who can replace files there decides what the processes of this user do").
		Next("set SANDBOXFORGE_HOME to a directory of this user")
}

// maxSocketDir leaves room for the longest names of sockets, a VM's with a
// suffix, in a socket address, which has 104 bytes on macOS and 108 on Linux.
// The backends accept no longer directory.
const maxSocketDir = 60

// RunDir makes and returns the directory for unix sockets: Home/run, or where
// that path is too long for a socket address, a short one that is named by a
// hash of Home. It is a real directory, mode 0700, owned by this user, else
// the call fails.
func (s *Settings) RunDir() (string, error) { return s.runDir(os.Getenv, os.Getuid()) }

func (s *Settings) runDir(getenv func(string) string, uid int) (string, error) {
	dir := filepath.Join(s.Home, "run")
	if len(dir) <= maxSocketDir || runtime.GOOS == "windows" {
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			return "", fault.Wrap(err, fault.InvalidArgument, "the state directory %q cannot be made", s.Home).
				Next("set SANDBOXFORGE_HOME to a directory that this user can write")
		}
		return dir, ownDir(dir, uid)
	}
	sum := sha256.Sum256([]byte(s.Home))
	hash := hex.EncodeToString(sum[:6])
	parent := filepath.Join(getenv("XDG_RUNTIME_DIR"), "sandboxforge")
	if x := getenv("XDG_RUNTIME_DIR"); x == "" || !filepath.IsAbs(x) || len(parent)+1+len(hash) > maxSocketDir || ownDir(parent, uid) != nil {
		parent = "/tmp/sandboxforge-" + strconv.Itoa(uid)
		if err := ownDir(parent, uid); err != nil {
			return "", err
		}
	}
	dir = filepath.Join(parent, hash)
	return dir, ownDir(dir, uid)
}

// ownDir makes a directory or verifies that it is nobody else's: in /tmp the
// name can be guessed and taken.
func ownDir(dir string, uid int) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fault.Wrap(err, fault.InvalidArgument, "the socket directory %q cannot be made", dir).
			Next("set XDG_RUNTIME_DIR or a shorter SANDBOXFORGE_HOME")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fault.Wrap(err, fault.InvalidArgument, "the socket directory %q cannot be read", dir)
	}
	if !info.IsDir() || !ownedBy(info, uid) {
		return fault.New(fault.InvalidArgument, "the socket directory %q is not a directory of this user", dir).
			Because("somebody else made it").Next("remove it, or set a shorter SANDBOXFORGE_HOME")
	}
	if runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
		return os.Chmod(dir, 0o700)
	}
	return nil
}

// IsLoopbackHost reports whether a listener on host is reachable from this
// machine only.
func IsLoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// ResolveHTTP reads the token file and refuses what must not be served: a host
// off loopback without the opt-in, or without a token. Only a server that is
// about to listen needs it.
func (s *Settings) ResolveHTTP() error {
	if s.HTTPTokenFile != "" {
		data, err := readBounded(s.HTTPTokenFile, 64<<10)
		if err != nil {
			return fault.Wrap(err, fault.InvalidArgument, "MCP_HTTP_TOKEN_FILE=%q cannot be read", s.HTTPTokenFile)
		}
		s.HTTPToken = strings.TrimSpace(string(data))
		if s.HTTPToken == "" || strings.ContainsFunc(s.HTTPToken, notTokenRune) {
			return fault.New(fault.InvalidArgument, "MCP_HTTP_TOKEN_FILE=%q does not hold a token: allowed: printable ASCII without spaces", s.HTTPTokenFile)
		}
	}
	if !s.EnableHTTP || IsLoopbackHost(s.HTTPHost) {
		return nil
	}
	if !s.HTTPAllowNonLoopback {
		return fault.New(fault.InvalidArgument, "MCP_HTTP_HOST=%q is not loopback and MCP_HTTP_ALLOW_NON_LOOPBACK is not set", s.HTTPHost).
			Because("whoever reaches this endpoint can run commands and read the workspaces").
			Next("use 127.0.0.1, or set MCP_HTTP_ALLOW_NON_LOOPBACK=1 and MCP_HTTP_TOKEN")
	}
	if s.HTTPToken == "" {
		return fault.New(fault.InvalidArgument, "MCP_HTTP_HOST=%q is not loopback and there is no token", s.HTTPHost).
			Because("whoever reaches this endpoint can run commands and read the workspaces").
			Next("set MCP_HTTP_TOKEN or MCP_HTTP_TOKEN_FILE")
	}
	return nil
}
