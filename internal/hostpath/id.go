package hostpath

import (
	"crypto/sha1"
	"encoding/hex"
)

// WorkspaceID is the short name of a workspace: ws_ and the first 12 hex
// digits of the SHA-1 of its resolved absolute path. Clients know this form;
// it identifies, it protects nothing.
func WorkspaceID(resolved string) string {
	sum := sha1.Sum([]byte(resolved))
	return "ws_" + hex.EncodeToString(sum[:])[:12]
}
