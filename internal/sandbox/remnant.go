package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
)

// remnant is a VM that a failed call has made, and what keeps it from being
// removed; nil if it is gone.
type remnant struct {
	id  string
	err error
}

// notRemoved is the failure of a call with what could not be removed after it,
// which is unsettled: a repeat finds it. With nothing left it is err.
func notRemoved(err error, all ...remnant) error {
	var ids []string
	var why error
	for _, r := range all {
		if r.err != nil {
			ids = append(ids, r.id)
			why = errors.Join(why, fmt.Errorf("%s: %w", r.id, r.err))
		}
	}
	if why == nil {
		return err
	}
	f := fault.From(err)
	e := fault.Wrap(err, f.Code, "%s could not be removed after a failure", strings.Join(ids, ", ")).
		Because("%s", strings.ReplaceAll(why.Error(), "\n", "; "))
	for k, v := range f.Details {
		e.With(k, v)
	}
	for _, id := range ids {
		e.Next("call destroy_instance with instance_id %s: it may still run", id)
	}
	e.NextSteps = append(e.NextSteps, f.NextSteps...)
	return unsettled{e.With("not_removed", ids)}
}

// cancelledCall is the failure of a tool's cancelled call whose VMs were removed,
// but for what is left of them.
func cancelledCall(ctx context.Context, tool, vms string, all ...remnant) error {
	text := tool + " was cancelled"
	if !slices.ContainsFunc(all, func(r remnant) bool { return r.err != nil }) {
		text += " and " + vms + " removed"
	}
	return notRemoved(fault.Wrap(context.Cause(ctx), fault.Cancelled, "%s", text), all...)
}
