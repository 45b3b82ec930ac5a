package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guestbin"
)

// stageFormat and imageFormat are part of the digests: raise one when the code
// of its stage changes what it makes of an unchanged recipe.
const (
	stageFormat = 1
	imageFormat = 1
)

// Recipe is everything that decides what an image contains. Two recipes that
// are equal in every field give the same digest and so the same cached image.
type Recipe struct {
	// Name is what people call the image: "default", "minimal".
	Name string
	// Arch is the guest architecture as a GOARCH name.
	Arch string
	// Suite is the distribution's release.
	Suite string
	// Variant is mmdebstrap's package set to start from.
	Variant string
	// Packages are installed on top of the variant, without recommendations.
	Packages []string
	// PathExcludes are glob patterns of files that dpkg does not unpack.
	PathExcludes []string

	// Layers name the folders of files/ that are laid over the packages, later
	// ones over earlier ones.
	Layers []string
	// Drops are paths or directories (without leading slash) of the package
	// stage that do not go into the image. A trailing /* keeps the directory.
	Drops []string
	// Masks are systemd units that must never start.
	Masks []string
	// Links are symbolic links to add, path to target.
	Links map[string]string
	// Groups are existing groups that the user sandbox joins.
	Groups []string
	// EarlyModules are kernel modules that the initrd loads before it mounts
	// the root device; LateModules are loaded while the system starts.
	// Dependencies are found, names that the kernel has built in are skipped.
	EarlyModules, LateModules []string
	// SizeMiB is the size of the root file system, in MiB. Instances grow it.
	SizeMiB int
	// Cmdline is the kernel command line that the image wants.
	Cmdline []string

	// Loads are container images that are in Docker from the start; Base is the
	// recipe that this one was made from, if it has another name. See With.
	Loads []Load `json:",omitempty"`
	Base  string `json:",omitempty"`

	// Agent, Shim and Init are the guest executables.
	Agent, Shim, Init []byte `json:"-"`
}

// Recipe names.
const (
	DefaultName = "default"
	MinimalName = "minimal"
)

// Names lists the recipes there are.
func Names() []string { return []string{DefaultName, MinimalName} }

// ByName returns the recipe called name for an architecture. An unknown name
// is INVALID_ARGUMENT.
func ByName(name, arch string) (Recipe, error) {
	switch name {
	case "", DefaultName:
		return Default(arch)
	case MinimalName:
		return Minimal(arch)
	}
	return Recipe{}, fault.New(fault.InvalidArgument, "there is no image recipe %q", name).
		Next("use one of: %s", strings.Join(Names(), ", "))
}

// withGuest adds the embedded executables to a recipe.
func withGuest(r Recipe) (Recipe, error) {
	if !slices.Contains(guestbin.Architectures(), r.Arch) {
		return r, fault.New(fault.InvalidArgument, "no guest images for architecture %q", r.Arch).
			Next("use one of: %s", strings.Join(guestbin.Architectures(), ", "))
	}
	var err error
	if r.Agent, err = guestbin.Agent(r.Arch); err != nil {
		return r, err
	}
	if r.Shim, err = guestbin.Shim(r.Arch); err != nil {
		return r, err
	}
	r.Init, err = guestbin.Init(r.Arch)
	return r, err
}

// PackagesDigest identifies the result of the first stage.
func (r Recipe) PackagesDigest() string {
	return digestOf(struct {
		Format               int
		Arch, Suite, Variant string
		Packages, Excludes   []string
		Hook                 string
	}{stageFormat, r.Arch, r.Suite, r.Variant, r.Packages, r.PathExcludes, customizeHook})
}

// Digest identifies the image that the recipe makes.
func (r Recipe) Digest() (string, error) {
	layers, err := layerFiles(r.Layers)
	if err != nil {
		return "", err
	}
	return digestOf(struct {
		Format            int
		Recipe            Recipe
		Packages          string
		Files             []file
		Agent, Shim, Init string
	}{imageFormat, r, r.PackagesDigest(), layers, guestbin.Digest(r.Agent), guestbin.Digest(r.Shim), guestbin.Digest(r.Init)}), nil
}

// digestOf hashes a value's JSON, in which struct fields keep their order and
// map keys are sorted.
func digestOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("image: digest of %T: %v", v, err)) // only for types that have no JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
