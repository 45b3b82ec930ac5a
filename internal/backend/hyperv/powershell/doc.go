// Package powershell runs scripts in Windows PowerShell 5.1, in few processes
// that live long: loading the Hyper-V module takes a second and more, and is
// paid once for each.
//
//	pool := powershell.NewPool(powershell.Options{Path: powershell.SystemPath()})
//	defer pool.Close()
//	var out struct{ Name string }
//	err := pool.Run(ctx, powershell.Request{Script: text, Parameters: map[string]any{"id": id}, Limit: time.Minute}, &out)
//
// # How a request travels
//
// PowerShell is started with -Command - and reads statements from stdin, one
// line each; a statement of several lines would need an empty line behind it,
// and one that does not parse is dropped without a word. So a request is one
// line of ASCII: a call of a runner that was defined first, with a nonce, the
// script and its parameters, the last two as base64. Nothing that a caller
// passes becomes script text.
//
// The runner catches every error, and prints one line: the nonce, base64 of
// JSON, the nonce. Whatever else comes on stdout (warnings, progress, replies
// to requests that nobody waits for any more) is not that and is dropped. Base64
// keeps the code page of the console out of it.
//
// A script gets its parameters as $p, an object made from JSON, and outputs one
// hashtable, which is Run's result. Errors are told by identifier, category and
// HRESULT, which no translation of Windows changes; see Error.
//
// # When something hangs
//
// A request has a limit. When it passes, the process is killed and another one
// serves the next request; what the cmdlet had begun may still happen, which is
// ErrUnknown: the caller looks at the state. When only the caller's context ends, Run
// returns at once with an error that is ErrUnknown too, and the process
// goes on to the limit; its late reply is dropped.
//
// # What it must not know
//
// Hyper-V. It was run against the stand-in of package standin only, so far, not
// on Windows.
package powershell
