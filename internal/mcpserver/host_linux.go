package mcpserver

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func isAddrInUse(error) bool { return false }

// portHolder names the process that listens on a TCP port of this machine, ""
// if that cannot be told (another user's process shows no descriptors).
func portHolder(port int) string {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			if inode := listening(sc.Text(), port); inode != "" {
				inodes["socket:["+inode+"]"] = true
			}
		}
		f.Close()
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		link, err := os.Readlink(fd)
		if err != nil || !inodes[link] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), pid)
	}
	return ""
}

// listening returns the inode of a line of /proc/net/tcp that is a listener on
// the port.
func listening(line string, port int) string {
	const state, local, inode = 3, 1, 9
	f := strings.Fields(line)
	if len(f) <= inode || f[state] != "0A" {
		return ""
	}
	_, hex, ok := strings.Cut(f[local], ":")
	if !ok {
		return ""
	}
	n, err := strconv.ParseUint(hex, 16, 16)
	if err != nil || int(n) != port || f[inode] == "0" {
		return ""
	}
	return f[inode]
}

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
