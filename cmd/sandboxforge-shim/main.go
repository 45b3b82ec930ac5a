// Command sandboxforge-shim is the parent of one process in a guest; see
// internal/agent/shim. It is an executable of its own because its start is paid
// for by every command: it takes a third of the time and memory that the agent's
// executable needs to start in the same role.
package main
