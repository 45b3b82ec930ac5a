package docker

import (
	"regexp"
	"strings"
)

// What the docker program and its engine say when something fails, read for
// people. The texts are the guest's: hostile ones get bounded nonsense.

// Unreached is a registry that could not be spoken to.
type Unreached struct {
	Registry string // its host, with a port where that was said
	Image    string // as the output names it; "" where it does not
	Reason   string // in a few words
}

var (
	// The registry's API and its tokens; not what a step of a build asks for.
	registryCall = regexp.MustCompile(`"https?://([A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?)/(?:v2/|token\?)[^" ]*": (.+)`)
	refusal      = regexp.MustCompile(`(?:Error response from daemon|^ERROR|pulling [^ ]+): .*(lookup ([A-Za-z0-9.-]{1,253}).*no such host.*)`)
	noContact    = regexp.MustCompile(`lookup [A-Za-z0-9.-]+.*no such host|dial tcp.*|x509: .*|net/http: request canceled while waiting for connection.*`)
	imageNames   = []*regexp.Regexp{
		regexp.MustCompile(`Unable to find image '([^' ]{1,300})' locally`),
		regexp.MustCompile(`failed to solve: (?:[A-Z][A-Za-z]+: )?([^ ]{1,300}): failed to `),
		regexp.MustCompile(`load metadata for ([^ ]{1,300})`),
		regexp.MustCompile(`failed to resolve reference "([^" ]{1,300})"`),
		regexp.MustCompile(`failed to resolve source metadata for ([^ ]{1,300}): `),
	}
)

// NotReached finds in what Docker printed that a registry could not be reached:
// its name is not known, nobody answers, or its certificate is not trusted.
func NotReached(output string) (Unreached, bool) {
	var u Unreached
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		var reason string
		if m := registryCall.FindStringSubmatch(line); m != nil {
			u.Registry, reason = m[1], m[2]
		} else if m := refusal.FindStringSubmatch(line); m != nil {
			reason, u.Registry = m[1], m[2]
		}
		if reason = noContact.FindString(reason); reason == "" {
			continue
		}
		reason = strings.TrimPrefix(reason, "dial tcp: ")
		u.Reason = Words(strings.TrimRight(reason, ". "), 200)
		for _, name := range imageNames {
			if m := name.FindStringSubmatch(output); m != nil {
				u.Image = m[1]
				break
			}
		}
		return u, true
	}
	return Unreached{}, false
}

// Cause is the sentence that says so. image is used where the output named none.
func (u Unreached) Cause(image string) string {
	return "the VM cannot reach the registry (" + u.Reason + "), and it does not have " + u.image(image, "the image")
}

// Check is the command that shows, in the VM, whether the registry answers.
func (u Unreached) Check() string { return "curl -sSI https://" + u.Registry + "/v2/" }

// Next are the steps that help.
func (u Unreached) Next(image string) []string {
	return []string{
		"check with run_command: " + u.Check(),
		"or bring it along: sandboxforge image build --load " + u.image(image, "IMAGE") + "=ARCHIVE --as NAME on the host, then vm.image = \"NAME\"",
	}
}

func (u Unreached) image(given, none string) string {
	for _, name := range []string{given, u.Image} {
		if name != "" {
			return name
		}
	}
	return none
}

// seeHelp is the line with which the docker program ends that had something to
// say.
var seeHelp = regexp.MustCompile(`^(?:See|Run) '.*--help'`)

// Complaint is the line of what a docker program printed that says what went
// wrong: the last one, but for its reference to the help. It is cut between
// words.
func Complaint(output string) string {
	last := ""
	for _, line := range strings.FieldsFunc(output, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !seeHelp.MatchString(line) {
			last = line
		}
	}
	return Words(shown(last, maxMessage), 500)
}

// Words is the beginning of a text of at most most bytes, cut between words
// where there is a space to cut at.
func Words(s string, most int) string {
	if len(s) <= most {
		return s
	}
	s = s[:most+1]
	if i := strings.LastIndexByte(s, ' '); i > 0 {
		s = s[:i]
	} else {
		s = s[:most]
	}
	return strings.ToValidUTF8(strings.TrimRight(s, " ,;:"), "") + " ..."
}
