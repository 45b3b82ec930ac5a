package sandbox

import (
	"context"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"

	"sandboxforge/internal/buildcache"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/guest"
)

// buildRecords is a directory in the guest with a file for each build key: the
// ids of the images that were made of exactly that, oldest first. Labels alone
// do not say it, because whatever is built or committed from an image inherits
// them. In the guest the records share the images' fate: they are in its forks
// and snapshots, and go with the VM.
const buildRecords = "/var/lib/sandboxforge/builds"

const (
	maxBuildRecord = 64 << 10
	// maxRecorded bounds the images of one key: those of other commits, or too
	// old ones, may be among them.
	maxRecorded = 20
)

var imageID = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// recordedIDs are the images that were made of what the key names, whether or
// not they still exist.
func (d *dockerCall) recordedIDs(ctx context.Context, key string) ([]string, error) {
	text, err := d.guest.ReadFile(ctx, path.Join(buildRecords, key), maxBuildRecord)
	switch {
	case errors.Is(err, guest.ErrNotFound), errors.Is(err, guest.ErrTooLarge), errors.Is(err, guest.ErrFailedPrecondition):
		return nil, nil
	case err != nil:
		return nil, d.s.guestFault(ctx, d.lease, "reading the record of the build", err)
	}
	ids := strings.Fields(string(text))
	ids = slices.DeleteFunc(ids, func(id string) bool { return !imageID.MatchString(id) })
	return ids[max(0, len(ids)-maxRecorded):], nil
}

// recorded are the images of a key that exist, newest first.
func (d *dockerCall) recorded(ctx context.Context, key string) ([]buildcache.Image, error) {
	ids, err := d.recordedIDs(ctx, key)
	if err != nil {
		return nil, err
	}
	var list []buildcache.Image
	for _, id := range slices.Backward(ids) {
		i, err := d.engine.Image(ctx, id)
		switch {
		case errors.Is(err, docker.ErrNotFound):
		case err != nil:
			return nil, d.engineFault(ctx, "looking for a cached image", err)
		case i.Labels[buildcache.LabelKey] == key:
			list = append(list, buildcache.Image{ID: i.ID, Created: i.Created, Labels: i.Labels})
		}
	}
	return list, nil
}

// record notes that an image was made of what the key names.
func (d *dockerCall) record(ctx context.Context, key, id string) error {
	ids, err := d.recordedIDs(ctx, key)
	if err != nil {
		return err
	}
	ids = append(slices.DeleteFunc(ids, func(i string) bool { return i == id }), id)
	if _, err := d.guest.MakeDir(ctx, buildRecords, 0o755, "root"); err != nil {
		return d.s.guestFault(ctx, d.lease, "recording the build", err)
	}
	text := strings.Join(ids[max(0, len(ids)-maxRecorded):], "\n") + "\n"
	if err := d.guest.WriteFile(ctx, path.Join(buildRecords, key), []byte(text), 0o644, "root"); err != nil {
		return d.s.guestFault(ctx, d.lease, "recording the build", err)
	}
	return nil
}
