package sandbox

import (
	"regexp"
	"strings"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

// What Docker accepts as the name, or the id, of a container.
var containerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func checkContainerName(parameter, name string) error {
	if containerName.MatchString(name) {
		return nil
	}
	return fault.New(fault.InvalidArgument, "%s is %.80q; it must be a container's name or id: letters, digits, _ . and -, starting with a letter or digit", parameter, name).
		Next("call docker_ps with all=true to see the containers there are")
}

func checkImageName(parameter, name string) error {
	if config.IsImageReference(name) {
		return nil
	}
	return fault.New(fault.InvalidArgument, "%s is %.80q; it must be an image reference such as app:dev or registry/team/app:1.2", parameter, name).
		Next("use lower-case letters, digits and separators in the name, and letters, digits, _ . and - in the tag")
}

// checkValue refuses what would end or split an argument or a variable.
func checkValue(parameter, value string) error {
	if strings.ContainsRune(value, 0) {
		return fault.New(fault.InvalidArgument, "%s contains a NUL byte", parameter)
	}
	return nil
}
