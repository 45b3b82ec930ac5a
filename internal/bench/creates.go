package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// stages collects the parts of which creates are made up.
type stages map[string][]float64

func (s stages) add(timings map[string]int64) {
	for k, v := range timings {
		s[k] = append(s[k], float64(v))
	}
}

// report adds the stages that took time, largest first.
func (s stages) report(b *bench, total string) {
	names := slices.Collect(maps.Keys(s))
	slices.SortFunc(names, func(x, y string) int {
		if c := int(figure("", "", "", s[y]).P50 - figure("", "", "", s[x]).P50); c != 0 {
			return c
		}
		return strings.Compare(x, y)
	})
	for _, n := range names {
		if f := figure("  of which "+strings.ReplaceAll(n, "_", " "), "ms", "timings_ms."+n, s[n]); n != total && n != "total" && f.P50 >= 1 {
			b.add(f)
		}
	}
}

// cold boots each VM.
func (b *bench) cold(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		var list sandbox.ListInstancesResult // the accelerator is probed outside the figures
		if err := s.call(ctx, "list_instances", map[string]any{}, &list); err != nil {
			return err
		}
		var ready, destroy []float64
		split := stages{}
		for i := range b.o.Cold {
			b.say("cold create %d of %d", i+1, b.o.Cold)
			began := time.Now()
			res, err := s.create(ctx, map[string]any{"wait_for_ready": true})
			if err != nil {
				return err
			}
			ready = append(ready, ms(time.Since(began)))
			if res.StartKind != "cold" {
				return fault.New(fault.Internal, "a %s start was measured as a cold one", res.StartKind)
			}
			split.add(res.TimingsMS)
			began = time.Now()
			if err := s.destroy(ctx, res.InstanceID); err != nil {
				return err
			}
			destroy = append(destroy, ms(time.Since(began)))
		}
		b.add(figure("cold create to Docker ready", "ms", "create_instance(wait_for_ready=true), SANDBOX_TEMPLATES=off", ready))
		split.report(b, "total")
		b.add(figure("destroy", "ms", "destroy_instance(force=true)", destroy))
		return nil
	}, "SANDBOX_TEMPLATES=off")
}

// firstResult creates an instance of the wanted start_kind and runs a command in
// it. It returns how long the create took, and both, in milliseconds.
func (s *server) firstResult(ctx context.Context, want string) (res sandbox.CreateInstanceResult, created, first float64, err error) {
	began := time.Now()
	if res, err = s.create(ctx, map[string]any{"auto_bootstrap": false}); err != nil {
		return res, 0, 0, err
	}
	created = ms(time.Since(began))
	if _, err = s.run(ctx, res.InstanceID, "true"); err != nil {
		return res, 0, 0, err
	}
	first = ms(time.Since(began))
	if res.StartKind != want {
		return res, 0, 0, fault.New(fault.Internal, "a %s start was measured as %s: %v", res.StartKind, want, res.Warnings)
	}
	return res, created, first, nil
}

