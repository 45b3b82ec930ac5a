// Package version holds what the binaries say of themselves.
package version

import "runtime/debug"

// version is set by the linker.
var version = ""

// String is the version of this build: the linker's, else the module's, else
// "dev".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
