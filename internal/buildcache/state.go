package buildcache

import (
	"regexp"
	"strings"
	"time"
)

// State describes the tree that is built. What is not known is "" or nil.
type State struct {
	Commit       string // full, lower-case hexadecimal
	Branch       string // "" where HEAD is detached
	Dirty        *bool
	Dependencies string
	Dockerfile   string
	Content      string
	Time         time.Time
}

// Short is the first 8 digits of the commit.
func (s State) Short() string { return clip(s.Commit, 8) }

// Clean reports whether the tree is known to be a commit's.
func (s State) Clean() bool { return s.Commit != "" && s.Dirty != nil && !*s.Dirty }

// Timestamp is when the state was taken, in UTC.
func (s State) Timestamp() string { return s.Time.UTC().Format(time.RFC3339) }

var (
	commitID   = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
	branchName = regexp.MustCompile(`^[^\x00-\x20\x7f~^:?*\[\\]{1,250}$`)
)

// GitCommand prints what ParseGit reads, for the directory it runs in. It takes
// no lock and writes nothing: the tree may belong to the build context.
const GitCommand = `export GIT_OPTIONAL_LOCKS=0
g() { git -c safe.directory='*' "$@"; }
g rev-parse --verify -q HEAD || exit 0
g symbolic-ref --short -q HEAD || echo
g status --porcelain --untracked-files=normal | head -c 1 | wc -c`

// ParseGit reads the answer of GitCommand, which is the guest's word.
func (s *State) ParseGit(out string) {
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	if len(lines) != 3 || !commitID.MatchString(lines[0]) {
		return
	}
	s.Commit = lines[0]
	if branchName.MatchString(lines[1]) {
		s.Branch = lines[1]
	}
	if n := strings.TrimSpace(lines[2]); n == "0" || n == "1" {
		dirty := n == "1"
		s.Dirty = &dirty
	}
}

// Args are the build arguments about a state. One whose value is not known is
// left out.
func (s State) Args() map[string]string {
	return filled(map[string]string{
		"GIT_COMMIT": s.Commit, "GIT_BRANCH": s.Branch, "BUILD_TIMESTAMP": s.Timestamp(),
		"DEPENDENCIES_HASH": s.Dependencies, "WORKSPACE_CONTENT_HASH": s.Content,
	})
}

// TimestampArg is the one of them that is another at every build.
const TimestampArg = "BUILD_TIMESTAMP"

func filled(m map[string]string) map[string]string {
	for k, v := range m {
		if v == "" {
			delete(m, k)
		}
	}
	return m
}

func clip(s string, n int) string { return s[:min(len(s), n)] }
