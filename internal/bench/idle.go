package bench

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/host"
)

// idleAfter is how long an instance is left alone before its cost is read.
const idleAfter = 60 * time.Second

// idle measures what an instance costs that does nothing.
func (b *bench) idle(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		res, err := s.create(ctx, map[string]any{"wait_for_ready": true})
		if err != nil {
			return err
		}
		if b.state, err = b.stateOf(ctx, s, res.InstanceID); err != nil {
			return err
		}
		name := "agent-" + strings.TrimPrefix(res.InstanceID, "inst_")
		disk := filepath.Join(b.home(), "vms", name, "disk.qcow2")
		mb := func(n int64) []float64 { return []float64{float64(n) / 1e6} }
		b.add(figure("disk of a new clone, Docker ready", "MB", "allocated blocks of its overlay", mb(host.FileAllocated(disk))))
		b.say("waiting %v for the instance to idle", idleAfter)
		if err := pause(ctx, idleAfter); err != nil {
			return err
		}
		c, err := b.dial(ctx, res.InstanceID)
		if err != nil {
			return err
		}
		defer c.Close()
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		// Its own, beyond the pages that it has in common with its template:
		// these are the page cache's, however many map them.
		shared := host.SharedOfFile(st.VMPID, filepath.Join(b.state, "memory"))
		own := host.ProcessPSS(st.VMPID) - shared
		super := host.ProcessPSS(st.PID)
		how := "smaps, 60 s after the create, Docker running"
		b.add(figure("idle clone in all, beyond its template", "MB PSS", how, mb(own+super)))
		b.add(figure("  of which QEMU", "MB PSS", how, mb(own)))
		b.add(figure("  of which the supervisor", "MB PSS", how, mb(super)))
		b.add(figure("  pages shared with the template", "MB PSS", how, mb(shared)))
		b.add(figure("server, idle", "MB PSS", how, mb(host.ProcessPSS(s.PID()))))
		return nil
	})
}