// clone is a create by a fresh server, to the first result of a command.
func (b *bench) clone(ctx context.Context) error {
	if err := b.makeTemplate(ctx); err != nil {
		return err
	}
	var first, created []float64
	split := stages{}
	for i := range b.o.Rounds {
		b.say("clone %d of %d", i+1, b.o.Rounds)
		err := b.with(ctx, func(s *server) error {
			res, c, f, err := s.firstResult(ctx, "clone")
			if err != nil {
				return err
			}
			created, first = append(created, c), append(first, f)
			split.add(res.TimingsMS)
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.add(figure("clone: create to first result", "ms", `fresh server, create_instance(auto_bootstrap=false), then run_command("true")`, first))
	b.add(figure("  create_instance alone", "ms", "the first of the two calls", created))
	split.report(b, "total")
	return b.floor(ctx)
}

// makeTemplate sees that there is one, outside the figures.
func (b *bench) makeTemplate(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		b.say("making the template, if there is none")
		began := time.Now()
		res, err := s.create(ctx, map[string]any{"auto_bootstrap": false})
		if err != nil {
			return err
		}
		if res.StartKind != "clone" {
			return fault.New(fault.Internal, "no template was used: %s", strings.Join(res.Warnings, "; "))
		}
		if made := res.TimingsMS["template_make"]; made > 0 {
			b.add(figure("first create, with the making of its template", "ms", "create_instance where no template is", []float64{ms(time.Since(began))}))
		}
		b.state, err = b.stateOf(ctx, s, res.InstanceID)
		return err
	})
}

// floor is the least that a clone can take here: QEMU, the state, a command.
func (b *bench) floor(ctx context.Context) error {
	if b.o.Floor == nil {
		return nil
	}
	var first, ping []float64
	home := filepath.Join(b.dir, "f")
	// In its own directory the backend first tries the accelerators, which can
	// take many seconds and is no part of the floor.
	b.say("bare floor: trying the accelerators")
	_, stop, err := b.o.Floor(ctx, home, b.state, b.o.Rounds)
	if err == nil {
		err = stop()
	}
	if err != nil {
		return fmt.Errorf("bare floor: %w", err)
	}
	for i := range b.o.Rounds {
		b.say("bare floor %d of %d", i+1, b.o.Rounds)
		began := time.Now()
		agent, stop, err := b.o.Floor(ctx, home, b.state, i)
		if err != nil {
			return fmt.Errorf("bare floor: %w", err)
		}
		first = append(first, ms(time.Since(began)))
		if i == b.o.Rounds-1 {
			for range 5 * b.o.Rounds {
				began := time.Now()
				if err := agent(ctx); err != nil {
					return errors.Join(err, stop())
				}
				ping = append(ping, ms(time.Since(began)))
			}
		}
		if err := stop(); err != nil {
			return err
		}
	}
	b.add(figure("  bare floor: QEMU, state, first process", "ms", "the qemu backend in one process: no server, no lease, no supervisor", first))
	b.add(figure("agent ping without a supervisor", "ms", "guest Ping over the virtio port", ping))
	return nil
}

// defaults is create_instance as most clients call it.
func (b *bench) defaults(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		var ready []float64
		split := stages{}
		for i := range b.o.Rounds {
			b.say("default create %d of %d", i+1, b.o.Rounds)
			began := time.Now()
			res, err := s.create(ctx, map[string]any{"wait_for_ready": true})
			if err != nil {
				return err
			}
			ready = append(ready, ms(time.Since(began)))
			if res.Bootstrap == nil || !res.Bootstrap.RuntimeReady {
				return fault.New(fault.Internal, "the runtime was not ready")
			}
			split.add(res.TimingsMS)
			if err := s.destroy(ctx, res.InstanceID); err != nil {
				return err
			}
		}
		b.add(figure("default create to runtime_ready", "ms", "create_instance(wait_for_ready=true), empty workspace, no services", ready))
		split.report(b, "total")
		return nil
	})
}

// warm is a create that finds a VM in the pool.
func (b *bench) warm(ctx context.Context) error {
	return errors.Join(b.warmed(ctx), b.emptyPool(ctx))
}

func (b *bench) warmed(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		res, err := s.create(ctx, map[string]any{"auto_bootstrap": false}) // puts the template in use
		if err != nil {
			return err
		}
		if err := s.destroy(ctx, res.InstanceID); err != nil {
			return err
		}
		var created, first []float64
		for i := range b.o.Rounds {
			b.say("warm create %d of %d", i+1, b.o.Rounds)
			if err := b.poolFilled(ctx); err != nil {
				return err
			}
			res, c, f, err := s.firstResult(ctx, "warm")
			if err != nil {
				return err
			}
			created, first = append(created, c), append(first, f)
			if err := s.destroy(ctx, res.InstanceID); err != nil {
				return err
			}
		}
		b.add(figure("warm: create_instance", "ms", "create_instance(auto_bootstrap=false), SANDBOX_WARM_POOL=1, the pool filled", created))
		b.add(figure("warm: create to first result", "ms", `and run_command("true")`, first))
		return nil
	}, "SANDBOX_WARM_POOL=1")
}

