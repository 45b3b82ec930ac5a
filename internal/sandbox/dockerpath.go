package sandbox

import (
	"context"
	"path"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

// workspacePath is a caller's path for a Docker tool as a path in the guest,
// before it is looked at. Relative ones start in the synced workspace; an
// absolute one inside the host's workspace means the same place in the guest's
// copy, since that is what callers see.
func (d *dockerCall) workspacePath(p string) string {
	if rel, err := filepath.Rel(d.lease.WorkspaceRoot, p); err == nil && filepath.IsAbs(p) && filepath.IsLocal(rel) {
		return path.Join(guestPath(d.lease, ""), filepath.ToSlash(rel))
	}
	return guestPath(d.lease, p)
}

const (
	resolveWithin = 30 * time.Second // in the guest
	maxResolved   = 64 << 10         // bytes of each stream that are kept
)

// resolve finds where paths really are in the guest, symlinks followed. One
// that does not exist, or leads out of the guest's copy of the workspace, is
// INVALID_ARGUMENT: a symlink that a workspace brings along must not decide
// which files Docker sees.
func (d *dockerCall) resolve(ctx context.Context, parameter string, paths ...string) ([]string, error) {
	outer, base := ctx, guestPath(d.lease, "")
	argv := []string{"realpath", "-e", "-z", "--", base}
	for _, p := range paths {
		if err := checkGuestPath(parameter, p); err != nil {
			return nil, err
		}
		argv = append(argv, d.workspacePath(p))
	}
	ctx, cancel := context.WithTimeout(ctx, resolveWithin+commandSlack)
	defer cancel()
	var out, errs strings.Builder
	p, err := d.guest.Run(ctx, guest.NewID("path-"), guest.Spec{Argv: argv, Dir: "/", Timeout: resolveWithin}, func(o guest.Output) {
		b := &out
		if o.Stream != guest.Stdout {
			b = &errs
		}
		b.Write(o.Data[:min(len(o.Data), maxResolved-b.Len())])
	})
	if err != nil {
		return nil, d.s.silent(outer, d.lease, "looking for "+parameter, err)
	}
	found := strings.Split(strings.TrimSuffix(out.String(), "\x00"), "\x00")
	if p.ExitCode != 0 || len(found) != len(argv)-4 {
		return nil, fault.New(fault.InvalidArgument, "%s is not there in the VM: %s", parameter, lastLine([]byte(errs.String()))).
			With("instance_id", d.lease.InstanceID).
			Next("give a path inside the workspace, relative to it or under %s", base).
			Next("if it is new on the host, call sync_workspace_to_instance first")
	}
	for _, f := range found[1:] {
		if f != found[0] && !strings.HasPrefix(f, strings.TrimSuffix(found[0], "/")+"/") {
			return nil, fault.New(fault.InvalidArgument, "%s is %s, which is outside the workspace in the VM (%s)", parameter, f, found[0]).
				With("instance_id", d.lease.InstanceID).
				Because("the path, or a symlink in it, leads out of the workspace").
				Next("give a path inside the workspace; copy what is needed into it first")
		}
	}
	return found[1:], nil
}
