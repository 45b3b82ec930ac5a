package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// ErrNoneReady: no pool lease of that shape is ready.
var ErrNoneReady = errors.New("no VM is ready")

// Claim makes a pool lease an instance's: of those of n.Backend that are
// running, whose Spec has the member "shape" with that value, and whose
// deadline is at least spare away, the one that ends last. Workspace, deadline,
// owner, configuration, spec and request become n's, the time of creation now;
// what the VM was promised stays. Of any number of claims in any number of
// processes one gets a lease; the others get another one, or ErrNoneReady.
//
// Only lim.MaxInstances is judged, in the same transaction: the VM's memory and
// disk were when it was made. The caller then moves the VM's own deadline.
func (s *Store) Claim(ctx context.Context, shape string, spare time.Duration, n NewLease, lim Limits) (Lease, error) {
	n.Kind = KindInstance
	request := ""
	if n.Request != nil {
		request = n.Request.ID
	}
	var l Lease
	err := s.write(ctx, "claiming a ready VM", func(ctx context.Context, tx *sql.Tx) error {
		u, err := usage(ctx, tx)
		if err != nil {
			return err
		}
		if err := (Limits{MaxInstances: lim.MaxInstances}).check(n, u); err != nil {
			return err
		}
		now := s.now()
		l, err = scanLease(tx.QueryRowContext(ctx, sqlClaimLease, n.Backend, shape, stamp(now.Add(spare)), stamp(now), stamp(n.ExpiresAt),
			n.ProfileName, n.WorkspaceRoot, n.WorkspaceID, s.self.Session, s.self.PID, s.self.Boot, s.self.Start, request,
			n.AutoBootstrap, text(n.Config), text(n.Spec), n.StartKind))
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNoneReady
		}
		if err != nil {
			return err
		}
		if n.Request.tracked() {
			if err := bindRequest(ctx, tx, n.Request, l.InstanceID, ""); err != nil {
				return err
			}
		}
		return s.addEvent(ctx, tx, Event{InstanceID: l.InstanceID, What: "claim", From: string(Running), To: string(Running), Outcome: OutcomeOK})
	})
	if err != nil {
		return Lease{}, err
	}
	if n.Request.tracked() {
		n.Request.InstanceID = l.InstanceID
	}
	return l, nil
}
