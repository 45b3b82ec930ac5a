package hostpath

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"runtime"
	"strings"
	"unicode/utf8"
)

// maxName is the longest name of one component, in bytes, on the file systems
// that matter.
const maxName = 255

var (
	windowsDevice = regexp.MustCompile(`(?i)^(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(\..*)?$`)
	windowsShort  = regexp.MustCompile(`(?i)^[^~]{1,6}~[0-9]{1,6}(\.[^.]{0,3})?$`)
)

// CheckName reports why name cannot be one component of a path on this host,
// or nil. It is about what the host's file system would make of the name, not
// about what lies there.
func CheckName(name string) error { return checkName(name, runtime.GOOS) }

func checkName(name, goos string) error {
	switch {
	case name == "", name == ".", name == "..":
		return fmt.Errorf("%q is not a file name", name)
	case len(name) > maxName:
		return fmt.Errorf("a name of %d bytes is longer than %d", len(name), maxName)
	case strings.ContainsRune(name, 0):
		return errors.New("the name contains a NUL byte")
	case strings.ContainsRune(name, '/'):
		return errors.New("the name contains a slash")
	}
	if goos != "windows" {
		return nil
	}
	if i := strings.IndexAny(name, `<>:"\|?*`); i >= 0 {
		return fmt.Errorf("the name contains %q, which Windows gives another meaning", name[i])
	}
	for _, r := range name {
		if r < 0x20 {
			return errors.New("the name contains a control character, which Windows does not allow")
		}
	}
	switch {
	case !utf8.ValidString(name):
		return errors.New("the name is not UTF-8, which Windows cannot store")
	case strings.HasSuffix(name, ".") || strings.HasSuffix(name, " "):
		return errors.New("the name ends with a dot or a space, which Windows drops")
	case windowsDevice.MatchString(strings.TrimRight(name, " ")):
		return errors.New("the name is a device on Windows")
	case windowsShort.MatchString(name):
		return errors.New("the name has the form of a Windows short name, which may stand for another file")
	}
	return nil
}

// CheckRel reports why rel is not a plain relative path with forward slashes:
// empty components, "." and "..", absolute, or a component that CheckName
// refuses. The path "." itself is allowed.
func CheckRel(rel string) error { return checkRel(rel, runtime.GOOS) }

func checkRel(rel, goos string) error {
	if rel == "." {
		return nil
	}
	if rel == "" {
		return errors.New("the path is empty")
	}
	if len(rel) > 4096 {
		return fmt.Errorf("a path of %d bytes is longer than 4096", len(rel))
	}
	if path.IsAbs(rel) {
		return fmt.Errorf("%q is absolute", rel)
	}
	for c := range strings.SplitSeq(rel, "/") {
		if err := checkName(c, goos); err != nil {
			return err
		}
	}
	return nil
}
