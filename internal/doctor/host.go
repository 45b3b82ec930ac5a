package doctor

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"sandboxforge/internal/host"
)

// Host is what the doctor asks of the machine.
type Host struct {
	GOOS, GOARCH string
	Root         bool // the effective user is root
	LookPath     func(string) (string, error)
	// Distribution is ID and ID_LIKE of /etc/os-release, the closest name first;
	// nil or empty where it does not say.
	Distribution func() []string
	CPUs         func() int
	Memory       func() (int64, error)       // available, in bytes
	DiskFree     func(string) (int64, error) // where path will be, in bytes
	// Processes lists supervisors and hypervisors whose arguments name a VM
	// under vmDir; nil where the system does not tell.
	Processes func(vmDir string) ([]Process, error)
	// Container names the container runtime that this process runs under, ""
	// for none.
	Container func() string
}

// ThisHost is the real machine.
func ThisHost() Host {
	return Host{
		GOOS: runtime.GOOS, GOARCH: runtime.GOARCH,
		Root:     os.Geteuid() == 0,
		LookPath: exec.LookPath,
		CPUs:     host.CPUs,
		Distribution: func() []string {
			text, err := os.ReadFile("/etc/os-release")
			if err != nil {
				return nil
			}
			return distribution(string(text))
		},
		Memory:    host.MemoryAvailable,
		DiskFree:  host.DiskFree,
		Processes: Processes,
		Container: container,
	}
}

// manager is a package manager: the program that shows that the host has it,
// and the words by which an instruction is recognised as being for it.
type manager struct {
	program string
	words   []string
	of      []string // distributions, as /etc/os-release names them
}

var managers = []manager{
	{"apt-get", []string{"apt-get", "apt "}, []string{"debian", "ubuntu"}},
	{"dnf", []string{"dnf"}, []string{"fedora", "rhel", "centos"}},
	{"pacman", []string{"pacman"}, []string{"arch"}},
}

// distribution reads ID and ID_LIKE in the text of an os-release file.
func distribution(text string) []string {
	var id, like []string
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch words := strings.Fields(strings.Trim(value, `"'`)); key {
		case "ID":
			id = words
		case "ID_LIKE":
			like = words
		}
	}
	return append(id, like...)
}

// manager is the package manager of this host: that of its distribution, unless
// only others are there; nil if neither says.
func (h Host) manager() *manager {
	here := func(m *manager) bool {
		_, err := h.LookPath(m.program)
		return err == nil
	}
	var first *manager
	for i := range managers {
		if here(&managers[i]) {
			first = &managers[i]
			break
		}
	}
	if h.Distribution != nil {
		for _, name := range h.Distribution() {
			for i := range managers {
				if m := &managers[i]; slices.Contains(m.of, name) && (first == nil || here(m)) {
					return m
				}
			}
		}
	}
	return first
}

// fixes keeps, of instructions for several distributions, those for this host,
// as commands that can be typed here: without the distribution's name before
// them, and without sudo for root.
func (h Host) fixes(steps []string) []string {
	mine := h.manager()
	var out []string
	for _, step := range steps {
		for _, line := range split(step) {
			of := managerOf(line)
			if line == "" || mine != nil && of != nil && of.program != mine.program {
				continue
			}
			if mine != nil && of != nil {
				// "Debian, Ubuntu: sudo apt-get install x"
				if before, after, ok := strings.Cut(line, ": "); ok && managerOf(before) == nil && managerOf(after) != nil {
					line = after
				}
			}
			if h.Root {
				line = strings.TrimPrefix(line, "sudo ")
				line = strings.ReplaceAll(line, "`sudo ", "`")
			}
			if !slices.Contains(out, line) {
				out = append(out, line)
			}
		}
	}
	return joined(out)
}

// install is a command that installs packages: how, its options, and which.
var install = regexp.MustCompile(`^((?:sudo )?(?:apt-get install|dnf install|pacman -S))((?: --?[a-z-]+)*)((?: [a-z0-9][a-z0-9+.-]*)+)$`)

// joined makes one command of those that install packages in the same way, in
// the place of the first.
func joined(steps []string) []string {
	type command struct {
		at                int
		options, packages []string
	}
	commands := map[string]*command{}
	var out []string
	for _, step := range steps {
		m := install.FindStringSubmatch(step)
		if m == nil {
			out = append(out, step)
			continue
		}
		c := commands[m[1]]
		if c == nil {
			c = &command{at: len(out)}
			commands[m[1]] = c
			out = append(out, "")
		}
		c.options = union(c.options, strings.Fields(m[2]))
		c.packages = union(c.packages, strings.Fields(m[3]))
		out[c.at] = strings.Join(slices.Concat([]string{m[1]}, c.options, c.packages), " ")
	}
	return out
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// split makes one instruction per line, and per package manager where a line
// offers one command for each.
func split(step string) []string {
	lines := strings.Split(step, "\n")
	if countManagers(step) > 1 {
		lines = strings.Split(strings.NewReplacer("; ", "\n", ", or ", "\n").Replace(step), "\n")
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

func countManagers(s string) (n int) {
	for _, m := range managers {
		if slices.ContainsFunc(m.words, func(w string) bool { return strings.Contains(s, w) }) {
			n++
		}
	}
	return n
}

func managerOf(line string) *manager {
	for i := range managers {
		for _, w := range managers[i].words {
			if strings.Contains(line, w) {
				return &managers[i]
			}
		}
	}
	return nil
}
