package buildcache

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Kind is what an entry of a context is.
type Kind byte

// The kinds.
const (
	File  Kind = 'f'
	Dir   Kind = 'd'
	Link  Kind = 'l'
	Other Kind = 'o' // a FIFO, socket or device
)

// Entry is one path below the root of a build context.
type Entry struct {
	Path   string // relative, clean, with forward slashes
	Kind   Kind
	Mode   uint32 // st_mode & 07777
	SHA256 string // of a file's content
	Target string // of a link
	Error  string // why it could not be read
}

// Ignore is a parsed .dockerignore.
type Ignore struct {
	text     []byte
	patterns []string
	match    *patternmatcher.PatternMatcher
}

// maxPatterns bounds a .dockerignore, which comes from the guest: what is
// remembered of each directory is a flag for each pattern.
const maxPatterns = 2000

// ParseIgnore reads a .dockerignore as Docker does; nil text is none.
func ParseIgnore(text []byte) (*Ignore, error) {
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if len(patterns) > maxPatterns {
		return nil, fmt.Errorf("%d patterns; at most %d are read", len(patterns), maxPatterns)
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, err
	}
	return &Ignore{text: text, patterns: patterns, match: m}, nil
}

// Certain is what is excluded beyond doubt, in gitignore syntax: a walk that
// leaves it out need not read what nobody will build with. Patterns with
// wildcards, and all of them where exceptions follow, are left to Scan.
func (i *Ignore) Certain() []string {
	if i.match.Exclusions() {
		return nil
	}
	var list []string
	for _, p := range i.patterns {
		name, anywhere := strings.CutPrefix(p, "**/")
		if name == "" || name == "." || !plain(name) {
			continue
		}
		if anywhere {
			list = append(list, "**/"+name)
		} else {
			list = append(list, "/"+name)
		}
	}
	return list
}

// plain reports whether a clean path means the same to .dockerignore and
// .gitignore.
func plain(name string) bool {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") != "" {
		return false
	}
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// Context is what a build sees of a directory.
type Context struct {
	Hash         string // over paths, kinds, modes, link targets and contents
	Dependencies string // over the files that the globs name; "" if there are none
	Files        int
	Unreadable   []string // "path: reason"; the hash stands for nothing then
}

// Scan takes the entries of a context directory, in any order, leaves out what
// .dockerignore excludes, and hashes the rest. It ends with ctx's error when ctx
// does.
func Scan(ctx context.Context, ign *Ignore, entries []Entry, dependencies []string) (Context, error) {
	kept, err := ign.filter(ctx, entries)
	if err != nil {
		return Context{}, err
	}
	var c Context
	all, deps, found := newDigest("context"), newDigest("dependencies"), false
	for n, e := range kept {
		if n%256 == 0 && ctx.Err() != nil {
			return Context{}, context.Cause(ctx)
		}
		if e.Error != "" {
			c.Unreadable = append(c.Unreadable, e.Path+": "+e.Error)
		}
		line := []string{e.Path, string(e.Kind), strconv.FormatUint(uint64(e.Mode), 8), e.SHA256, e.Target}
		if e.Kind == Link {
			line[2] = "" // a link's mode means nothing
		}
		all.add(line...)
		if e.Kind == File {
			c.Files++
		}
		if e.Kind != Dir && slices.ContainsFunc(dependencies, func(g string) bool { return matchGlob(g, e.Path) }) {
			found = true
			deps.add(e.Path, e.SHA256, e.Target) // a mode is no dependency
		}
	}
	c.Hash = all.sum()
	if found {
		c.Dependencies = deps.sum()
	}
	return c, nil
}

// filter is the entries that Docker would send, sorted, with the directories
// that lead to them.
func (i *Ignore) filter(ctx context.Context, entries []Entry) ([]Entry, error) {
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	var (
		infos = map[string]patternmatcher.MatchInfo{}
		index = map[string]int{}
		keep  = make([]bool, len(sorted))
	)
	for n, e := range sorted {
		if n%256 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if e.Path == "." {
			continue // the root is what COPY is relative to, not a part of it
		}
		index[e.Path] = n
		excluded, info, err := i.match.MatchesUsingParentResults(e.Path, infos[path.Dir(e.Path)])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Path, err)
		}
		if e.Kind == Dir {
			infos[e.Path] = info
		}
		if excluded {
			continue
		}
		// An exception below an excluded directory brings that back too.
		for p := n; !keep[p]; {
			keep[p] = true
			up, ok := index[path.Dir(sorted[p].Path)]
			if !ok {
				break
			}
			p = up
		}
	}
	out := make([]Entry, 0, len(sorted))
	for n, e := range sorted {
		if keep[n] {
			out = append(out, e)
		}
	}
	return out, nil
}

// matchGlob is path.Match for every part, where ** stands for any number of
// parts.
func matchGlob(pattern, name string) bool {
	return matchParts(strings.Split(path.Clean(pattern), "/"), strings.Split(name, "/"))
}

// matchParts is quick for any pattern: where ** may end is noted, not tried, as
// names come from the guest and may have thousands of parts.
func matchParts(pattern, name []string) bool {
	// at[i]: the pattern so far matches the first i parts.
	at := make([]bool, len(name)+1)
	at[0] = true
	for _, p := range pattern {
		if p == "**" {
			for i := range name {
				at[i+1] = at[i+1] || at[i]
			}
			continue
		}
		for i := len(name); i > 0; i-- {
			ok := false
			if at[i-1] {
				m, err := path.Match(p, name[i-1])
				ok = m && err == nil
			}
			at[i] = ok
		}
		at[0] = false
	}
	return at[len(name)]
}
