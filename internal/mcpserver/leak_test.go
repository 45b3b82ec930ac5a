package mcpserver

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// checkLeaks fails the test if goroutines of the server (or of the SDK on its
// behalf) are left once the test and its other clean-ups are over. Call it
// first.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := len(serverGoroutines())
	t.Cleanup(func() {
		// The end of a goroutine is no event that can be awaited.
		deadline := time.Now().Add(10 * time.Second)
		var left []string
		for time.Now().Before(deadline) {
			if left = serverGoroutines(); len(left) <= before {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Errorf("%d goroutine(s) are left:\n%s", len(left)-before, strings.Join(left, "\n\n"))
	})
}

func serverGoroutines() []string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var found []string
	for i, g := range strings.Split(string(buf), "\n\n") {
		if i == 0 || strings.Contains(g, "testing.(*T).Run") || strings.Contains(g, "testing.tRunner") {
			continue // this one, and tests
		}
		if strings.Contains(g, "internal/mcpserver.") || strings.Contains(g, "modelcontextprotocol/go-sdk") || strings.Contains(g, "net/http.(*conn)") {
			found = append(found, g)
		}
	}
	return found
}
