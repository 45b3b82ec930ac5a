//go:build unix

package template

import (
	"errors"
	"os"
)

// syncPath has a file or a directory written to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
