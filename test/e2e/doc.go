// Package e2e tests the product as its users have it: the real server binary
// over MCP, real VMs with the real guest image, under whatever accelerator
// the host has.
//
// Most tests share one VM with Docker (shared) or make one of the minimal
// image, which boots in seconds. A test that ends a VM, or injects a fault,
// has a state directory of its own. Every boot is logged with the guest's boot
// id and the hypervisor's pid, and counted in SANDBOXFORGE_TEST_BOOTS.
package e2e
