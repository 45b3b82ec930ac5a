// Package bench measures what a user waits for: creates, commands, syncs and
// memory, through the same server and protocol as an agent's calls. Each
// figure that is a ratio has both of its sides measured in the same run,
// because machines are noisy and differ.
//
//	r, err := bench.Run(ctx, bench.Options{Server: path, Settings: settings, Out: os.Stderr})
//
// It judges nothing: docs/PERFORMANCE.md says what is aimed at.
package bench
