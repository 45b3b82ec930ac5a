// Package backendtest holds every backend to the contract of package backend:
// one set of behaviours, run against fake, qemu, lima and hyperv alike.
//
//	func TestContract(t *testing.T) {
//		backendtest.Suite(t, func(t *testing.T) *backendtest.Harness { ... })
//	}
//
//	// So that a test can act from another process, as a second server does.
//	func TestMain(m *testing.M) { backendtest.Main(m, open) }
//
// Most cases start VMs without waiting for their guests; a few wait for the
// agent, so a run under emulation costs some boots. The cases of saved states are
// for backends whose Capabilities claim them.
package backendtest
