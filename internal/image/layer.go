package image

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed all:files
var embedded embed.FS

// file is one regular file to be laid over the packages.
type file struct {
	// Path has no leading slash.
	Path    string
	Mode    int64
	Content []byte
}

// layerFiles reads the named layers; a path in a later layer replaces the same
// path in an earlier one. The result is sorted by path.
func layerFiles(layers []string) ([]file, error) {
	found := map[string]file{}
	for _, layer := range layers {
		root, err := fs.Sub(embedded, path.Join("files", layer))
		if err != nil {
			return nil, err
		}
		err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			found[name] = file{Path: name, Mode: modeOf(name), Content: content}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("image layer %q: %w", layer, err)
		}
	}
	files := make([]file, 0, len(found))
	for _, f := range found {
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// modeOf is the mode of an embedded file, which go:embed does not keep.
func modeOf(name string) int64 {
	switch {
	case strings.HasPrefix(name, "etc/sudoers.d/"):
		return 0o440
	case strings.HasPrefix(name, "usr/lib/sandboxforge/"):
		return 0o755
	}
	return 0o644
}
