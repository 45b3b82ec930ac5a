package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/envfile"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/hostpath"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
	"sandboxforge/internal/workspace"
)

// Files of the workspace get the connection variables in a block of their own
// (package envfile), in the guest, and on the host if the operator wants that.
// The block never travels: a sync compares and transfers the file without it,
// and puts it back where it wrote the file.

// checkInjection refuses values that no file can hold, before anything is
// started. A generated password always can be held.
func checkInjection(s services.Service) error {
	if s.InjectTo == "" {
		return nil
	}
	for _, v := range s.Connection() {
		if err := envfile.Check(v.Key, v.Value); err != nil {
			return fault.New(fault.WorkspaceEnvInjectionFailed, "%s cannot be written to %s: %v", v.Key, s.InjectTo, err).
				Because("the programs that read such files agree on no quoting").
				With("path", s.InjectTo).With("key", v.Key).With("service", s.Name).
				Next("choose another value in infra.%s (letters, digits and . _ - / : @ %% + , = are safe)", s.Name).
				Next("or set infra.%s.inject_env_to = \"\"; commands and containers get the variables all the same", s.Name)
		}
	}
	return nil
}

// injections is the files that get variables, and which, in order.
func injections(all []services.Running) map[string][]string {
	files := map[string][]string{}
	for _, r := range all {
		if r.InjectTo == "" {
			continue
		}
		p := path.Clean(r.InjectTo)
		for _, v := range r.Connection() {
			files[p] = append(files[p], v.Key)
		}
	}
	return files
}

func (c connectionRecord) vars(file string) []envfile.Var {
	var list []envfile.Var
	for _, k := range c.Files[file] {
		if v, ok := c.Env[k]; ok {
			list = append(list, envfile.Var{Key: k, Value: v})
		}
	}
	return list
}

// injectAll writes the blocks of rec into the guest's files, and on the host
// where that is allowed, and takes those out that are only in old.
func (s *Service) injectAll(ctx context.Context, l store.Lease, g *guest.Client, cfg config.Config, old, rec connectionRecord, out *PrepareWorkspaceResult) error {
	for _, file := range slices.Sorted(maps.Keys(old.Files)) {
		vars := rec.vars(file)
		if err := s.injectGuest(ctx, l, g, file, vars); err != nil {
			return err
		}
		if cfg.Infra.InjectEnvOnHost {
			if err := s.injectHost(l, cfg, file, vars); err != nil {
				return err
			}
		}
		if len(vars) > 0 {
			out.EnvInjections = append(out.EnvInjections, EnvInjection{Path: file, Keys: rec.Files[file]})
		}
	}
	return nil
}

// reinjectGuest puts the blocks back into the guest's files after a sync has
// written them. What they are to hold may change meanwhile, as a sync does not
// wait for a prepare_workspace: then they are written again.
func (s *Service) reinjectGuest(ctx context.Context, l store.Lease, g *guest.Client) error {
	id := l.InstanceID
	l, err := s.store.LiveLease(ctx, id)
	for range 10 {
		if err != nil {
			return s.ended(ctx, id, err)
		}
		rec := connectionOf(l)
		if len(rec.Files) == 0 {
			return nil // whoever records the first ones writes them
		}
		for _, file := range slices.Sorted(maps.Keys(rec.Files)) {
			if err := s.injectGuest(ctx, l, g, file, rec.vars(file)); err != nil {
				return err
			}
		}
		written := l.Connection
		if l, err = s.store.LiveLease(ctx, id); err == nil && bytes.Equal(l.Connection, written) {
			return nil
		}
	}
	return fault.New(fault.OutcomeUnknown, "the connection variables changed each time that they were written to the guest's files").
		Because("prepare_workspace is called again and again").With("instance_id", id).
		Next("call prepare_workspace once more, and nothing else meanwhile")
}

// reinjectHost does the same on the host, where the operator wants the blocks.
func (s *Service) reinjectHost(l store.Lease, cfg config.Config) error {
	if !cfg.Infra.InjectEnvOnHost {
		return nil
	}
	rec := connectionOf(l)
	for _, file := range slices.Sorted(maps.Keys(rec.Files)) {
		if err := s.injectHost(l, cfg, file, rec.vars(file)); err != nil {
			return err
		}
	}
	return nil
}

func injectFault(where, file, why string) *fault.Error {
	return fault.New(fault.WorkspaceEnvInjectionFailed, "the connection variables cannot be written to %s %s: %s", file, where, why).
		With("path", file).
		Next("set inject_env_to of the services to another file, or to \"\"")
}

