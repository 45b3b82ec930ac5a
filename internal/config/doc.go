// Package config reads what the operator and the workspace decide: Settings
// from the environment, and the layered workspace configuration from TOML
// files and a request's overrides.
//
// The keys of the workspace configuration are declared once, in Schema: their
// kind, rule, default, who may set them and a sentence of documentation.
// Validation, defaults, the resolved tree and the reference page all come from
// that table.
//
// A workspace's own file and the overrides are hostile input. Their files are
// opened without following symlinks and bounded in size, keys that belong to
// the operator are refused, and nothing in them can make Load fail: whatever
// is wrong becomes a diagnostic, all of them at once.
//
//	s, err := config.LoadSettings(os.Getenv, runtime.GOOS)
//	r := config.Load(config.Input{UserHome: s.UserHome, ConfigHome: s.ConfigHome, WorkspaceRoot: root})
//	if err := r.Err(); err != nil { ... }
//	use(r.Config.VM.CPUs)
//
// The package knows nothing of leases, backends or MCP.
package config
