package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// failedRequest is what a repeat of a failed request is told.
type failedRequest struct {
	Code    fault.Code     `json:"error_code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details"`
}

func (f failedRequest) fault() error {
	e := fault.New(f.Code, "%s", f.Message)
	e.Details = f.Details
	return e
}

// unsettled is the failure of a repeat that could not find out, or not clear
// away, what an earlier call with its request_id had made. It is nobody's result:
// the request stays open, and the next repeat looks again.
type unsettled struct{ err error }

func (u unsettled) Error() string { return u.err.Error() }
func (u unsettled) Unwrap() error { return u.err }

// once runs an operation that changes something at most once for each
// request_id: a repeat waits for the first call and returns its result. With
// an empty id it just runs.
//
// changed says whether the failure may have left something behind: a failure
// that changed nothing is forgotten, so that the same id can be tried again.
// One that is unsettled leaves the question to the next repeat.
// params must be the request without its id.
func once[T any](ctx context.Context, s *Service, scope, id string, params any, run func(ctx context.Context, req *store.Request) (result *T, changed bool, err error)) (*T, error) {
	if id == "" {
		v, _, err := run(ctx, nil)
		return v, err
	}
	if len(id) > 200 {
		return nil, fault.New(fault.InvalidArgument, "request_id is longer than 200 bytes")
	}
	fp := store.Fingerprint(params)
	for {
		req, outcome, err := s.store.BeginRequest(ctx, scope, id, fp)
		if err != nil {
			return nil, err
		}
		switch outcome {
		case store.Finished:
			if req.State == store.RequestFailed {
				var f failedRequest
				if err := json.Unmarshal(req.Result, &f); err != nil {
					return nil, req.UnknownFault()
				}
				return nil, f.fault()
			}
			v := new(T)
			if err := json.Unmarshal(req.Result, v); err != nil {
				return nil, req.UnknownFault()
			}
			return v, nil
		case store.InProgress:
			report(ctx, Progress{Stage: "waiting", Message: "an earlier call with this request_id is still at work"})
			// The other call may live in another process: the row is the only
			// place where both meet, so it is asked again and again.
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
			continue
		case store.OwnerDied:
			req, err = s.store.TakeOverRequest(ctx, req)
			if errors.Is(err, store.ErrConflict) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		return runRequest(ctx, s, req, run)
	}
}

// runRequest runs an operation that this process has taken on, and settles its
// row whatever happens, a panic included: a row that stays open would keep
// every repeat waiting.
func runRequest[T any](ctx context.Context, s *Service, req store.Request, run func(ctx context.Context, req *store.Request) (*T, bool, error)) (v *T, err error) {
	changed, settled := true, false
	defer func() {
		done, cancel := detached(ctx, 10*time.Second)
		defer cancel()
		var serr error
		var open unsettled
		switch {
		case settled && errors.As(err, &open):
			serr = s.store.ReleaseRequest(done, req)
		case settled && err == nil:
			serr = s.store.FinishRequest(done, req, store.RequestDone, v)
		case settled && !changed:
			serr = s.store.ForgetRequest(done, req)
		default:
			f := fault.From(err)
			if !settled {
				f = fault.New(fault.OutcomeUnknown, "the call ended in a defect of the server; whether it took effect is not known")
			}
			serr = s.store.FinishRequest(done, req, store.RequestFailed, failedRequest{f.Code, f.Error(), f.DetailMap()})
		}
		if serr != nil {
			// The call did what it did: its caller is told that, not this.
			s.log.Warn("request not settled", "scope", req.Scope, "request_id", req.ID, "error", serr)
		}
	}()
	v, changed, err = run(ctx, &req)
	settled = true
	return v, err
}