// injectGuest sets the block of a file in the guest's workspace.
func (s *Service) injectGuest(ctx context.Context, l store.Lease, g *guest.Client, file string, vars []envfile.Var) error {
	name := path.Join(l.RemotePath, file)
	const where = "in the guest"
	st, err := g.Stat(ctx, name, false)
	missing := errors.Is(err, guest.ErrNotFound)
	switch {
	case missing && len(vars) == 0:
		return nil
	case missing:
		if _, err := g.MakeDir(ctx, path.Dir(name), 0o755, guestUser); err != nil {
			return s.injectError(ctx, l, file, err)
		}
		st.Mode = 0o600
	case err != nil:
		return s.injectError(ctx, l, file, err)
	case st.Type == guest.TypeSymlink:
		return injectFault(where, file, "it is a symbolic link, which is not written through").Because("%s is a symbolic link in the workspace", file)
	case st.Type != guest.TypeRegular:
		return injectFault(where, file, "it is not a regular file").Because("%s is something else in the workspace", file)
	case st.Size > envfile.MaxSize:
		return injectFault(where, file, "it is too large").Because("%s is no file of variables", file)
	}
	var old []byte
	if !missing {
		if old, err = g.ReadFile(ctx, name, envfile.MaxSize); err != nil {
			return s.injectError(ctx, l, file, err)
		}
	}
	text, err := envfile.Inject(old, vars)
	if err != nil {
		return injectFault(where, file, err.Error()).Because("%v", err)
	}
	_, had := envfile.Strip(old)
	switch {
	case bytes.Equal(text, old):
		return nil
	case len(text) == 0 && had:
		// It was there only for the block.
		_, err = g.Remove(ctx, l.RemotePath, []string{file}, false)
	default:
		owner := guestUser
		if !missing && st.UID == 0 {
			owner = "root"
		}
		err = g.WriteFile(ctx, name, text, st.Mode&0o777, owner)
	}
	if err != nil {
		return s.injectError(ctx, l, file, err)
	}
	return nil
}

func (s *Service) injectError(ctx context.Context, l store.Lease, file string, err error) error {
	if errors.Is(err, guest.ErrUnavailable) || errors.Is(err, guest.ErrOutcomeUnknown) || ctx.Err() != nil {
		return s.guestFault(ctx, l, "writing connection variables", err)
	}
	return injectFault("in the guest", file, err.Error()).Because("%v", err).With("instance_id", l.InstanceID)
}

// injectHost sets the block of a file in the host's workspace, under the rules
// for all that comes from a guest.
func (s *Service) injectHost(l store.Lease, cfg config.Config, file string, vars []envfile.Var) (err error) {
	const where = "on the host"
	defer func() {
		var f *fault.Error
		if err != nil && !(errors.As(err, &f) && f.Code == fault.WorkspaceEnvInjectionFailed) {
			err = injectFault(where, file, err.Error()).Because("%v", err)
		}
	}()
	loc, err := s.local(l, l.WorkspaceRoot)
	if err != nil {
		return err
	}
	full := loc.Join(file).Rel
	if why, refused := hostpath.NewTrust(cfg.Sync.AllowRefused).Check(full); refused {
		return injectFault(where, file, "it is not written on the host: "+why).Because("%s", why).
			Next("or have the operator allow it with sync.allow_refused")
	}
	root, err := loc.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	name := path.Base(full)
	dir, err := root.MakeAll(path.Dir(full))
	if err != nil {
		return err
	}
	defer dir.Close()
	var old []byte
	mode := fs.FileMode(0o600)
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if len(vars) == 0 {
			return nil
		}
		info = nil
	case err != nil:
		return err
	default:
		// Never through a symlink, nor a FIFO.
		if old, err = dir.ReadFile(name, envfile.MaxSize); err != nil {
			return err
		}
		mode = info.Mode().Perm()
	}
	text, err := envfile.Inject(old, vars)
	if err != nil {
		return err
	}
	if bytes.Equal(text, old) {
		return nil
	}
	if _, had := envfile.Strip(old); len(text) == 0 && had {
		return dir.Remove(name)
	}
	t, err := dir.Create(mode)
	if err != nil {
		return err
	}
	if _, err := t.Write(text); err != nil {
		t.Abort()
		return err
	}
	return t.Commit(name, time.Time{}, func(now fs.FileInfo) error {
		if (now == nil) != (info == nil) || now != nil && (now.Mode().Type() != 0 || now.Size() != info.Size() || !now.ModTime().Equal(info.ModTime())) {
			return errors.New("it changed meanwhile")
		}
		return nil
	})
}

// stripInjected has a sync leave the blocks out of what it compares and
// transfers between two directories.
func (s *Service) stripInjected(l store.Lease, req *workspace.Request) {
	rec := connectionOf(l)
	if len(rec.Files) == 0 {
		return
	}
	secrets := rec.generated()
	req.Strip = map[string]func([]byte) ([]byte, bool, error){}
	for file := range rec.Files {
		p, ok := strings.CutPrefix(path.Join(l.RemotePath, file), strings.TrimSuffix(req.Remote, "/")+"/")
		if !ok {
			continue
		}
		req.Strip[p] = func(content []byte) ([]byte, bool, error) {
			rest, found := envfile.Strip(content)
			for _, secret := range secrets {
				if bytes.Contains(rest, []byte(secret)) {
					return nil, false, errors.New("it holds the password of a service outside the block that the sandbox writes, and stays where it is")
				}
			}
			return rest, found, nil
		}
	}
}
