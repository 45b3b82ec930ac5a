package main

import "strings"

// options is the part of the kernel command line that init acts on.
type options struct {
	root      string
	rootFlags string
	init      []string
	net       string
	hostname  string
}

// parseCmdline reads a kernel command line. Unknown words are the kernel's or
// the real init's business; of a repeated key the last one counts, as for the
// kernel.
func parseCmdline(line string) options {
	o := options{root: "/dev/vda", init: []string{"/sbin/init"}}
	for _, word := range strings.Fields(line) {
		key, value, ok := strings.Cut(word, "=")
		if !ok || value == "" {
			continue
		}
		switch key {
		case "root":
			o.root = value
		case "rootflags":
			o.rootFlags = value
		case "sandboxforge.init":
			o.init = strings.Split(value, ",")
		case "sandboxforge.net":
			o.net = value
		case "sandboxforge.hostname":
			o.hostname = value
		}
	}
	return o
}