// parallel makes several at once.
func (b *bench) parallel(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		for _, n := range []int{1, 4, 8} {
			var last []float64
			for round := range max(1, b.o.Rounds/6) {
				b.say("%d creates at once, round %d", n, round+1)
				ids := make([]string, n)
				errs := make([]error, n)
				began := time.Now()
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() {
						var res sandbox.CreateInstanceResult
						if res, errs[i] = s.create(ctx, map[string]any{"auto_bootstrap": false}); errs[i] == nil {
							ids[i] = res.InstanceID
							_, errs[i] = s.run(ctx, res.InstanceID, "true")
						}
					})
				}
				wg.Wait()
				last = append(last, ms(time.Since(began)))
				for _, id := range ids {
					if id != "" {
						errs = append(errs, s.destroy(ctx, id))
					}
				}
				if err := errors.Join(errs...); err != nil {
					return err
				}
			}
			b.add(figure(fmt.Sprintf("%d creates at once, to the last first result", n), "ms", "create_instance(auto_bootstrap=false) and run_command(\"true\"), pool 0", last))
		}
		return nil
	})
}

// fork copies a VM in which a program writes.
func (b *bench) fork(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		src, err := s.create(ctx, map[string]any{"auto_bootstrap": false})
		if err != nil {
			return err
		}
		if err := s.call(ctx, "start_background_task", map[string]any{"instance_id": src.InstanceID,
			"command": `i=0; while :; do i=$((i+1)); echo $i >> /tmp/log; sleep 0.05; done`}, nil); err != nil {
			return err
		}
		var paused, forked, first []float64
		rounds := min(b.o.Rounds, 30) // each adds a layer to the source's disk
		for i := range rounds {
			b.say("fork %d of %d", i+1, rounds)
			var res sandbox.ForkInstanceResult
			began := time.Now()
			if err := s.call(ctx, "fork_instance", map[string]any{"instance_id": src.InstanceID, "count": 1}, &res); err != nil {
				return err
			}
			forked = append(forked, ms(time.Since(began)))
			if len(res.Children) != 1 || res.Failed > 0 {
				return fault.New(fault.Internal, "the fork failed: %+v", res)
			}
			if _, err := s.run(ctx, res.Children[0].InstanceID, "true"); err != nil {
				return err
			}
			first = append(first, ms(time.Since(began)))
			paused = append(paused, res.PauseMS)
			if err := s.destroy(ctx, res.Children[0].InstanceID); err != nil {
				return err
			}
		}
		b.add(figure("fork: the source stands still", "ms", "fork_instance(count=1).pause_ms, a program appending to a file 20 times a second", paused))
		b.add(figure("fork: fork_instance", "ms", "the whole call", forked))
		b.add(figure("fork: to the child's first result", "ms", `and run_command("true") in the child`, first))
		return nil
	})
}

// stateOf finds the saved state that an instance began in.
func (b *bench) stateOf(ctx context.Context, s *server, id string) (string, error) {
	links, err := filepath.Glob(filepath.Join(b.o.Settings.ImageDir, "templates", "*", "state-*", "users", "*"))
	if err != nil {
		return "", err
	}
	vm := filepath.Join(b.home(), "vms", "agent-"+strings.TrimPrefix(id, "inst_"))
	for _, l := range links {
		if to, err := filepath.EvalSymlinks(l); err == nil && to == vm {
			return filepath.Dir(filepath.Dir(l)), nil
		}
	}
	return "", fault.New(fault.Internal, "no template says that %s uses it", id)
}
