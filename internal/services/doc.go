// Package services runs the database servers that a workspace asks for, as
// containers of a guest's Docker.
//
// Each kind is one entry of the table in kinds.go: its container, its port, the
// query that proves it ready, the variables that say how to reach it. What a
// running container was made with is read from the container itself, so a
// server that was started by another process, or is in a copy of the VM, is
// found and used as it is. Nothing is ever removed: a container that no longer
// fits is stopped and renamed, and keeps its data.
//
//	list, err := services.Wanted(cfg.Infra)
//	p := services.Place{Engine: engine, Dial: guest.DialContext, Network: name}
//	r, err := p.Start(ctx, list[0], services.Known{})
//	err = p.Await(ctx, &r, services.Wait{Timeout: services.ReadyTimeout})
//
// The package knows the configuration and Docker's API, nothing of leases, MCP,
// workspaces or backends.
package services
