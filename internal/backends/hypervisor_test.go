package backends

import "testing"

func TestIsHypervisor(t *testing.T) {
	for exe, want := range map[string]bool{
		"/usr/bin/qemu-system-x86_64": true, "qemu-system-aarch64": true, "/usr/libexec/qemu-kvm": true,
		"/nix/store/x-qemu/bin/.qemu-system-x86_64-wrapped": true, `C:\Program Files\qemu\qemu-system-x86_64.exe`: true,
		"/usr/bin/passt.avx2": true, "/usr/bin/pasta": true, "/usr/bin/slirp4netns": true, "/usr/lib/virtualbox/VBoxHeadless": true,
		"": false, "/": false, "/usr/bin/curl": false, "/usr/bin/qemu-img": false, "/usr/bin/qemu-x86_64": false,
		"/opt/qemu-system-x86_64/bin/node": false, "/usr/bin/node": false, "/home/u/my-slirp4netns": false,
	} {
		if got := IsHypervisor(exe); got != want {
			t.Errorf("%q: %t", exe, got)
		}
	}
}
