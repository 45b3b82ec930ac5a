package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
)

// Policy is the set of directories that one call may use on the host.
type Policy struct {
	WorkspaceRoot string   // resolved; "" if the call has no workspace
	AllowedRoots  []string // SANDBOX_ALLOWED_ROOTS
}

// Location is an allowed place: Rel below Root, which is resolved.
type Location struct {
	Root string // absolute, no symlinks
	Rel  string // slash-separated, "." for the root itself
}

// Path is the location's absolute path.
func (l Location) Path() string { return filepath.Join(l.Root, filepath.FromSlash(l.Rel)) }

// Open opens the root directory of the location.
func (l Location) Open() (*Dir, error) { return OpenRoot(l.Root) }

// Join is the location of a relative path below l.
func (l Location) Join(rel string) Location {
	if l.Rel == "." {
		l.Rel = rel
	} else if rel != "." {
		l.Rel += "/" + rel
	}
	return l
}

// Resolve decides whether a path lies inside the policy's roots. A relative
// path starts at the workspace root. Symlinks are followed for the decision,
// but a path that needs one below its root is refused: nothing is ever
// accessed through it. What does not exist yet may be resolved too.
//
// Every refusal is a fault PATH_NOT_ALLOWED.
func (p Policy) Resolve(path string) (Location, error) {
	deny := func(format string, args ...any) error {
		e := fault.New(fault.PathNotAllowed, format, args...).With("path", strings.ToValidUTF8(path, "�")).
			With("allowed_roots", p.roots())
		return e.Next("use a path inside the workspace root, or have the operator add its directory to SANDBOX_ALLOWED_ROOTS")
	}
	switch {
	case path == "":
		return Location{}, deny("the path is empty")
	case strings.ContainsRune(path, 0):
		return Location{}, deny("the path contains a NUL byte")
	case strings.HasPrefix(filepath.ToSlash(path), "//"):
		return Location{}, deny("network and device paths are not allowed")
	}
	if !filepath.IsAbs(path) {
		if filepath.VolumeName(path) != "" || strings.HasPrefix(filepath.ToSlash(path), "/") {
			return Location{}, deny("the path depends on a current drive: give an absolute path")
		}
		if p.WorkspaceRoot == "" {
			return Location{}, deny("the path %q is relative and the call has no workspace", path)
		}
		path = filepath.Join(p.WorkspaceRoot, path)
	}
	path = filepath.Clean(path)
	if rest := filepath.ToSlash(path[len(filepath.VolumeName(path)):]); strings.Trim(rest, "/") != "" {
		if err := CheckRel(strings.Trim(rest, "/")); err != nil {
			return Location{}, deny("the path is not usable: %v", err)
		}
	}

	real, err := realPath(path)
	if err != nil {
		return Location{}, deny("the path %q cannot be resolved", path).(*fault.Error).Because("%v", err)
	}
	for _, root := range p.roots() {
		resolved, err := filepath.EvalSymlinks(root)
		if err != nil {
			continue
		}
		info, err := os.Stat(resolved)
		if err != nil || !info.IsDir() {
			continue
		}
		// The path as it is written must enter the root and then lead to where
		// it really leads, so that no link below the root has a part in it.
		rel, lexical := below(info, path)
		realRel, inside := below(info, real)
		switch {
		case lexical && inside && Fold(rel) == Fold(realRel):
			return Location{Root: resolved, Rel: rel}, nil
		case inside:
			return Location{}, deny("the path %q leads through a symbolic link", path).(*fault.Error).Next("use the real path %q", real)
		case lexical:
			return Location{}, deny("the path %q leads through a symbolic link to %q", path, real)
		}
	}
	if real != path {
		return Location{}, deny("the path %q leads to %q, which is outside of what this call may use", path, real)
	}
	return Location{}, deny("the path %q is outside of what this call may use", path)
}

func (p Policy) roots() []string {
	roots := []string{}
	if p.WorkspaceRoot != "" {
		roots = append(roots, p.WorkspaceRoot)
	}
	return append(roots, p.AllowedRoots...)
}

// below reports whether path, taken as it is written, is the directory root or
// has it as an ancestor, and what follows it. Directories are compared by
// identity, so other spellings of the root are recognised.
func below(root fs.FileInfo, path string) (rel string, inside bool) {
	var tail []string
	for p := path; ; {
		if info, err := os.Stat(p); err == nil && os.SameFile(info, root) {
			rel, inside = ".", true
			if len(tail) > 0 {
				t := slices.Clone(tail)
				slices.Reverse(t)
				rel = strings.Join(t, "/")
			}
			// Go on: the shortest ancestor counts, so that a link back to the
			// root from inside is seen as the link that it is.
		}
		parent := filepath.Dir(p)
		if parent == p {
			return rel, inside
		}
		tail = append(tail, filepath.Base(p))
		p = parent
	}
}

