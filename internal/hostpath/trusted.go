package hostpath

import (
	"regexp"
	"slices"
	"strings"
)

// The places whose content the host executes or trusts without being asked.
// A name matches at any depth, as a file and as a directory with all below it.
//
// The measure: somebody who only opens, enters, commits or starts an AI client
// in the workspace would run, load or obey what is written there. What runs
// only when it is asked for (Makefile, package.json, Dockerfile) is not on the
// list; nobody could work otherwise. AGENTS.md and its kin are on it: they are
// standing orders to the AI client on the host.
var trustedNames = map[string]string{}

func init() {
	for reason, names := range map[string][]string{
		"version control metadata: the host's tools run hooks and commands named there": {
			".git", ".hg", ".svn", ".jj", ".bzr", "_darcs", ".pijul", ".sl", ".repo", "cvs", ".gitconfig", ".hgrc"},
		"hooks that version control runs on the host": {
			".husky", ".githooks", ".pre-commit-config.yaml", ".pre-commit-config.yml", "lefthook.yml", "lefthook.yaml",
			".lefthook.yml", ".lefthook.yaml", "lefthook-local.yml", ".lefthook-local.yml", ".simple-git-hooks.json"},
		"loaded by the shell that enters the directory": {
			".envrc", ".direnv", ".autoenv", ".mise", ".mise.toml", "mise.toml", ".mise.local.toml", "mise.local.toml"},
		"a shell or login file that the host executes or trusts": {
			".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile",
			".zlogin", ".ssh", ".gnupg", ".netrc"},
		"editor settings: editors run tasks and load code named there": {
			".vscode", ".idea", ".vs", ".fleet", ".zed", ".exrc", ".vimrc", ".lvimrc", ".nvimrc", ".nvim.lua",
			".dir-locals.el", ".dir-locals-2.el", "autorun.inf", "desktop.ini"},
		"a virtual environment that editors execute to inspect it": {".venv"},
		"settings of an AI client: it runs commands and servers named there": {
			".claude", ".claude.json", ".cursor", ".mcp.json", ".windsurf", ".codex", ".gemini", ".continue", ".roo",
			".cline", ".amazonq", ".kiro", ".opencode", "opencode.json", "opencode.jsonc", ".aider.conf.yml", ".junie", ".augment"},
		"standing instructions to an AI client on the host": {
			"agents.md", "agent.md", "claude.md", "claude.local.md", "gemini.md", ".cursorrules", ".windsurfrules",
			".clinerules", ".roorules", ".roomodes", "copilot-instructions.md"},
		"a development container definition: opening the directory runs it": {
			".devcontainer", ".devcontainer.json"},
		"configuration of SandboxForge itself": {
			".sandboxforge.toml", ".orbitforge.toml", ".lima-mcp.toml"},
	} {
		for _, n := range names {
			trustedNames[n] = reason
		}
	}
}

// trustedSuffixes are endings of file names.
var trustedSuffixes = map[string]string{
	".code-workspace":  "editor settings: editors run tasks and load code named there",
	".sublime-project": "editor settings: editors run tasks and load code named there",
}

// trustedPaths are pairs of components.
var trustedPaths = map[string]string{
	".config/mise":         "loaded by the shell that enters the directory",
	".github/instructions": "standing instructions to an AI client on the host",
	".github/agents":       "standing instructions to an AI client on the host",
}

// TrustedNames lists the refused names, for the documentation.
func TrustedNames() map[string]string {
	m := make(map[string]string, len(trustedNames)+len(trustedSuffixes)+len(trustedPaths))
	for n, r := range trustedNames {
		m[n] = r
	}
	for n, r := range trustedSuffixes {
		m["*"+n] = r
	}
	for n, r := range trustedPaths {
		m[n] = r
	}
	return m
}

// BareRepositoryReason is the reason for refusing the parts of a directory
// that LooksBare.
const BareRepositoryReason = "looks like a bare repository: version control on the host would run what its config names"

// Trusted reports whether the relative path lies in a place whose content the
// host executes or trusts unasked, and why. Every spelling counts that some
// file system takes for the same name: case, Unicode forms, ignorable code
// points, trailing dots and spaces, NTFS streams and short names; on every
// host, since a workspace may lie on a foreign file system.
func Trusted(rel string) (reason string, refused bool) { return Trust{}.Check(rel) }

