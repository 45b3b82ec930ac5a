// Package examples carries the sample workspace inside the executable, so that
// the demo runs from wherever the binaries are. It knows nothing else.
//
//	err := os.CopyFS(dir, examples.SampleWorkspace())
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:sample-workspace
var files embed.FS

// SampleWorkspace is the tree of examples/sample-workspace. Embedding loses
// the executable bits: whoever writes the tree out restores them for files
// that start with "#!".
func SampleWorkspace() fs.FS {
	sub, err := fs.Sub(files, "sample-workspace")
	if err != nil {
		panic(err) // only for an invalid path, and this one is constant
	}
	return sub
}
