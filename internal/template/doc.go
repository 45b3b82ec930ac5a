// Package template keeps the saved states that new VMs begin in: one directory
// for each kind of VM, made once, shared by all server processes and state
// directories that share an image directory.
//
// It knows backend.StateKeeper, and that a state is a directory. How a state is
// made, and what is made ready in it, is its caller's business; it knows
// nothing of leases, guests, supervisors or MCP.
//
//	s := &template.Store{Dir: dir, Keeper: keeper}
//	t, err := s.Find(ctx, key)
//	if errors.Is(err, template.ErrMissing) {
//		t, _, err = s.Make(ctx, template.Description{Key: key, ...}, progress,
//			func(ctx context.Context, dir string, p backend.Progress) error { ... })
//	}
//	spec.From = t.State
//
// # On disk
//
//	DIR/KEY16/template.json   names the state that is in force; written last
//	DIR/KEY16/used            its time is the time of the last use
//	DIR/KEY16/state-XXXXXXXX/ a saved state, the backend's
//	DIR/.locks/KEY16          held by whoever makes or takes away
//	DIR/.locks/KEY16.making   what the maker does, for those who wait
//
// A state is saved where it will stay, because VMs and backends remember it by
// its path. It is a template from the moment at which template.json, replaced
// atomically after everything else is on the disk, names it. A state that
// template.json does not name is a leftover: of a maker that was killed, or of
// a template taken out of force while VMs still needed its files. The next
// holder of the lock removes those that nobody needs.
//
// # Who may do what
//
// Any number of processes may call anything at once. Making and taking away
// are done under the key's lock, which the kernel gives back when its holder
// dies. Finding takes no lock: that a state vanishes between Find and its use
// is possible, and then the backend refuses it with backend.ErrStateUnfit.
package template
