package mcpserver

import (
	"os"
	"strings"
)

func isAddrInUse(error) bool { return false }

// container says by what a container was recognised, "" on a host.
func container() string {
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	for _, file := range []string{"/proc/1/cgroup", "/proc/self/cgroup"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if hint := containerCgroup(string(raw)); hint != "" {
			return file + " mentions " + hint
		}
	}
	return ""
}

func containerCgroup(cgroups string) string {
	for _, line := range strings.Split(cgroups, "\n") {
		for _, hint := range []string{"/docker/", "/docker-", "/kubepods", "/libpod-", "/lxc/", "/lxc.payload", "/containerd/"} {
			if strings.Contains(line, hint) {
				return hint
			}
		}
	}
	return ""
}
