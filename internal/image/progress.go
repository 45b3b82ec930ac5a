package image

import (
	"regexp"
	"strconv"
	"strings"
)

// Progress is one step of a build, for people to watch.
type Progress struct {
	// Stage is "packages", "root file system", "check" or "publish".
	Stage string
	// Message is one line.
	Message string
	// Fraction of the whole build that is done, from 0 to 1; negative if not
	// known. It never goes back.
	Fraction float64
}

// Shares of a whole build that runs both stages, measured in seconds on a
// machine with two cores.
const packagesShare = 0.9

// packageProgress reads what mmdebstrap, apt and dpkg say.
type packageProgress struct {
	report   func(Progress)
	total    int // packages to install; 0 = not known yet
	done     int
	fraction float64
}

var newlyInstalled = regexp.MustCompile(`(\d+) newly installed`)

// phases are mmdebstrap's own announcements and where in the stage they come.
var phases = []struct {
	prefix string
	at     float64
}{
	{"I: running apt-get update", 0.02},
	{"I: downloading packages", 0.06},
	{"I: extracting archives", 0.2},
	{"I: installing essential packages", 0.25},
	{"I: installing remaining packages", 0.35},
	{"I: running --customize-hook", 0.85},
	{"I: cleaning package lists", 0.92},
	{"I: creating tarball", 0.94},
}

// line takes one line of output.
func (p *packageProgress) line(s string) {
	s = strings.TrimSpace(s)
	for _, ph := range phases {
		if strings.HasPrefix(s, ph.prefix) {
			p.advance(ph.at)
			message := strings.TrimPrefix(s, "I: ")
			if strings.Contains(message, "customize-hook") { // the line quotes the whole script
				message = "unpack kernel modules"
			}
			p.report(Progress{Stage: "packages", Message: message, Fraction: p.fraction * packagesShare})
			return
		}
	}
	if m := newlyInstalled.FindStringSubmatch(s); m != nil {
		// The last such line is about the packages on top of the essential ones.
		p.total, _ = strconv.Atoi(m[1])
		p.done = 0
		return
	}
	if name, ok := strings.CutPrefix(s, "Setting up "); ok {
		p.done++
		if p.total > 0 && p.fraction >= 0.35 {
			p.advance(0.35 + 0.5*min(1, float64(p.done)/float64(p.total)))
		}
		p.report(Progress{Stage: "packages", Message: "set up " + strings.TrimSuffix(name, " ..."), Fraction: p.fraction * packagesShare})
	}
}

func (p *packageProgress) advance(to float64) { p.fraction = max(p.fraction, to) }
