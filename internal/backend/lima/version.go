package lima

import (
	"regexp"
	"strconv"
	"strings"
)

type version struct {
	text         string
	known        bool // a build from source may have no number
	major, minor int
}

var versionPattern = regexp.MustCompile(`\bv?(\d{1,4})\.(\d{1,4})\S{0,60}`)

// parseVersion reads `limactl --version`.
func parseVersion(out string) version {
	text := printable(strings.TrimPrefix(strings.TrimSpace(out), "limactl version "))
	v := version{text: text}
	if m := versionPattern.FindStringSubmatch(text); m != nil {
		v.major, _ = strconv.Atoi(m[1])
		v.minor, _ = strconv.Atoi(m[2])
		v.text, v.known = m[0], true
	}
	if v.text == "" {
		v.text = "unknown"
	}
	return v
}
