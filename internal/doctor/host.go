package doctor

import (
	"os"
	"os/exec"
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
		Root:      os.Geteuid() == 0,
		LookPath:  exec.LookPath,
		CPUs:      host.CPUs,
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
}

var managers = []manager{
	{"apt-get", []string{"apt-get", "apt "}},
	{"dnf", []string{"dnf"}},
	{"pacman", []string{"pacman"}},
}

// fixes keeps, of instructions for several distributions, those for this host,
// as commands that can be typed here: without the distribution's name before
// them, and without sudo for root.
func (h Host) fixes(steps []string) []string {
	var mine *manager
	for i := range managers {
		if _, err := h.LookPath(managers[i].program); err == nil {
			mine = &managers[i]
			break
		}
	}
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
	return out
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
