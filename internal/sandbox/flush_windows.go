package sandbox

// flushDir: NTFS journals names itself.
func flushDir(string) error { return nil }
