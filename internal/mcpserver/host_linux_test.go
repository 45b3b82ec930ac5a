package mcpserver

import "testing"

func TestContainerCgroup(t *testing.T) {
	for cgroups, want := range map[string]bool{
		"0::/": false, "0::/user.slice/user-1000.slice/session-2.scope": false, "0::/system.slice/docker.service": false,
		"12:cpuset:/docker/0123456789abcdef": true, "0::/kubepods.slice/kubepods-pod1.slice": true,
		"0::/machine.slice/libpod-0123.scope": true, "0::/system.slice/docker-0123.scope": true, "1:name=systemd:/lxc/c1": true,
	} {
		if got := containerCgroup(cgroups) != ""; got != want {
			t.Errorf("%q: %t", cgroups, got)
		}
	}
}

func TestListening(t *testing.T) {
	const line = "   0: 0100007F:223D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 200866 1 0000 100 0 0 10 0"
	for _, c := range []struct {
		line  string
		port  int
		inode string
	}{
		{line, 8765, "200866"}, {line, 8766, ""}, {"", 8765, ""}, {"  sl  local_address rem_address   st", 8765, ""},
		{"0: 0100007F:223D 0100007F:1F90 01 0:0 0:0 0 0 0 200866", 8765, ""},             // a connection
		{"0: 00000000000000000000000001000000:223D 0:0 0A 0:0 0:0 0 0 0 77", 8765, "77"}, // IPv6
		{"0: garbage 0:0 0A 0:0 0:0 0 0 0 77", 8765, ""},
	} {
		if got := listening(c.line, c.port); got != c.inode {
			t.Errorf("%q on %d: %q", c.line, c.port, got)
		}
	}
}