// Trust is Trusted with exceptions. The zero value allows nothing.
type Trust struct {
	allow []string
}

// NewTrust makes a Trust with the operator's exceptions: names ("AGENTS.md",
// at any depth) or relative paths (".vscode/settings.json", from the root).
// What lies at or below one is not refused.
func NewTrust(allow []string) Trust {
	t := Trust{}
	for _, a := range allow {
		a = strings.Trim(strings.TrimPrefix(canonicalPath(a), "./"), "/")
		if a != "" && a != "." {
			t.allow = append(t.allow, a)
		}
	}
	return t
}

// Check is Trusted with the exceptions applied. An exception covers what it
// names and what lies below, not a second trusted name deeper down.
func (t Trust) Check(rel string) (reason string, refused bool) {
	parts := strings.Split(canonicalPath(rel), "/")
	for i, c := range parts {
		why := trustedComponent(c)
		if why == "" && i > 0 {
			why = trustedPaths[parts[i-1]+"/"+c]
		}
		if why != "" && !t.allows(parts, i) {
			return why, true
		}
	}
	return "", false
}

// allows reports whether an exception covers the trusted component parts[i].
func (t Trust) allows(parts []string, i int) bool {
	if len(t.allow) == 0 {
		return false
	}
	at := strings.Join(parts[:i+1], "/")
	whole := strings.Join(parts, "/")
	for _, a := range t.allow {
		switch {
		case a == parts[i] || a == at:
			return true
		case strings.HasPrefix(a, at+"/") && (whole == a || strings.HasPrefix(whole, a+"/")):
			return true
		}
	}
	return false
}

// AllowsBare reports whether the operator's exceptions name this directory.
func (t Trust) AllowsBare(dir string) bool {
	return slices.Contains(t.allow, strings.Trim(canonicalPath(dir), "/"))
}

// LooksBare reports whether a directory with these entries could be taken for
// a repository by git: HEAD together with objects, refs or a commondir.
func LooksBare(names []string) bool {
	var head, rest bool
	for _, n := range names {
		switch canonical(n) {
		case "head":
			head = true
		case "objects", "refs", "commondir":
			rest = true
		}
	}
	return head && rest
}

// canonical folds one component and undoes what NTFS ignores: a stream's name
// and trailing dots and spaces.
func canonical(name string) string {
	name = Fold(name)
	if i := strings.IndexByte(name, ':'); i > 0 {
		name = name[:i]
	}
	if trimmed := strings.TrimRight(name, ". "); trimmed != "" {
		name = trimmed
	}
	return name
}

// canonicalPath folds every component of a path; a backslash separates too,
// as it does on Windows.
func canonicalPath(rel string) string {
	parts := strings.FieldsFunc(rel, func(r rune) bool { return r == '/' || r == '\\' })
	for i, p := range parts {
		parts[i] = canonical(p)
	}
	return strings.Join(parts, "/")
}

func trustedComponent(c string) string {
	if why, ok := trustedNames[c]; ok {
		return why
	}
	for suffix, why := range trustedSuffixes {
		if strings.HasSuffix(c, suffix) {
			return why
		}
	}
	return trustedShort(c)
}

var (
	shortName  = regexp.MustCompile(`^([^~.]{1,6})~[0-9]{1,6}(?:\.([^.]{0,3}))?$`)
	shortHash  = regexp.MustCompile(`^([^~.]{1,2})[0-9a-f]{4}~[0-9](?:\.([^.]{0,3}))?$`)
	shortDrops = strings.NewReplacer(" ", "", ".", "")
)

// trustedShort recognises what could be the 8.3 name of a trusted one: GIT~1,
// MCP~1.JSO, and the hashed form GI7EBA~1.
func trustedShort(c string) string {
	if !strings.Contains(c, "~") {
		return ""
	}
	match := func(m []string, length int) string {
		if m == nil {
			return ""
		}
		for name, why := range trustedNames {
			base, ext := name, ""
			if i := strings.LastIndexByte(name, '.'); i > 0 {
				base, ext = name[:i], name[i+1:]
			}
			base = shortDrops.Replace(base)
			if base[:min(length, len(base))] == m[1] && ext[:min(3, len(ext))] == m[2] {
				return why
			}
		}
		return ""
	}
	if why := match(shortName.FindStringSubmatch(c), 6); why != "" {
		return why
	}
	return match(shortHash.FindStringSubmatch(c), 2)
}
