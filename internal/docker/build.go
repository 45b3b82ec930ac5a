package docker

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// Build is `docker build`.
type Build struct {
	Context    string // absolute, in the guest
	Dockerfile string // absolute, in the guest
	Tags       []string
	Target     string
	Args       map[string]string
	Labels     map[string]string
	NoCache    bool
	Buildkit   bool   // false: the classic builder
	IDFile     string // gets the image's id, in the guest
}

// CommandLine is the argument list. The classic builder needs ClassicBuilder in the
// environment of the docker program.
func (b Build) CommandLine() []string {
	args := []string{"build"}
	if b.Buildkit {
		args = []string{"buildx", "build", "--progress=plain", "--load"}
	}
	if b.NoCache {
		args = append(args, "--no-cache")
	}
	args = append(args, "--file="+b.Dockerfile)
	args = appendValue(args, "--iidfile", b.IDFile)
	args = appendValue(args, "--target", b.Target)
	args = appendList(args, "--tag", b.Tags)
	args = appendPairs(args, "--build-arg", b.Args)
	args = appendPairs(args, "--label", b.Labels)
	return append(args, "--", b.Context)
}

// ClassicBuilder makes `docker build` use the builder from before BuildKit.
func ClassicBuilder() map[string]string { return map[string]string{"DOCKER_BUILDKIT": "0"} }

// BuildStep is a step that a build has begun.
type BuildStep struct {
	Number, Total int    // within its stage; 0 where the builder does not count
	Text          string // "[dev 2/5] RUN make"
}

// BuildSteps finds the steps in a builder's output, of either kind. What is cut
// in the middle of a line is put together. It keeps at most one line.
type BuildSteps struct {
	line []byte
	On   func(BuildStep)
}

const maxStepLine = 4 << 10

var (
	buildkitStep = regexp.MustCompile(`^#\d+ (\[(?:[^\]]* )?(\d{1,4})/(\d{1,4})\] .*)$`)
	internalStep = regexp.MustCompile(`^#\d+ (\[internal\] .*|exporting to .*)$`)
	classicStep  = regexp.MustCompile(`^Step (\d{1,4})/(\d{1,4}) : (.*)$`)
)

// Write takes a piece of output; it never fails.
func (s *BuildSteps) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		part := p
		if end >= 0 {
			part = p[:end]
		}
		if room := maxStepLine - len(s.line); room > 0 {
			s.line = append(s.line, part[:min(room, len(part))]...)
		}
		if end < 0 {
			break
		}
		s.take(strings.TrimRight(string(s.line), "\r"))
		s.line, p = s.line[:0], p[end+1:]
	}
	return n, nil
}

func (s *BuildSteps) take(line string) {
	var step BuildStep
	if m := buildkitStep.FindStringSubmatch(line); m != nil {
		step = BuildStep{Text: m[1]}
		step.Number, _ = strconv.Atoi(m[2])
		step.Total, _ = strconv.Atoi(m[3])
	} else if m := classicStep.FindStringSubmatch(line); m != nil {
		step = BuildStep{Text: "[" + m[1] + "/" + m[2] + "] " + m[3]}
		step.Number, _ = strconv.Atoi(m[1])
		step.Total, _ = strconv.Atoi(m[2])
	} else if m := internalStep.FindStringSubmatch(line); m != nil {
		step = BuildStep{Text: m[1]}
	} else {
		return
	}
	s.On(step)
}
