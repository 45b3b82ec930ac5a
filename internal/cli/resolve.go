package cli

import (
	"context"
	"strings"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// ended reports whether an instance can have no VM any more.
func ended(in sandbox.Instance) bool {
	return in.Status == "destroyed" || in.Status == "expired"
}

// resolveInstance finds the instance that ref names: its id, its VM's name, or
// a unique beginning of the hexadecimal part, with or without inst_ or agent-.
// Live instances win over ended ones.
func resolveInstance(ctx context.Context, svc Service, ref string) (sandbox.Instance, error) {
	all, err := svc.ListInstances(ctx, sandbox.ListInstancesRequest{IncludeExpired: true, IncludeInternal: true})
	if err != nil {
		return sandbox.Instance{}, err
	}
	return matchInstance(all.Instances, ref)
}

func matchInstance(all []sandbox.Instance, ref string) (sandbox.Instance, error) {
	hex := strings.TrimPrefix(strings.TrimPrefix(ref, "inst_"), "agent-")
	var live, dead []sandbox.Instance
	for _, in := range all {
		switch {
		case in.InstanceID == ref || in.BackendInstanceName == ref:
			return in, nil
		case ref == "" || !strings.HasPrefix(strings.TrimPrefix(in.InstanceID, "inst_"), hex):
		case ended(in):
			dead = append(dead, in)
		default:
			live = append(live, in)
		}
	}
	found := live
	if len(found) == 0 {
		found = dead
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return sandbox.Instance{}, fault.New(fault.InstanceNotFound, "no instance %q", ref).
			Because("it never existed, or it ended so long ago that its record was removed").
			Next("run `sandboxforge ps --all` to see the instances there are")
	}
	var ids []string
	for _, in := range found {
		ids = append(ids, in.InstanceID)
	}
	return sandbox.Instance{}, fault.New(fault.InvalidArgument, "%q could be %s", ref, strings.Join(ids, " or ")).
		Because("several instances begin like that").
		Next("give more of the id").With("candidates", ids)
}

// matchTask finds a task by its id or a unique beginning of it.
func matchTask(all []sandbox.Task, ref string) (sandbox.Task, error) {
	hex := strings.TrimPrefix(ref, "task_")
	var found []sandbox.Task
	var ids []string
	for _, t := range all {
		if t.TaskID == ref {
			return t, nil
		}
		if ref != "" && strings.HasPrefix(strings.TrimPrefix(t.TaskID, "task_"), hex) {
			found, ids = append(found, t), append(ids, t.TaskID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return sandbox.Task{}, fault.New(fault.TaskNotFound, "no task %q", ref).
			Next("run `sandboxforge logs INSTANCE` for the newest task of an instance")
	}
	return sandbox.Task{}, fault.New(fault.InvalidArgument, "%q could be %s", ref, strings.Join(ids, " or ")).
		Because("several tasks begin like that").Next("give more of the id").With("candidates", ids)
}
