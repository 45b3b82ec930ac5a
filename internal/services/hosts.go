package services

import "strings"

// The lines between which a guest's /etc/hosts names its services.
const (
	hostsBegin = "# BEGIN sandboxforge services"
	hostsEnd   = "# END sandboxforge services"
)

// Hosts is an /etc/hosts in which the given names, in that order, have the
// given addresses; what else is in it stays. No names take the block out.
func Hosts(content string, names, addresses []string) string {
	rest := content
	if before, after, ok := strings.Cut(content, hostsBegin+"\n"); ok {
		rest = before
		if _, tail, ok := strings.Cut(after, hostsEnd+"\n"); ok {
			rest += tail
		}
	}
	if len(names) == 0 {
		return rest
	}
	var b strings.Builder
	b.WriteString(rest)
	if rest != "" && !strings.HasSuffix(rest, "\n") {
		b.WriteByte('\n')
	}
	b.WriteString(hostsBegin + "\n")
	for i, n := range names {
		if addresses[i] != "" {
			b.WriteString(addresses[i] + " " + n + "\n")
		}
	}
	b.WriteString(hostsEnd + "\n")
	return b.String()
}
