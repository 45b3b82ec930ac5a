package hostpath

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

func TestTrusted(t *testing.T) {
	for _, p := range []string{
		".git", ".git/hooks/pre-commit", "a/b/.git/config", ".GIT/x", ".Git", ".git./x", ".git /x", ".git. .", ".git::$INDEX_ALLOCATION/hooks", ".git:x",
		"git~1", "GIT~1/hooks", "GIT~12", "gi7eba~1", "GI7EBA~1/config", ".g\u200cit", ".\u200dgit\u2060", ".g\u00adit/x", ".hg/hgrc", ".svn", ".jj/x", ".envrc", ".ENVRC", ".vſcode/tasks.json",
		".vscode/tasks.json", ".\u212Airo", ".idea/workspace.xml", ".claude/settings.json", ".cursor/mcp.json", ".mcp.json", "MCP~1.JSO", ".devcontainer/devcontainer.json",
		".devcontainer.json", ".sandboxforge.toml", "SANDBO~1.TOM", "sub/.orbitforge.toml", ".lima-mcp.toml", "AGENTS.md", "docs/agents.MD", "CLAUDE.md", ".husky/pre-commit", "x.code-workspace",
		`a\.git\config`, ".github/copilot-instructions.md", ".github/instructions/x.md", ".venv/bin/python", ".config/mise/config.toml", ".ssh/authorized_keys", ".bashrc", "a/.git",
	} {
		if _, refused := Trusted(p); !refused {
			t.Errorf("%q is not refused", p)
		}
	}
	for _, p := range []string{
		"a", ".gitignore", ".gitattributes", ".github/workflows/ci.yml", "git", "github/x", "src/git/x", ".env", "Makefile", "package.json", "config", "HEAD", "objects/x", "venv/x", "a~1", "foo~2.txt",
		"vscode/x", "readme.md", ".editorconfig", ".dockerignore", "idea.txt", "agents.mdx", "mygit~1", "config/mise/x", "é/ü", "\xff\xfe",
	} {
		if why, refused := Trusted(p); refused {
			t.Errorf("%q is refused: %s", p, why)
		}
	}
}

func TestTrustExceptions(t *testing.T) {
	tr := NewTrust([]string{".vscode/settings.json", "AGENTS.md", "/docs/.idea/", "bare"})
	for p, want := range map[string]bool{
		".vscode/settings.json": false, ".VSCODE/Settings.JSON": false, ".vscode/tasks.json": true, ".vscode": true, "x/.vscode/settings.json": true,
		"AGENTS.md": false, "deep/agents.md": false, "AGENTS.md/.git": true, "docs/.idea/x": false, ".idea/x": true, "docs/.idea/.git/x": true, ".git/x": true,
	} {
		if _, refused := tr.Check(p); refused != want {
			t.Errorf("%q: refused %v, want %v", p, refused, want)
		}
	}
	if !tr.AllowsBare("bare") || tr.AllowsBare("other") || tr.AllowsBare(".") {
		t.Error("exceptions for bare repositories")
	}
}

func TestLooksBare(t *testing.T) {
	for names, want := range map[string]bool{
		"HEAD objects refs config": true, "head OBJECTS": true, "HEAD refs": true, "HEAD commondir": true, "HEAD. refs": true,
		"HEAD": false, "objects refs config": false, "": false, "HEAD config": false,
	} {
		if got := LooksBare(strings.Fields(names)); got != want {
			t.Errorf("%q: %v", names, got)
		}
	}
}

func TestFold(t *testing.T) {
	for _, same := range [][]string{{"a", "A"}, {"é", "É", "e\u0301", "E\u0301"}, {"k", "K", "\u212a"}, {"s", "S", "ſ"}, {"x\u200by", "xy"}, {"Σ", "σ", "ς"}, {"Å", "\u212b", "å", "a\u030a"}} {
		for _, s := range same[1:] {
			if Fold(s) != Fold(same[0]) {
				t.Errorf("%q and %q differ: %q %q", s, same[0], Fold(s), Fold(same[0]))
			}
		}
	}
	if Fold("a\xffB") != "a\xffb" || Fold("e") == Fold("é") {
		t.Error("too much folding")
	}
}

func TestCheckNameOnWindows(t *testing.T) {
	for _, n := range []string{"CON", "nul.txt", "COM1", "lpt9.x", "aux", "con .txt", "a:b", "a.", "a ", `a\b`, "GIT~1", "LONGFI~1.TXT", "a\tb", "a?", "x\xff", "CONOUT$", "COM¹"} {
		if checkName(n, "windows") == nil {
			t.Errorf("%q is accepted on Windows", n)
		}
		if n != "" && checkName(n, "linux") != nil {
			t.Errorf("%q is refused on Linux", n)
		}
	}
	for _, n := range []string{"a", "console", "a.b", "com10", "é", ".git", "tilde~x"} {
		if err := checkName(n, "windows"); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
	for _, n := range []string{"", ".", "..", "a/b", "a\x00", strings.Repeat("x", 256)} {
		if checkName(n, "linux") == nil {
			t.Errorf("%q is accepted", n)
		}
	}
}

// FuzzTrusted: no spelling of a trusted name gets through, and exceptions only
// ever allow more.
func FuzzTrusted(f *testing.F) {
	for _, s := range []string{".git", ".GIT ", "a/.g\u200cit/x", "GIT~1", ".git::$INDEX_ALLOCATION", "\u212a", "AGENTS.md", `a\b`} {
		f.Add(s, "a")
	}
	allow := NewTrust([]string{".vscode", "docs/AGENTS.md"})
	f.Fuzz(func(t *testing.T, p, q string) {
		_, refused := Trusted(p)
		for name, variant := range map[string]string{"folded": Fold(p), "upper": strings.ToUpper(p), "NFC": norm.NFC.String(p), "NFD": norm.NFD.String(p), "dot": p + ".", "space": p + " ", "stream": p + ":s", "below": p + "/x", "ignorable": p + "\u200c"} {
			// Upper case of a final sigma and its like changes the letter.
			if _, r := Trusted(variant); refused && !r {
				t.Errorf("%q is refused, its %s form %q is not", p, name, variant)
			}
		}
		if _, r := Trusted(q + "/" + p); refused && !r {
			t.Errorf("%q is refused, below %q it is not", p, q)
		}
		if _, r := allow.Check(p); r && !refused {
			t.Errorf("an exception refuses %q", p)
		}
		if Fold(Fold(p)) != Fold(p) {
			t.Errorf("folding %q twice differs", p)
		}
	})
}
