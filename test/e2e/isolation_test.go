package e2e

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
)

// TestGuestDoesNotReachItsHost: the guest has the world, and nothing of what
// listens on the host: not on loopback, where the MCP endpoint is, and not at
// the host's own addresses either.
func TestGuestDoesNotReachItsHost(t *testing.T) {
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
	inGuest := func(cmd string) string {
		t.Helper()
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": cmd, "timeout_seconds": 60}, &r)
		t.Logf("%s: exit code %v, %q %q", cmd, r.ExitCode, r.Stdout, r.Stderr)
		return strings.TrimSpace(r.Stdout)
	}
	// The guest's packages came from there, so it is there.
	const mirror = `u=$(grep -rhoE 'https?://[^] ]+' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1)
curl -s -o /dev/null -w '%{http_code}' --max-time 30 "${u%/}/dists/stable/Release"`
	if got := inGuest(mirror); got != "200" {
		t.Errorf("the guest does not reach the archive that it was made from: %q", got)
	}

	var wide, narrow atomic.Int64
	everywhere := httptest.NewUnstartedServer(counting(&wide))
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	everywhere.Listener = l
	everywhere.Start()
	defer everywhere.Close()
	local := httptest.NewServer(counting(&narrow))
	defer local.Close()
	_, widePort, _ := net.SplitHostPort(l.Addr().String())
	_, localPort, _ := net.SplitHostPort(local.Listener.Addr().String())

	targets := []string{}
	for _, port := range []string{widePort, localPort, endpoint.Port()} {
		// The gateway, what QEMU's own network would have for the host, and
		// the ways to spell loopback.
		for _, host := range []string{"192.168.127.1", "192.168.127.254", "10.0.2.2", "0.0.0.0", "127.0.0.1", "[::ffff:127.0.0.1]"} {
			targets = append(targets, host+":"+port)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			targets = append(targets, net.JoinHostPort(n.IP.String(), widePort))
		}
	}
	for _, target := range targets {
		if got := inGuest("curl -s -o /dev/null -w '%{http_code} %{time_total}' --noproxy '*' --max-time 20 http://" + target + "/mcp"); !strings.HasPrefix(got, "000 ") {
			t.Errorf("%s from the guest: %q", target, got)
		}
	}
	if wide.Load()+narrow.Load() != 0 {
		t.Errorf("the guest came through to the host: %d times to 0.0.0.0, %d times to loopback", wide.Load(), narrow.Load())
	}
	if strings.Contains(sv.log.String(), "it comes from a hypervisor") {
		t.Error("the guest came through to the MCP endpoint")
	}
	res, err := http.Get(endpoint.String())
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNotAcceptable {
		t.Errorf("a plain GET from the host: %d", res.StatusCode)
	}
}

// counting answers and counts.
func counting(n *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		w.WriteHeader(http.StatusOK)
	})
}
