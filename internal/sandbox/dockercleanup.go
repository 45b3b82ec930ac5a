package sandbox

import (
	"context"
	"fmt"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
)

// DockerCleanup frees disk in the guest. What containers use, the instance's
// network and its services stay in either mode. Cancelling it leaves what was
// removed removed.
func (s *Service) DockerCleanup(ctx context.Context, r DockerCleanupRequest) (*DockerCleanupResult, error) {
	mode := docker.PruneMode(r.Mode)
	var shown string
	switch mode {
	case docker.PruneSafe:
		shown = "docker image prune --force && docker builder prune --force"
	case docker.PruneAggressive:
		shown = "docker system prune --all --volumes --force"
	default:
		return nil, fault.New(fault.InvalidArgument, "mode is %.80q; it must be safe or aggressive", r.Mode).
			Next("start with safe: it removes nothing that has a name")
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	began := time.Now()
	report(ctx, Progress{Stage: "docker", Message: "removing what Docker does not use (" + r.Mode + ")"})
	freed, err := d.engine.Prune(ctx, mode)
	s.record(ctx, "docker_cleanup", r.InstanceID, "", err, map[string]any{"mode": r.Mode, "reclaimed_bytes": freed})
	if err != nil {
		err = d.engineFault(ctx, "cleaning up", err)
		return nil, fault.From(err).With("reclaimed_bytes", freed)
	}
	return &DockerCleanupResult{
		InstanceID: r.InstanceID, Mode: r.Mode, ReclaimedBytes: freed,
		CommandResult: listed(began, shown, [][]string{{fmt.Sprintf("Total reclaimed space: %d bytes", freed)}}),
	}, nil
}
