package config

import "io/fs"

// ownedBy: on Windows the directory lies in the user's profile, whose access
// list keeps others out.
func ownedBy(fs.FileInfo, int) bool { return true }
