// Package link turns one raw byte stream between host and guest into a
// connection that can be re-established: the layer below HTTP/2.
//
// A virtio-serial port or the stdio of an ssh session has no connections of
// its own. The host can vanish without the guest noticing, can come back so
// quickly that the guest sees nothing at all, and both queues then still hold
// bytes of the past. Link therefore cuts the stream into frames that carry a
// session id, a sequence number and a CRC-32C:
//
//   - The host opens a session with HELLO and a random id. The guest discards
//     everything up to a HELLO, drops the session it had, and echoes the id.
//   - A receiver that meets bytes that are not a frame hunts for the next
//     frame's magic. The magic never occurs inside a payload (the sender splits
//     a payload that contains it), so neither old bytes nor hostile content can
//     pose as a frame.
//   - A checksum or sequence failure ends the session. Data is delivered whole
//     and in order, or the connection fails; it is never silently wrong.
//
// The host calls Dial, the guest serves a Listener:
//
//	conn, err := link.Dial(ctx, stream)     // host: one session
//	l := link.NewListener(port)             // guest: Accept gives one conn per HELLO
//
// The package knows nothing of HTTP/2, of what the stream is made of, or of
// what it carries. It does not authenticate: whoever holds the stream is the
// host. There is one session at a time on a stream.
package link
