package workspace

// syncDir: NTFS journals the rename itself.
func syncDir(string) error { return nil }
