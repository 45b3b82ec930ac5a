package host

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// SharedOfFile is what a process has mapped of a file and not made its own by
// writing, in bytes of proportional set size; zero where it cannot be told.
func SharedOfFile(pid int, path string) (bytes int64) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	inside := false
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, rest, _ := strings.Cut(sc.Text(), " ")
		if !strings.HasSuffix(key, ":") { // the head of a mapping
			inside = strings.HasSuffix(sc.Text(), " "+path)
			continue
		}
		if !inside {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			continue
		}
		switch key {
		case "Pss:":
			bytes += kib << 10
		case "Anonymous:":
			bytes -= kib << 10
		}
	}
	return max(bytes, 0)
}
