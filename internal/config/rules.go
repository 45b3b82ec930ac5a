package config

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A rule takes a value of the key's kind and says what is wrong with it, or "".

var (
	archName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)
	imageName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	networkName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,50}$`)
	databaseName = regexp.MustCompile(`^[A-Za-z0-9_$][A-Za-z0-9_$-]{0,63}$`)
	postgresName = regexp.MustCompile(`^[A-Za-z0-9_$][A-Za-z0-9_$-]{0,62}$`)
	hostLabel    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,48}[A-Za-z0-9])?$`)
	envName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	templateName = regexp.MustCompile(`^[^\x00-\x20\x7f-][^\x00-\x20\x7f]{0,254}$`)
	imageRef     = regexp.MustCompile(`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]{1,5})?/)?` +
		`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*` +
		`(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$`)
	placeholder = regexp.MustCompile(`\{[^{}]*\}|[{}]`)
)

const (
	maxGiB  = 1 << 20 // a PiB: keeps sizes in bytes far from overflow
	maxCPUs = 4096
	maxText = 4096
	maxList = 1000
)

func join(values []string) string { return strings.Join(values, ", ") }

func checkCPUs(v any) string {
	if n := v.(int64); n < 1 || n > maxCPUs {
		return fmt.Sprintf("%d is out of range", n)
	}
	return ""
}

func checkPositive(v any) string {
	switch f := v.(float64); {
	case f <= 0:
		return fmt.Sprintf("%v is not greater than 0", f)
	case f > maxGiB:
		return fmt.Sprintf("%v is more than %d GiB", f, maxGiB)
	}
	return ""
}

func checkEnum(values []string) func(any) string {
	return func(v any) string {
		s := v.(string)
		if slices.Contains(values, s) {
			return ""
		}
		if n := nearest(s, values); n != "" {
			return fmt.Sprintf("%s is not one of them; did you mean %q?", quote(s), n)
		}
		return quote(s) + " is not one of them"
	}
}

func checkPattern(re *regexp.Regexp) func(any) string {
	return func(v any) string {
		if s := v.(string); !re.MatchString(s) {
			return quote(s) + " does not have this form"
		}
		return ""
	}
}

func checkEach(rule func(any) string) func(any) string {
	return func(v any) string {
		for i, s := range v.([]string) {
			if why := rule(s); why != "" {
				return fmt.Sprintf("item %d: %s", i+1, why)
			}
		}
		return ""
	}
}

func checkTemplate(v any) string {
	s := v.(string)
	switch {
	case strings.HasPrefix(s, "-"):
		return quote(s) + " starts with a hyphen, which limactl would take for an option"
	case !templateName.MatchString(s):
		return quote(s) + " is empty, too long or contains spaces or control characters"
	}
	return ""
}

func checkImage(v any) string {
	if s := v.(string); !IsImageReference(s) {
		return quote(s) + " is not an image reference"
	}
	return ""
}

// IsImageReference reports whether s has the form of an image reference:
// [registry/]name[:tag][@digest]. Such a text can never be taken for an option.
func IsImageReference(s string) bool { return len(s) <= 512 && imageRef.MatchString(s) }

func checkTagFormat(v any) string {
	s := v.(string)
	bad := ""
	example := placeholder.ReplaceAllStringFunc(s, func(p string) string {
		switch p {
		case "{image}":
			return "team/app"
		case "{git_short}", "{deps_hash}", "{content_hash}":
			return "0123abcd"
		}
		bad = p
		return ""
	})
	switch {
	case bad != "":
		return fmt.Sprintf("%s in %s is not a placeholder", quote(bad), quote(s))
	case len(example) > 256 || !imageRef.MatchString(example):
		return quote(s) + " does not make an image reference"
	}
	return ""
}

func checkPassword(v any) string {
	s := v.(string)
	if n := utf8.RuneCountInString(s); n < 1 || n > 128 || strings.ContainsFunc(s, unicode.IsControl) {
		return "the password (hidden) is empty, too long or contains control characters"
	}
	return ""
}

func checkEnv(v any) string {
	m := v.(map[string]string)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch {
		case !envName.MatchString(k):
			return quote(k) + " is not a variable name"
		case strings.ContainsRune(m[k], 0):
			return "the value of " + k + " contains a NUL byte"
		}
	}
	return ""
}

// checkInside holds for a relative path with forward slashes that cannot leave
// the workspace, as it is written.
func checkInside(s string) string {
	switch {
	case s == "" || s == ".":
		return quote(s) + " names no file"
	case strings.ContainsFunc(s, unicode.IsControl):
		return quote(s) + " contains control characters"
	case strings.Contains(s, `\`):
		return quote(s) + " contains a backslash; separate directories with /"
	case path.IsAbs(s) || len(s) > 1 && s[1] == ':' || strings.HasPrefix(s, "~"):
		return quote(s) + " is not relative to the workspace"
	case slices.Contains(strings.Split(s, "/"), ".."):
		return quote(s) + " contains .. and could leave the workspace"
	}
	return ""
}

func checkInject(v any) string {
	s := v.(string)
	if s == "" {
		return ""
	}
	if why := checkInside(s); why != "" {
		return why
	}
	if strings.HasSuffix(s, "/") {
		return quote(s) + " is a directory"
	}
	return ""
}

func checkGlob(v any) string {
	s := v.(string)
	// A backslash escapes in a glob; otherwise a glob is held to the rules of
	// a path.
	if why := checkInside(strings.ReplaceAll(s, `\`, "")); why != "" {
		return why
	}
	if _, err := path.Match(s, ""); err != nil {
		return quote(s) + " is not a valid glob"
	}
	// Each ** multiplies what there is to try.
	if strings.Count(s, "**") > 3 {
		return quote(s) + " has more than three **"
	}
	return ""
}

func checkIgnorePattern(v any) string {
	s := v.(string)
	switch {
	case s == "":
		return "an empty pattern matches nothing"
	case strings.ContainsFunc(s, unicode.IsControl):
		return quote(s) + " contains control characters"
	}
	return ""
}

func checkAllowRefused(v any) string { return checkInside(strings.TrimSuffix(v.(string), "/")) }

// quote shows a value of hostile origin: bounded and escaped.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(s[:most], ""))
	}
	return fmt.Sprintf("%q", s)
}
