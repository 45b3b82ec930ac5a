package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
)

// tool is a host program that a build runs, with the package that has it.
type tool struct {
	name, apt, dnf, pacman string
	// user is set if only builds as an ordinary user need it.
	user bool
}

var tools = []tool{
	{name: "mmdebstrap", apt: "mmdebstrap", dnf: "mmdebstrap", pacman: "mmdebstrap"},
	{name: "apt-get", apt: "apt", dnf: "apt", pacman: "apt"},
	{name: "dpkg", apt: "dpkg", dnf: "dpkg", pacman: "dpkg"},
	{name: "tar", apt: "tar", dnf: "tar", pacman: "tar"},
	{name: "mkfs.ext4", apt: "e2fsprogs", dnf: "e2fsprogs", pacman: "e2fsprogs"},
	{name: "e2fsck", apt: "e2fsprogs", dnf: "e2fsprogs", pacman: "e2fsprogs"},
	{name: "unshare", apt: "util-linux", dnf: "util-linux", pacman: "util-linux", user: true},
	{name: "newuidmap", apt: "uidmap", dnf: "shadow-utils", pacman: "shadow", user: true},
	{name: "newgidmap", apt: "uidmap", dnf: "shadow-utils", pacman: "shadow", user: true},
}

// toolbox finds host programs.
type toolbox struct {
	// path is searched like $PATH, then the directories where systems keep
	// programs that ordinary users seldom have in theirs.
	path []string
}

func newToolbox() toolbox {
	return toolbox{path: append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin", "/usr/local/sbin")}
}

// find returns the program's path, "" if there is none.
func (b toolbox) find(name string) string {
	for _, dir := range b.path {
		if !filepath.IsAbs(dir) {
			continue
		}
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}

// check reports every missing program at once, with the commands that install
// them.
func (b toolbox) check(asRoot bool) error {
	var names, apt, dnf, pacman []string
	add := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	for _, t := range tools {
		if t.user && asRoot || b.find(t.name) != "" {
			continue
		}
		add(&names, t.name)
		add(&apt, t.apt)
		add(&dnf, t.dnf)
		add(&pacman, t.pacman)
	}
	if len(names) == 0 {
		return nil
	}
	return fault.New(fault.BackendUnavailable, "cannot build a guest image: missing %s", strings.Join(names, ", ")).
		Because("building a guest image runs these programs, and they are not installed").
		Next("Debian, Ubuntu: sudo apt-get install %s", strings.Join(apt, " ")).
		Next("Fedora: sudo dnf install %s", strings.Join(dnf, " ")).
		Next("Arch: sudo pacman -S %s", strings.Join(pacman, " ")).
		With("missing_tools", names)
}
