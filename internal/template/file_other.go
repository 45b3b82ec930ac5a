//go:build !unix

package template

import (
	"errors"
	"os"
)

// syncPath has a file written to the disk. Directories cannot be, there.
func syncPath(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		if st, serr := os.Stat(path); serr == nil && st.IsDir() {
			return nil
		}
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
