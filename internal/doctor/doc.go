// Package doctor says whether this host can make VMs: what works, what is
// missing, and the exact command that mends it.
//
//	report := doctor.Run(ctx, doctor.Options{Settings: settings, Backends: backends, ...})
//	report.WriteText(os.Stdout)
//	if !report.OK { os.Exit(1) }
//
// It changes nothing except that the state directory is made, as the server
// would. It boots nothing beyond the accelerator trial that a backend's Probe
// does the first time. Everything it looks at is passed in, so that a test can
// show it a host that lacks things.
//
// It knows backends by their contract only, and nothing of MCP.
package doctor
