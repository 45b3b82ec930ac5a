package doctor

import (
	"os"
	"strconv"
	"strings"
)

// Processes lists the supervisors and hypervisors whose arguments name a VM
// under vmDir. Whatever else names one, an editor or a copy under way, is
// nobody's business.
func Processes(vmDir string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil || len(b) == 0 {
			continue // gone, another user's, or a kernel thread
		}
		p, ok := processOf(pid, strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), vmDir)
		if ok && p.Kind != "other" {
			out = append(out, p)
		}
	}
	return out, nil
}

// container looks for the marks that container runtimes leave.
func container() string {
	for path, name := range map[string]string{"/.dockerenv": "Docker", "/run/.containerenv": "Podman"} {
		if _, err := os.Stat(path); err == nil {
			return name
		}
	}
	return ""
}
