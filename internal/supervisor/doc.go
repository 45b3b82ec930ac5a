// Package supervisor is the process that owns one VM, and the client side that
// starts it and talks to it.
//
// A supervisor is the same executable as its caller, re-executed in its own
// session. It starts the VM, owns the one link to the guest agent, holds the
// lease's deadline and serves a unix socket for any number of clients of the
// same user. Servers come and go; the VM, its processes and its deadline stay.
//
//	func main() {
//		if handled, code := supervisor.Main(os.Args); handled {
//			os.Exit(code)
//		}
//		...
//	}
//
//	c, err := supervisor.Launch(ctx, supervisor.Options{Dir: dir, RunDir: run, ...}, progress)
//	err = c.WaitReady(ctx, progress)
//	info, err := c.Guest().System.Info(ctx, ...)
//	err = c.Stop(ctx, supervisor.ReasonDestroyed, 5*time.Second)
//
// # Invariants
//
//   - At most one supervisor per directory: the lock on Dir/supervisor.lock is
//     held for the life of the process. Who loses the race joins the winner.
//   - A VM begins to end no later than at its deadline, counted on a clock that
//     goes on while the host sleeps and that setting the time does not move,
//     with or without a server. What the guest can gain from there is bounded:
//     Tuning.TailTimeout for its tasks' output, 2 s for its agent to take the
//     power-off, Tuning.ExpiryGrace to do it and the 2 s that QEMU has to leave,
//     12 s in all by default; then it is killed.
//   - When a supervisor ends in order, Dir/end.json says why and what the tasks
//     last printed. No end.json and no lock held means that it was killed; its
//     VM died with it where the backend says DiesWithOwner.
//   - A directory with an end.json never runs a VM again.
//   - Whoever holds the lock lives, whether or not its socket can be found: a
//     socket that was swept away is put back within Tuning.SocketCheck.
//   - No caller's pace reaches another's: RPCs are proxied as streams with
//     flow control of their own, and buffer a bounded amount.
//
// # What it must not know
//
// The lease database, MCP, Docker, workspaces. It knows a backend by its
// registered name only, and treats what the guest says as hostile input.
package supervisor
