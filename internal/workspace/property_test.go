//go:build unix

package workspace

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func checksummed(data []byte) []byte {
	if len(data) < sha256.Size {
		return data
	}
	body := data[:len(data)-sha256.Size]
	sum := sha256.Sum256(body)
	return append(slices.Clone(body), sum[:]...)
}

// TestSettledManifests: each one is asked of the disk, and one that cannot be
// written there is an error.
func TestSettledManifests(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "missing")} {
		if err := SettleManifests(d); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"a.manifest", "b.manifest"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := SettleManifests(dir); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "c.manifest")); err != nil {
		t.Fatal(err)
	}
	if err := SettleManifests(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestManifestRoundTrip(t *testing.T) {
	m := map[string]*Ancestor{
		"a":       {Kind: File, Size: 1 << 40, Exec: true, Put: true, Hash: sha256.Sum256(nil), Host: Stamp{1, -2, 3, 1 << 63}, Guest: Stamp{1, 2, 3, 4}},
		"a/b\xff": {Kind: Symlink, Target: "x\ny", Pending: true}, "d": {Kind: Dir, Put: true},
	}
	path := filepath.Join(t.TempDir(), "m")
	if err := saveManifest(path, m); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, loadManifest(path)); d != "" {
		t.Error(d)
	}
	data, _ := os.ReadFile(path)
	for i := range data {
		bad := slices.Clone(data)
		bad[i] ^= 0x10
		if got, err := decodeManifest(bad); err == nil {
			t.Fatalf("a flipped bit at %d is accepted: %v", i, got)
		}
		if _, err := decodeManifest(data[:i]); err == nil {
			t.Fatalf("cut at %d is accepted", i)
		}
	}
}

// TestRandomEditsLoseNothing lets both sides edit at random and syncs in random
// directions, and holds every step to the promises:
//
//   - a direction changes only its destination;
//   - a content that disappears from the destination was put there by an earlier
//     sync, unchanged since, or was given up by the policy;
//   - what the destination changed since the last sync is still there, unless
//     the policy gave it up;
//   - the same sync again does nothing.
func TestRandomEditsLoseNothing(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 10
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range rounds {
		randomRun(t, rand.New(rand.NewPCG(seed, uint64(i))))
		if t.Failed() {
			t.Fatalf("seed %d, run %d", seed, i)
		}
	}
}

func randomRun(t *testing.T, r *rand.Rand) {
	p := newPair(t)
	os.MkdirAll(p.guest, 0o755)
	var story []string
	serial := 0
	names := []string{"a", "b", "c", "d", "a/x", "a/y", "b/x", "b/b/z", "c/c/c", "d/x"}
	edit := func(dir string) {
		for range r.IntN(5) {
			name := names[r.IntN(len(names))]
			full := filepath.Join(dir, name)
			serial++
			switch r.IntN(8) {
			case 0, 1:
				os.RemoveAll(full)
				story = append(story, "rm "+full)
			case 2:
				os.RemoveAll(full)
				if os.MkdirAll(filepath.Dir(full), 0o755) == nil {
					os.Symlink("a", full)
				}
				story = append(story, "ln "+full)
			case 3:
				os.MkdirAll(full, 0o755)
				story = append(story, "mkdir "+full)
			default:
				if i, err := os.Lstat(full); err == nil && !i.Mode().IsRegular() && r.IntN(2) == 0 {
					os.RemoveAll(full)
				}
				// Unique contents, so that a loss is a loss; now and then the
				// same on both sides.
				text := fmt.Sprintf("content %d", serial)
				if r.IntN(6) == 0 {
					text = "common"
				}
				if os.MkdirAll(filepath.Dir(full), 0o755) == nil && os.WriteFile(full, []byte(text), 0o644) == nil {
					story = append(story, "write "+full+" "+text)
				}
			}
		}
	}
	// synced is what each side had after the last sync of any direction, for
	// paths where both agreed.
	agreed := map[string]string{}
	for range 6 {
		edit(p.host)
		edit(p.guest)
		host, guest := readTree(p.host), readTree(p.guest)
		up := r.IntN(2) == 0
		policy := []OnConflict{Fail, Fail, KeepHost, KeepGuest}[r.IntN(4)]
		run := func() (int, []Conflict) {
			if up {
				res := p.up()
				return res.FilesSent + res.FilesDeleted, res.Conflicts
			}
			res := p.down(DownOptions{OnConflict: policy})
			return len(res.Created) + len(res.Updated) + len(res.Deleted), res.Conflicts
		}
		_, conflicts := run()
		story = append(story, fmt.Sprintf("sync up=%v %s", up, policy))
		host2, guest2 := readTree(p.host), readTree(p.guest)
		src, dst, dst2 := host, guest, guest2
		if up {
			if d := cmp.Diff(host, host2); d != "" {
				t.Errorf("up changed the host: %s", d)
			}
		} else {
			src, dst, dst2 = guest, host, host2
			if d := cmp.Diff(guest, guest2); d != "" {
				t.Errorf("down changed the guest: %s", d)
			}
		}
		given := map[string]bool{}
		for _, c := range conflicts {
			if c.Resolution == string(KeepGuest) {
				given[c.Path] = true
			}
		}
		for path, was := range dst {
			now, there := dst2[path]
			if there && now == was || was == "dir" {
				continue
			}
			if was != agreed[path] && !given[path] {
				t.Errorf("%s: the destination's own %q became %q (there: %v)", path, was, now, there)
			}
			if there && now != src[path] {
				t.Errorf("%s: became %q, which neither side had", path, now)
			}
			if !there {
				if s, ok := src[path]; ok && s == was {
					t.Errorf("%s: removed though the source has it", path)
				}
			}
		}
		for path, now := range dst2 {
			if _, was := dst[path]; !was && now != src[path] {
				t.Errorf("%s: appeared as %q, the source has %q", path, now, src[path])
			}
		}
		if n, again := run(); n != 0 {
			t.Errorf("the second sync did %d things: %+v", n, again)
		}
		if d := cmp.Diff(dst2, map[bool]map[string]string{true: readTree(p.guest), false: readTree(p.host)}[up]); d != "" {
			t.Errorf("the second sync changed something: %s", d)
		}
		for path, h := range host2 {
			if g, ok := guest2[path]; ok && g == h {
				agreed[path] = h
			}
		}
		if t.Failed() {
			t.Logf("story:\n%s", strings.Join(story, "\n"))
			return
		}
	}
}
