package buildcache

import "regexp"

// keyVersion changes when the key covers more or is made differently.
const keyVersion = "build 1"

var keyForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// IsKey reports whether s has the form of a key.
func IsKey(s string) bool { return keyForm.MatchString(s) }

// Base is an image that a Dockerfile needs.
type Base struct {
	Ref string // as it is asked of the engine
	ID  string // "" if the engine does not have it, or the reference is not resolved
}

// Input is everything of a build that can be known before it.
type Input struct {
	Content    string // Context.Hash
	Ignore     []byte // the text of .dockerignore
	Dockerfile string // Dockerfile.Hash
	Target     string
	Args       map[string]string // the caller's
	// Auto are build arguments that are added to the caller's. The time of the
	// build is not among them: it would make every build another one.
	Auto     map[string]string
	Buildkit bool
	Bases    []Base
}

// Key names what the build makes: equal keys, equal inputs.
func (in Input) Key() string {
	d := newDigest(keyVersion)
	d.add(in.Content, string(in.Ignore), in.Dockerfile, in.Target)
	d.pairs(in.Args)
	d.pairs(in.Auto)
	builder := "classic"
	if in.Buildkit {
		builder = "buildkit"
	}
	d.add(builder, count(len(in.Bases)))
	for _, b := range in.Bases {
		state := "absent"
		if b.ID != "" {
			state = "present"
		}
		d.add(b.Ref, state, b.ID)
	}
	return d.sum()
}

// ArgsHash stands for build arguments where they must not be readable, "" for
// none.
func ArgsHash(args map[string]string) string {
	if len(args) == 0 {
		return ""
	}
	d := newDigest("build args")
	d.pairs(args)
	return d.sum()
}
