// Package examples carries the demo's workspace inside the executable, so that
// the demo runs from wherever the binaries are. It knows nothing else. The
// larger example, sample-workspace, is for reading and for tests.
//
//	err := os.CopyFS(dir, examples.Logreport())
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:logreport
var files embed.FS

// Logreport is the tree of examples/logreport. Embedding loses the executable
// bits: whoever writes the tree out restores them for files that start with
// "#!".
func Logreport() fs.FS {
	sub, err := fs.Sub(files, "logreport")
	if err != nil {
		panic(err) // only for an invalid path, and this one is constant
	}
	return sub
}
