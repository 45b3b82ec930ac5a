// Package mcpserver is the face that MCP clients see: it serves the tools over
// stdio and streamable HTTP, each in both protocol eras (with an initialize
// handshake, and without one from 2026-07-28 on), from one mcp.Server.
//
// It turns JSON arguments into a call of the service, the service's progress
// into notifications, its results into structured content with a schema, and
// its faults into tool errors. It decides nothing about instances, knows no
// SQL, no hypervisor and no guest, and keeps nothing between two calls.
//
//	srv := mcpserver.New(mcpserver.Options{Service: svc, Logger: log})
//	err := srv.Serve(ctx, cfg, stdio)
//
// A tool is one row of the table in catalog.go. What every call goes through
// is in middleware.go (root context, panics, cancellation by session) and
// tool.go (validation, progress, results).
package mcpserver
