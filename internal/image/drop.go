package image

import (
	"path"
	"strings"
)

// dropper decides which paths of the package archive stay out of the image. A
// plain path drops that entry and all below it; a pattern drops what it
// matches and all below that.
type dropper struct {
	plain    map[string]bool
	patterns []string
}

func newDropper(rules []string) dropper {
	d := dropper{plain: map[string]bool{}}
	for _, r := range rules {
		if strings.ContainsAny(r, "*?[") {
			d.patterns = append(d.patterns, r)
		} else {
			d.plain[r] = true
		}
	}
	return d
}

func (d dropper) match(name string) bool {
	for p := name; p != "." && p != "/"; p = path.Dir(p) {
		if d.plain[p] {
			return true
		}
		for _, pattern := range d.patterns {
			if ok, err := path.Match(pattern, p); err == nil && ok {
				return true
			}
		}
	}
	return false
}
