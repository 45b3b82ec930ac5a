package image

import (
	"strings"
	"testing"
)

func TestPackageProgress(t *testing.T) {
	var got []Progress
	p := packageProgress{report: func(p Progress) { got = append(got, p) }}
	for _, l := range strings.Split(`I: running apt-get update...
Get:1 somewhere trixie InRelease
0 upgraded, 30 newly installed, 0 to remove and 0 not upgraded.
I: downloading packages with apt...
I: installing essential packages...
Setting up libc6:amd64 (2.41-12) ...
I: installing remaining packages inside the chroot...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Setting up a (1) ...
Setting up b (2) ...
Setting up c (3) ...
I: running --customize-hook in shell: sh -c 'set -eu
I: creating tarball...`, "\n") {
		p.line(l)
	}
	last := 0.0
	for _, g := range got {
		if g.Fraction < last || g.Fraction > packagesShare || g.Message == "" || strings.Contains(g.Message, "set -eu") {
			t.Errorf("%+v after %.2f", g, last)
		}
		last = g.Fraction
	}
	if len(got) != 10 || last < 0.8 {
		t.Errorf("%d reports, the last at %.2f", len(got), last)
	}
}
