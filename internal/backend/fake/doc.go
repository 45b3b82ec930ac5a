// Package fake is a backend without a hypervisor, for tests of what is built
// above backends. Nothing is isolated, and nothing is proven on its word.
//
// A VM is a directory with a record, and while it runs a goroutine of the
// process that started it. State is in the directory alone: several Backend
// values, in one process or in many, see the same VMs, and a VM ends when its
// owner is killed, as with a real backend.
//
// The guest is a function that the test brings: it gets the server side of
// each agent stream. Faults are functions too, called where a real backend
// could fail or hang.
//
// Where Options.States is set, VMs can be saved: a state is a directory with a
// manifest, what Options.Memory said the guest had in its memory, and a file
// for each VM and state that needs it.
//
//	b, err := fake.New(dir, fake.Options{
//		Serve: func(name string, rw io.ReadWriteCloser) { agent.Serve(rw) },
//		Hooks: fake.Hooks{Start: func(ctx context.Context, name string) error { <-ctx.Done(); return ctx.Err() }},
//	})
//	err = fake.End(ctx, dir, name, backend.Exit{Reason: backend.ExitGuestPanic}) // from any process
package fake
