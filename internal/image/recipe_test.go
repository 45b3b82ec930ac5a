package image

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandboxforge/internal/fault"
)

// minimalOnce spares unpacking the executables again and again.
var minimalOnce = sync.OnceValue(func() Recipe {
	r, _ := Minimal("amd64")
	return r
})

// testRecipe is a recipe whose executables need no build.
func testRecipe() Recipe {
	r := minimalOnce()
	r.Agent, r.Shim, r.Init = []byte("agent"), []byte("shim"), []byte("init")
	r.SizeMiB = 160
	return r
}

func digest(t *testing.T, r Recipe) string {
	t.Helper()
	d, err := r.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDigestCoversEveryField(t *testing.T) {
	base := digest(t, testRecipe())
	if base != digest(t, testRecipe()) {
		t.Fatal("equal recipes, different digests")
	}
	packageFields := []string{"Arch", "Suite", "Variant", "Packages", "PathExcludes"}
	fields := reflect.TypeFor[Recipe]()
	for i := range fields.NumField() {
		r := testRecipe()
		f := reflect.ValueOf(&r).Elem().Field(i)
		switch f.Interface().(type) {
		case string:
			f.SetString(f.String() + "x")
		case []string:
			f.Set(reflect.ValueOf(append(slices.Clone(f.Interface().([]string)), "default")))
		case []byte:
			f.SetBytes(append(slices.Clone(f.Bytes()), 'x'))
		case int:
			f.SetInt(f.Int() + 1)
		case map[string]string:
			f.Set(reflect.ValueOf(map[string]string{"etc/x": "/dev/null"}))
		case []Load:
			f.Set(reflect.ValueOf([]Load{{Reference: "a:1", ArchiveSHA256: "00"}}))
		default:
			t.Fatalf("this test does not know how to change %s", fields.Field(i).Name)
		}
		name := fields.Field(i).Name
		if digest(t, r) == base {
			t.Errorf("%s is not part of the digest", name)
		}
		if got, want := r.PackagesDigest() != testRecipe().PackagesDigest(), slices.Contains(packageFields, name); got != want {
			t.Errorf("%s changes the package digest: %v, want %v", name, got, want)
		}
	}
}

func TestRecipesAreNotRemade(t *testing.T) {
	for _, name := range Names() {
		a, _ := ByName(name, "amd64")
		b, _ := ByName(name, "amd64")
		if a.Name != name || digest(t, a) != digest(t, b) {
			t.Errorf("%s: two calls, two recipes", name)
		}
	}
}

func TestUnknownRecipe(t *testing.T) {
	if _, err := ByName("nonesuch", "amd64"); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("unknown name: %v", err)
	}
	if _, err := ByName("minimal", "sparc"); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("unknown architecture: %v", err)
	}
}

func TestNoTimerAndNoLoginIsLeft(t *testing.T) {
	r, _ := Default("amd64")
	for _, p := range r.Packages {
		if strings.Contains(p, "ssh") {
			t.Errorf("package %s", p)
		}
	}
	for _, m := range []string{"apt-daily.timer", "fstrim.timer", "systemd-tmpfiles-clean.timer", "serial-getty@ttyS0.service"} {
		if !slices.Contains(r.Masks, m) {
			t.Errorf("%s is not masked", m)
		}
	}
	for i, m := range r.Masks {
		if slices.Contains(r.Masks[:i], m) {
			t.Errorf("%s is masked twice", m)
		}
	}
}
