package image

import "os"

// CheckTools says whether this process could build images: nil, or
// BACKEND_UNAVAILABLE that names every missing host program and the commands
// that install them. It starts nothing.
func CheckTools() error { return newToolbox().check(os.Geteuid() == 0) }
