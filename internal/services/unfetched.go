package services

import (
	"slices"
	"strings"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
)

// Unfetched is a service whose image is not there and cannot be fetched. It is
// what the fault of Start wraps then, so that several can be told as one.
type Unfetched struct {
	Service Service
	Err     error // the engine's
}

// Error implements error.
func (u *Unfetched) Error() string { return oneLine(u.Service.hide(u.Err.Error())) }

// Unwrap is the engine's error.
func (u *Unfetched) Unwrap() error { return u.Err }

// CannotFetch is SERVICE_NOT_READY for services whose images cannot be fetched:
// at least one. There is no container to look at.
func CannotFetch(list ...*Unfetched) *fault.Error {
	var what, names, images, causes, checks, loads, keys, switches []string
	unreached := false
	for _, u := range list {
		s := u.Service
		names, images = append(names, s.Name), append(images, s.Image)
		what = append(what, s.Image+" of "+s.Name)
		loads = append(loads, "--load "+s.Image+"=ARCHIVE")
		keys = append(keys, "infra."+s.Name+".image")
		switches = append(switches, "infra."+s.Name+".enabled = false")
		cause, check := u.Error(), "docker pull "+s.Image
		if r, ok := docker.NotReached(s.hide(u.Err.Error())); ok {
			cause, check, unreached = "the VM cannot reach the registry ("+r.Reason+")", r.Check(), true
		}
		if !slices.Contains(causes, cause) {
			causes = append(causes, cause)
		}
		if !slices.Contains(checks, check) {
			checks = append(checks, check)
		}
	}
	noun := "image"
	if len(list) > 1 {
		noun = "images"
	}
	f := fault.Wrap(list[0], fault.ServiceNotReady, "the %s %s cannot be fetched", noun, and(what)).
		Because("%s", strings.Join(causes, "; ")).
		With("service", names[0]).With("image", images[0]).With("services", names).With("images", images)
	reach := "check with run_command whether the VM reaches the registry: " + strings.Join(checks, "; ")
	load := "or bring along what is missing: sandboxforge image build " + strings.Join(loads, " ") + " --as NAME on the host, then vm.image = \"NAME\""
	right := "check " + and(keys) + ": is there such an image, and does it need a login?"
	if unreached {
		f.NextSteps = []string{reach, load, right}
	} else {
		f.NextSteps = []string{right, reach, load}
	}
	return f.Next("or set %s", and(switches))
}

// and lists texts as in a sentence.
func and(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}
