// Package leftovers holds the last test of a whole test run: no hypervisor,
// supervisor or temporary disk of it may be left.
package leftovers
