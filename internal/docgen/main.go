// Command docgen writes the reference pages that are made from code:
// docs/TOOLS.md from the registered schemas, docs/CONFIG.md from the tables
// that validate the configuration and read the environment.
//
//	go run ./internal/docgen
//
// A test compares the pages with the code.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/mcpserver"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	for name, text := range pages() {
		if err := os.WriteFile(filepath.Join(root, "docs", name), []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "docgen:", err)
			os.Exit(1)
		}
	}
}

func pages() map[string]string {
	return map[string]string{"TOOLS.md": tools(), "CONFIG.md": configuration()}
}

const generated = "<!-- Made by `go run ./internal/docgen`; do not edit. -->\n"

func tools() string {
	var b strings.Builder
	b.WriteString(generated + `# Tools

` + "`?`" + ` marks what is optional. Times are ISO-8601 in UTC. Results are structured content
plus a short text. A failed call has isError true and, as text and under _meta, the JSON
{error_code, message, details}; details always has probable_cause and next_steps.
`)
	b.WriteString(mcpserver.Describe())
	b.WriteString(capabilities)
	b.WriteString("\n## Error codes\n\nEach fault says more in probable_cause and next_steps.\n\n| code | usual cause | what helps |\n|---|---|---|\n")
	for _, c := range fault.Codes() {
		cause, remedy := c.Meaning()
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c, cell(cause), cell(remedy))
	}
	return b.String()
}

// capabilities explains the fields of backend.Capabilities; a test compares the
// names.
const capabilities = `
## Capabilities

What the backend of an instance can do, in the results of create_instance,
restore_instance and fork_instance:

- ` + "`snapshots`" + `: snapshot_instance saves the VM with its memory
- ` + "`clones`" + `: new VMs can begin in a saved state, as fork_instance and restore_instance need
- ` + "`egress_policy`" + `: what the VM may reach can be limited
- ` + "`host_loopback_reachable`" + `: the VM reaches services on the host's loopback
- ` + "`disk_growth`" + `: vm.disk_gib above the image's size takes effect
- ` + "`dies_with_owner`" + `: the VM ends with its supervisor, not with the client or server
- ` + "`memory_return`" + `: memory that the VM frees goes back to the host
`

func configuration() string {
	var b strings.Builder
	b.WriteString(generated + `# Configuration

## Files

Later wins; tables merge, lists and scalars replace: built-in defaults,
` + "`~/.config/{lima-mcp,orbitforge-mcp,sandboxforge-mcp}/config.toml`" + ` (the operator's; XDG_CONFIG_HOME is honoured),
` + "`<workspace>/.lima-mcp.toml`, `.orbitforge.toml`, `.sandboxforge.toml`" + `, and the request's ` + "`overrides`" + `.
The first two names of each are the earlier version's and still work; a diagnostic says what to rename.

A workspace's file and a request's overrides are untrusted: keys marked **(op)** can only be set in the operator's
files. Unknown keys and wrong types are errors, all of them at once, with file, line, column and allowed values.
` + "`validate_workspace_config`" + ` shows the whole resolved tree.

The keys marked (lima) have an effect with that backend; HYPERV_* matter on Windows alone. Of SANDBOX_BACKEND
auto, qemu and lima make VMs on Linux, auto and lima on macOS, auto and hyperv on Windows; of SANDBOX_ACCEL, kvm
is of Linux and hvf of macOS.

Numbers must be finite (no ` + "`inf`, `nan`" + `), booleans are no numbers, durations are h, m, d and never negative.

## Keys

| key | allowed | default | meaning |
|---|---|---|---|
`)
	for _, k := range config.Schema() {
		name := "`" + k.Path + "`"
		if k.Operator {
			name += " **(op)**"
		}
		if k.Only != "" {
			name += " (" + k.Only + ")"
		}
		def := "absent"
		if k.Default != nil {
			def = fmt.Sprintf("`%v`", k.Default)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, cell(k.Allowed), cell(def), cell(k.Doc))
	}
	b.WriteString("\n## Environment\n\nA bad value is an error at start that names the variable, the value and what is allowed, all bad ones at once.\nBooleans: 1 true yes on, 0 false no off, in any case. Path lists are separated by : (on Windows ;). A default\nlease above the maximum is an error. If the HTTP port is taken, stdio goes on and a warning says who holds it.\n\n| name | default | meaning |\n|---|---|---|\n")
	for _, v := range config.EnvVars() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, cell(v.Default), cell(v.Doc))
	}
	return b.String()
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}
