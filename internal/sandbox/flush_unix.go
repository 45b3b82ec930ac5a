//go:build unix

package sandbox

import (
	"errors"
	"os"
)

// flushDir has the names in a directory written to the disk.
func flushDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
