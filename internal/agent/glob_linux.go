package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
)

const maxMatches = 100_000

// Glob implements the protocol.
func (s fileService) Glob(ctx context.Context, req *guestv1.GlobRequest) (*guestv1.GlobResponse, error) {
	base := "/"
	if len(req.Base) > 0 {
		var err error
		if base, err = cleanAbs(req.Base); err != nil {
			return nil, err
		}
	}
	left := int(min(req.MaxMatches, maxMatches))
	if left == 0 {
		left = maxMatches
	}
	out := &guestv1.GlobResponse{}
	for _, pattern := range req.Patterns {
		g := &globber{ctx: ctx, left: &left, seen: map[string]bool{}, m: &guestv1.GlobMatch{Pattern: pattern}}
		if err := g.run(base, pattern); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			g.m.Error = strings.ToValidUTF8(err.Error(), "\uFFFD")
		}
		slices.SortFunc(g.m.Entries, func(a, b *guestv1.Entry) int { return strings.Compare(string(a.Path), string(b.Path)) })
		out.Matches = append(out.Matches, g.m)
	}
	return out, nil
}

type globber struct {
	ctx  context.Context
	m    *guestv1.GlobMatch
	left *int
	seen map[string]bool // ** reaches the same file more than once
	errs []error
}

func (g *globber) run(base, pattern string) error {
	if pattern == "" || strings.IndexByte(pattern, 0) >= 0 {
		return errors.New("an empty pattern or a NUL byte in it")
	}
	if !strings.HasPrefix(pattern, "/") {
		pattern = base + "/" + pattern
	} else {
		base = "/"
	}
	var parts []string
	for p := range strings.SplitSeq(pattern, "/") {
		switch p {
		case "", ".":
			continue
		case "..":
			return errors.New("\"..\" is not allowed in a pattern")
		case "**":
			if n := len(parts); n > 0 && parts[n-1] == "**" {
				continue
			}
		default:
			if _, err := path.Match(p, ""); err != nil {
				return fmt.Errorf("%q: %w", p, err)
			}
		}
		parts = append(parts, p)
	}
	// Components of the base are names, not patterns.
	fixed := len(strings.FieldsFunc(base, func(r rune) bool { return r == '/' }))
	if err := g.match("/", parts, fixed, 0); err != nil {
		return err
	}
	return errors.Join(g.errs...)
}

func isPattern(s string) bool { return strings.ContainsAny(s, `*?[\`) }

// match expands the components that are left below dir. Symlinks are followed
// where a component names or matches one, never by **.
func (g *globber) match(dir string, parts []string, fixed, depth int) error {
	if g.ctx.Err() != nil {
		return g.ctx.Err()
	}
	for len(parts) > 0 && (fixed > 0 || !isPattern(parts[0])) {
		dir = path.Join(dir, parts[0])
		parts, fixed = parts[1:], max(fixed-1, 0)
	}
	if len(parts) == 0 {
		return g.found(dir)
	}
	if depth > maxDepth {
		return nil
	}
	star := parts[0] == "**"
	if star {
		// No directory at all.
		if len(parts) > 1 {
			if err := g.match(dir, parts[1:], 0, depth+1); err != nil {
				return err
			}
		}
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && len(g.errs) < 10 {
			g.errs = append(g.errs, fmt.Errorf("%s: %w", dir, err))
		}
		return nil
	}
	names, err := listNames(fd)
	if err != nil && len(g.errs) < 10 {
		g.errs = append(g.errs, fmt.Errorf("%s: %w", dir, err))
	}
	defer unix.Close(fd)
	for _, n := range names {
		p := path.Join(dir, n)
		if !star {
			if ok, _ := path.Match(parts[0], n); ok {
				if err := g.match(p, parts[1:], 0, depth+1); err != nil {
					return err
				}
			}
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if len(parts) == 1 {
			if err := g.found(p); err != nil {
				return err
			}
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := g.match(p, parts, 0, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *globber) found(name string) error {
	var st unix.Stat_t
	if unix.Lstat(name, &st) != nil || g.seen[name] {
		return nil
	}
	if *g.left == 0 {
		return errors.New("more matches than asked for; the list is cut off")
	}
	*g.left--
	g.seen[name] = true
	e := entryOf(name, &st)
	if e.Type == guestv1.FileType_FILE_TYPE_SYMLINK {
		e.LinkTarget, _ = readlinkat(unix.AT_FDCWD, name)
	}
	g.m.Entries = append(g.m.Entries, e)
	return nil
}