// realPath resolves symlinks in the longest existing part of path.
func realPath(path string) (string, error) {
	var tail []string
	for p := path; ; {
		_, err := os.Lstat(p)
		switch {
		case err == nil:
			real, err := filepath.EvalSymlinks(p)
			if err != nil { // a dangling link is not a place to make something
				return "", &fs.PathError{Op: "resolve", Path: p, Err: err}
			}
			slices.Reverse(tail)
			return filepath.Join(append([]string{real}, tail...)...), nil
		case !errors.Is(err, fs.ErrNotExist) && !isNotDir(err):
			return "", err
		}
		parent := filepath.Dir(p)
		if parent == p {
			return "", err
		}
		tail = append(tail, filepath.Base(p))
		p = parent
	}
}

// RootRules are what a workspace root is held against.
type RootRules struct {
	UserHome       string   // the user's home directory
	StateHome      string   // SANDBOXFORGE_HOME
	WorkspaceRoots []string // SANDBOX_WORKSPACE_ROOTS; nil: anywhere
}

// CheckWorkspaceRoot resolves a workspace root that a client named and refuses
// what cannot be one: a file, a missing directory, the file system's root, a
// home directory, the state directory, anything in it or above it, and what
// lies outside of the operator's roots. The faults are INVALID_ARGUMENT for
// what is not there, PATH_NOT_ALLOWED for what is refused.
func CheckWorkspaceRoot(path string, rules RootRules) (string, error) {
	shown := strings.ToValidUTF8(path, "�")
	invalid := func(format string, args ...any) *fault.Error {
		return fault.New(fault.InvalidArgument, format, args...).With("workspace_root", shown).
			Next("give the absolute path of an existing project directory")
	}
	deny := func(format string, args ...any) *fault.Error {
		return fault.New(fault.PathNotAllowed, format, args...).With("workspace_root", shown).
			Next("give the absolute path of a project directory")
	}
	switch {
	case path == "":
		return "", invalid("workspace_root is empty")
	case strings.ContainsRune(path, 0):
		return "", deny("workspace_root contains a NUL byte")
	case strings.HasPrefix(filepath.ToSlash(path), "//"):
		return "", deny("workspace_root is a network or device path")
	case !filepath.IsAbs(path):
		return "", invalid("workspace_root %q is not absolute", shown)
	}
	real, err := filepath.EvalSymlinks(filepath.Clean(path))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || isNotDir(err) {
			return "", invalid("workspace_root %q does not exist", shown)
		}
		return "", fault.Wrap(err, fault.InvalidArgument, "workspace_root %q cannot be resolved", shown)
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", fault.Wrap(err, fault.InvalidArgument, "workspace_root %q cannot be read", shown)
	}
	if !info.IsDir() {
		return "", invalid("workspace_root %q is not a directory", shown)
	}
	if filepath.Dir(real) == real {
		return "", deny("workspace_root may not be the root of the file system")
	}
	if same(info, rules.UserHome) || homeOfSomebody(real) {
		return "", deny("workspace_root may not be a home directory itself").
			Because("a home directory holds keys and settings that have no place in a sandbox").
			Next("use a project directory below it")
	}
	if rules.StateHome != "" {
		if state, err := realPath(filepath.Clean(rules.StateHome)); err == nil {
			if _, in := below(info, state); in {
				return "", deny("workspace_root %q contains SandboxForge's own state directory", shown)
			}
			if si, err := os.Stat(state); err == nil {
				if _, in := below(si, real); in {
					return "", deny("workspace_root %q lies in SandboxForge's own state directory", shown)
				}
			}
		}
	}
	if rules.WorkspaceRoots == nil {
		return real, nil
	}
	for _, r := range rules.WorkspaceRoots {
		if ri, err := os.Stat(r); err == nil {
			if _, in := below(ri, real); in {
				return real, nil
			}
		}
	}
	return "", deny("workspace_root %q is not inside SANDBOX_WORKSPACE_ROOTS", shown).
		With("allowed_roots", rules.WorkspaceRoots)
}

func same(info fs.FileInfo, path string) bool {
	if path == "" {
		return false
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(info, other)
}

// homeOfSomebody recognises the home directories of other users by where they
// lie, since the user database may not be readable: one level below /home or
// /Users, /root, and the directories above them.
func homeOfSomebody(real string) bool {
	slash := strings.ToLower(filepath.ToSlash(real[len(filepath.VolumeName(real)):]))
	switch slash {
	case "/home", "/users", "/root", "/var/root":
		return true
	}
	parent := slash[:strings.LastIndexByte(slash, '/')]
	switch runtime.GOOS {
	case "darwin", "windows":
		return parent == "/users" && slash != "/users/shared"
	}
	return parent == "/home"
}
