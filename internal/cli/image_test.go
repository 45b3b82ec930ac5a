package cli

import (
	"testing"

	"sandboxforge/internal/sandbox"
)

// TestImageUsers: whatever has a disk over an image keeps it, snapshots whose
// instance has ended too.
func TestImageUsers(t *testing.T) {
	instance := []sandbox.Instance{{InstanceID: "inst_0000000a", Status: "running"}}
	snapshot := []sandbox.Snapshot{{SnapshotID: "snap_0000000a", Status: "ready"}}
	for _, c := range []struct {
		name  string
		f     *fakeService
		force bool
		want  string
	}{
		{name: "nobody", f: &fakeService{}},
		{name: "an instance", f: &fakeService{instances: instance}, want: "inst_0000000a"},
		{name: "a snapshot", f: &fakeService{snapshots: snapshot}, want: "snap_0000000a"},
		{name: "forced", f: &fakeService{instances: instance, snapshots: snapshot}, force: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := c.f.env(t)
			inUse, err := env.imageUsers(t.Context(), c.force)
			if err != nil {
				t.Fatal(err)
			}
			by := ""
			if inUse != nil {
				if by, err = inUse(nil); err != nil {
					t.Fatal(err)
				}
			}
			if by != c.want {
				t.Errorf("used by %q, want %q", by, c.want)
			}
		})
	}
}

// TestImageBuildUsage: what is wrong in the command line has the exit code that
// the help promises for it.
func TestImageBuildUsage(t *testing.T) {
	for _, args := range [][]string{
		{"nonesuch"}, {"default", "minimal"}, {"--load", "nothing"}, {"--as", "a b"}, {"--as", "minimal"}, {"minimal", "--load", "a:1=/nonesuch"}, {"--wrong"},
	} {
		f := &fakeService{}
		if code, _, errs := f.run(t, append([]string{"image", "build"}, args...)...); code != exitUsage || errs == "" {
			t.Errorf("%q: code %d, %q", args, code, errs)
		}
	}
}
