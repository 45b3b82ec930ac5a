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
