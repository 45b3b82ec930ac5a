package supervisor

import (
	"io/fs"
	"os"
)

// Directories under the user's profile are private by their inherited ACL.
const needsPrivateMode = false

func ownedByUs(fs.FileInfo) bool { return true }

// syncDir: NTFS journals renames; there is no handle to flush.
func syncDir(string) error { return nil }

func takeStdout() (*os.File, error) {
	f := os.Stdout
	os.Stdout = os.Stderr
	return f, nil
}

func redirectStdio(f *os.File) error {
	os.Stdout, os.Stderr = f, f
	return nil
}
