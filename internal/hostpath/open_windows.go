package hostpath

// openFlags: os.Root already refuses devices, and the comparison with what
// Lstat saw catches links.
const openFlags = 0
