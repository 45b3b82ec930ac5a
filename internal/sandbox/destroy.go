package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// stopGrace is what a guest gets to power off by itself in a destroy without
// force. A disposable VM has nothing to save but its tasks' output, which is
// taken before.
const stopGrace = 2 * time.Second

// DestroyInstance ends an instance and returns when its VM is gone. It is
// idempotent: an instance that has ended, or whose VM is gone, is success.
// Once begun it is finished even if the caller leaves.
func (s *Service) DestroyInstance(ctx context.Context, r DestroyInstanceRequest) (*DestroyInstanceResult, error) {
	l, err := s.store.Lease(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	grace := stopGrace
	if r.Force {
		grace = 0
	}
	if !l.Status.Terminal() {
		report(ctx, Progress{Stage: "destroy", Message: "stopping tasks and the VM of " + l.InstanceID})
		work, cancel := detached(ctx, 2*time.Minute)
		defer cancel()
		l, err = s.teardown(work, l, store.Destroying, "destroyed", grace)
		s.record(ctx, "destroy_instance", r.InstanceID, "", err, map[string]any{"force": r.Force})
		if err != nil {
			return nil, err
		}
	}
	return &DestroyInstanceResult{InstanceID: l.InstanceID, Backend: l.Backend, Status: string(store.Destroyed)}, nil
}

// teardown takes a lease that is not terminal to the terminal status of via
// (destroying → destroyed, expiring → expired): it stops the VM, keeps the
// tasks' ends, and removes everything on disk. Any number of callers and
// processes may do it at once; each returns when the VM is confirmed gone.
func (s *Service) teardown(ctx context.Context, l store.Lease, via store.Status, reason string, grace time.Duration) (store.Lease, error) {
	defer s.busy(l.InstanceID)()
	roomMade := false
	for try := 0; ; try++ {
		if l.Status.Terminal() {
			return l, nil
		}
		if l.Status == store.Destroying || l.Status == store.Expiring {
			via = l.Status // who came first chose
			if l.EndReason != "" {
				reason = l.EndReason
			}
			break
		}
		moved, err := s.store.Move(ctx, l.InstanceID, l.Generation, store.Move{To: via, Reason: reason})
		if err == nil {
			l = moved
			break
		}
		if fault.Is(err, fault.InsufficientDisk) && !roomMade {
			// The disk is full, perhaps of this very VM, and the row cannot say
			// first what is done next. Once the VM is gone there is room for it;
			// until then the lease is one whose VM has ended.
			roomMade = true
			if rerr := s.removeVM(ctx, l, reason, grace); rerr != nil {
				return l, errors.Join(err, rerr)
			}
		} else if !errors.Is(err, store.ErrConflict) || try == 20 {
			return l, err
		}
		if l, err = s.store.Lease(ctx, l.InstanceID); err != nil {
			return l, err
		}
	}

	if err := s.removeVM(ctx, l, reason, grace); err != nil {
		return l, fault.Wrap(err, fault.BackendCommandFailed, "the VM of %s could not be removed yet", l.InstanceID).
			With("instance_id", l.InstanceID).
			Next("call destroy_instance again; the server also tries again by itself")
	}

	final := store.Destroyed
	if via == store.Expiring {
		final = store.Expired
	}
	for {
		done, err := s.store.Move(ctx, l.InstanceID, l.Generation, store.Move{To: final, Reason: reason})
		if err == nil {
			s.log.Info("instance ended", "instance", l.InstanceID, "status", final, "reason", reason)
			s.releaseFork(ctx, l.ParentSnapshot)
			return done, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return l, err
		}
		// Another process finished, or took over, the same clean-up.
		if l, err = s.store.Lease(ctx, l.InstanceID); err != nil {
			return l, err
		}
		if l.Status.Terminal() {
			return l, nil
		}
	}
}

// removeVM ends the VM of a lease that clean-up owns and removes its files.
func (s *Service) removeVM(ctx context.Context, l store.Lease, reason string, grace time.Duration) error {
	name := l.BackendInstanceName
	dir := s.instanceDir(name)
	// A fresh connection: the cached one may be to a supervisor that is gone.
	s.links.drop(name)
	if c, err := supervisor.Dial(ctx, s.runDir, name); err == nil {
		if err := c.Stop(ctx, reason, grace); err != nil && !errors.Is(err, supervisor.ErrEnded) {
			s.log.Warn("orderly stop failed, the VM is removed by force", "instance", l.InstanceID, "error", err)
		}
		c.Close()
	}
	sel, err := s.backends.ByName(l.Backend)
	if err != nil {
		return err
	}
	if err := sel.Backend.Delete(ctx, name); err != nil {
		return err
	}
	s.keepTasks(ctx, l, dir)
	if err := supervisor.Remove(ctx, dir, s.runDir, name); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// keepTasks records how the tasks of an ended VM ended, as far as the
// supervisor could still find out.
func (s *Service) keepTasks(ctx context.Context, l store.Lease, dir string) {
	end, err := supervisor.ReadEnd(dir)
	if err != nil {
		if !errors.Is(err, supervisor.ErrNoEnd) && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("end of VM not readable", "instance", l.InstanceID, "error", err)
		}
		return
	}
	for _, t := range end.Tasks {
		row, err := s.store.Task(ctx, t.ID)
		if err != nil || row.InstanceID != l.InstanceID {
			continue // an interactive exec, or not ours
		}
		if row.Status == store.TaskRunning {
			te := store.TaskEnd{
				FinishedAt:   t.FinishedAt,
				ErrorMessage: t.Error,
				StdoutBytes:  int64(t.StdoutTotal), StderrBytes: int64(t.StderrTotal),
				StdoutTail: t.StdoutTail, StderrTail: t.StderrTail,
			}
			code := int(t.ExitCode)
			switch guest.Status(t.Status) {
			case guest.StatusExited:
				te.ExitCode = &code
				te.Status = store.TaskFailed
				if code == 0 {
					te.Status = store.TaskSucceeded
				}
			case guest.StatusSignaled:
				te.Status, te.Signal = store.TaskFailed, signalName(int(t.Signal))
			default:
				te.Status, te.FinishedAt = store.TaskStopped, end.At
				te.ErrorMessage = "ended with its instance: " + end.Reason
			}
			if _, err := s.store.FinishTask(ctx, t.ID, te); err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
				s.log.Warn("task end not recorded", "task", t.ID, "error", err)
			}
			continue
		}
		if err := s.store.SaveTails(ctx, t.ID, t.StdoutTail, t.StderrTail, int64(t.StdoutTotal), int64(t.StderrTotal)); err != nil {
			s.log.Warn("task output not kept", "task", t.ID, "error", err)
		}
	}
}
