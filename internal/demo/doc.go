// Package demo shows the product at work: it starts the real server, talks to
// it over stdio as any MCP client would, and takes the sample workspace
// through the whole life of a VM.
//
//	result, err := demo.Run(ctx, demo.Options{Server: path, Settings: settings, Out: os.Stderr})
//
// It is a client of the server and knows the tools by their names and JSON
// only; nothing here reaches a VM another way. Whatever it made is destroyed
// when Run returns, also after a failure or an interrupt: by the session that
// made it, or, where that is broken, by a second one.
package demo
