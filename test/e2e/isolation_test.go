package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
)

// TestGuestCannotDriveItsServer: the guest's gateway is the host's loopback,
// where the MCP endpoint listens, and what comes from a VM is not served there.
func TestGuestCannotDriveItsServer(t *testing.T) {
	first, inst := shared(t)
	sv := first.state.start(t, "MCP_ENABLE_HTTP=1", "MCP_HTTP_HOST=127.0.0.1", "MCP_HTTP_PORT=0", "MCP_HTTP_TOKEN=", "MCP_HTTP_TOKEN_FILE=")
	// Without its stdio client a server stays for HTTP.
	t.Cleanup(func() { _ = sv.cmd.Process.Signal(syscall.SIGTERM) })
	listening := regexp.MustCompile(`msg=listening .*url=(http://127\.0\.0\.1:\d+/mcp)`)
	var endpoint *url.URL
	await(t, time.Minute, func() bool {
		m := listening.FindStringSubmatch(sv.log.String())
		if m == nil {
			return false
		}
		var err error
		if endpoint, err = url.Parse(m[1]); err != nil {
			t.Fatal(err)
		}
		return true
	})

	fromHost := func() int {
		t.Helper()
		res, err := http.Get(endpoint.String())
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	fromGuest := func(port, path string, args ...string) string {
		t.Helper()
		cmd := fmt.Sprintf("curl -s -o /dev/null -w '%%{http_code}' --noproxy '*' --max-time 20 %s http://10.0.2.2:%s%s", strings.Join(args, " "), port, path)
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": cmd, "timeout_seconds": 60}, &r)
		t.Logf("%s: exit code %v, %q", cmd, r.ExitCode, r.Stdout)
		return strings.TrimSpace(r.Stdout)
	}

	if got := fromHost(); got != http.StatusNotAcceptable {
		t.Errorf("a plain GET from the host: %d", got)
	}
	// What else listens there is reached, or the rest would show nothing.
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") }))
	defer other.Close()
	if got := fromGuest(other.URL[strings.LastIndex(other.URL, ":")+1:], "/"); got != "200" {
		t.Fatalf("the guest does not reach the host's loopback at all: %q", got)
	}

	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"guest","version":"1"}}}`
	post := []string{"-H 'Host: 127.0.0.1:" + endpoint.Port() + "'", "-H 'Content-Type: application/json'",
		"-H 'Accept: application/json, text/event-stream'", "--data '" + initialize + "'"}
	if got := fromGuest(endpoint.Port(), "/mcp"); got != "000" {
		t.Errorf("a GET from the guest: %q", got)
	}
	if got := fromGuest(endpoint.Port(), "/mcp", post...); got != "000" {
		t.Errorf("an initialize from the guest: %q", got)
	}
	if n := strings.Count(sv.log.String(), "it comes from a hypervisor"); n != 1 {
		t.Errorf("%d warnings for one VM", n)
	}
	if got := fromHost(); got != http.StatusNotAcceptable {
		t.Errorf("afterwards, from the host: %d", got)
	}
}
