package sandbox

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

func withTemplates(t *testing.T, env ...string) *lab {
	return newLab(t, append([]string{"SANDBOX_TEMPLATES=auto"}, env...)...)
}

// templates fails unless there are n in force, and returns their states.
func (l *lab) templates(n int) (states []string) {
	l.t.Helper()
	list, err := l.s.ListTemplates(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	for _, i := range list.Templates {
		if !i.Retired {
			states = append(states, i.State)
		}
	}
	if len(states) != n {
		l.t.Errorf("%d templates in force, want %d: %+v", len(states), n, list.Templates)
	}
	return states
}

// kinds counts active leases.
func (l *lab) kinds() map[store.Kind]int {
	l.t.Helper()
	leases, err := l.s.store.Leases(l.t.Context(), store.LeaseFilter{})
	if err != nil {
		l.t.Fatal(err)
	}
	n := map[store.Kind]int{}
	for _, in := range leases {
		n[in.Kind]++
	}
	return n
}

// made counts the makings that were recorded, by outcome.
func (l *lab) made() map[string]int {
	l.t.Helper()
	events, err := l.s.store.Events(l.t.Context(), store.EventFilter{What: "template_make"})
	if err != nil {
		l.t.Fatal(err)
	}
	n := map[string]int{}
	for _, e := range events {
		n[e.Outcome]++
	}
	return n
}

func wantStart(t *testing.T, r *CreateInstanceResult, kind, warning string) {
	t.Helper()
	if r.StartKind != kind || warning == "" && r.Warnings != nil || warning != "" && !strings.Contains(strings.Join(r.Warnings, "\n"), warning) {
		t.Errorf("start_kind %s, warnings %v; want %s, %q", r.StartKind, r.Warnings, kind, warning)
	}
}

func TestEightServersWantTheSameTemplate(t *testing.T) {
	l := withTemplates(t)
	services := []*Service{l.s}
	for len(services) < 8 {
		services = append(services, l.open(l.conf()))
	}
	var wg sync.WaitGroup
	for _, s := range services {
		wg.Go(func() {
			r, err := s.CreateInstance(l.context(), l.request())
			if err != nil {
				t.Error(err)
				return
			}
			wantStart(t, r, startClone, "")
		})
	}
	wg.Wait()
	states := l.templates(1)
	if n := l.made(); n["ok"] != 1 || len(n) != 1 {
		t.Errorf("made: %v", n)
	}
	if n := l.kinds(); n[store.KindInstance] != 8 || len(n) != 1 {
		t.Errorf("leases: %v", n)
	}
	l.empty()
	if again := l.templates(1); !slices.Equal(again, states) {
		t.Errorf("the template became %v", again)
	}
	wantStart(t, l.create(), startClone, "")
}

// A template that cannot be made is never a failed create: it is tried twice,
// then VMs of its kind boot for a while, unless somebody asks for it.
func TestATemplateThatCannotBeMade(t *testing.T) {
	l := withTemplates(t)
	l.token("fail-save")
	wantStart(t, l.create(), startCold, "the test lets this save fail")
	wantStart(t, l.create(), startCold, "is tried again")
	if n := l.made(); n["ok"] != 0 || len(n) != 1 {
		t.Errorf("made: %v", n)
	}
	l.templates(0)
	if n := l.kinds(); n[store.KindInstance] != 2 || len(n) != 1 {
		t.Errorf("leases: %v", n)
	}
	if err := os.Remove(filepath.Join(l.conf().Faults, "fail-save")); err != nil {
		t.Fatal(err)
	}
	r, err := l.s.WarmTemplate(l.context(), WarmTemplateRequest{CPUs: 1, MemoryGiB: 0.0625, DiskGiB: 1})
	if err != nil || !r.Made || r.Template.CPUs != 1 || r.Template.MemoryMiB != 64 {
		t.Fatalf("%+v, %v", r, err)
	}
	wantStart(t, l.create(), startClone, "")
	if r, err = l.s.WarmTemplate(l.context(), WarmTemplateRequest{CPUs: 1, MemoryGiB: 0.0625, DiskGiB: 1}); err != nil || r.Made || r.Template.InUse != 1 {
		t.Errorf("a second time: %+v, %v", r, err)
	}
	l.empty()
}

// What cannot become an instance costs no boot: no template is made for a VM
// that the host cannot carry, or whose image is not there.
func TestNoTemplateForAVMThatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		vm   map[string]any
		code fault.Code
	}{
		"disk":   {map[string]any{"disk_gib": 60000}, fault.InsufficientHostResources},
		"memory": {map[string]any{"memory_gib": 4000}, fault.InsufficientHostResources},
		"cpus":   {map[string]any{"cpus": 255}, fault.InsufficientHostResources},
		"image":  {map[string]any{"image": "missing"}, fault.ImageNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			l := withTemplates(t)
			r := l.request()
			maps.Copy(r.Overrides["vm"].(map[string]any), c.vm)
			if _, err := l.s.CreateInstance(l.context(), r); !fault.Is(err, c.code) {
				t.Errorf("%v, want %s", err, c.code)
			}
			l.templates(0)
			if n := l.made(); len(n) != 0 {
				t.Errorf("made: %v", n)
			}
			if all, err := l.s.store.Leases(l.context(), store.LeaseFilter{IncludeEnded: true}); err != nil || len(all) != 0 {
				t.Errorf("leases: %+v, %v", all, err)
			}
		})
	}
}

// A lease that is shorter than what was asked for says so.
func TestACutTTLIsSaid(t *testing.T) {
	l := newLab(t)
	r := l.request()
	for minutes, says := range map[float64]bool{500: true, 120: false, 5: false} {
		r.TTLMinutes = &minutes
		out, err := l.s.CreateInstance(l.context(), r)
		if err != nil {
			t.Fatal(err)
		}
		want := "ttl_minutes 500 is above MAX_TTL_MINUTES (120): it ends at " + out.ExpiresAt
		if got := strings.Join(out.Warnings, "\n"); got != want && says || got != "" && !says {
			t.Errorf("%v minutes: %q", minutes, got)
		}
		l.destroy(out.InstanceID)
	}
}

// A VM that hangs while it is made into a template is ended, and the whole is
// tried once more.
func TestATemplateMakerThatHangs(t *testing.T) {
	shorten(t, &settleLimit, 2*time.Second)
	l := withTemplates(t)
	l.token("hang-run-1")
	wantStart(t, l.create(), startClone, "")
	l.templates(1)
	if n := l.kinds(); n[store.KindInstance] != 1 || len(n) != 1 {
		t.Errorf("leases: %v", n)
	}
	l.empty()
}

func TestACloneThatDoesNotStartBoots(t *testing.T) {
	l := withTemplates(t)
	wantStart(t, l.create(), startClone, "")
	old := l.templates(1)
	l.token("fail-start-1")
	r := l.create()
	wantStart(t, r, startCold, "the test lets this start fail")
	if _, ok := r.TimingsMS["failed_clone"]; !ok {
		t.Errorf("timings %v", r.TimingsMS)
	}
	lease, err := l.s.store.Lease(t.Context(), r.InstanceID)
	if err != nil || specOf(lease).VM.From != "" {
		t.Errorf("the lease still says that its VM began in %q, %v", specOf(lease).VM.From, err)
	}
	l.templates(0)
	wantStart(t, l.create(), startClone, "")
	if anew := l.templates(1); slices.Equal(anew, old) {
		t.Error("the template that failed is in force again")
	}
	l.empty()
	if _, err := os.Stat(old[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the files of the old one stay: %v", err)
	}
}

// The making of a template goes on when the call that began it is cancelled.
func TestACallerThatLeavesAMaker(t *testing.T) {
	l := withTemplates(t)
	reached, release := l.hold("save")
	ctx, leave := context.WithCancel(l.context())
	left := make(chan error, 1)
	go func() {
		_, err := l.s.CreateInstance(ctx, l.request())
		left <- err
	}()
	reached()
	if n := l.kinds(); n[store.KindTemplate] != 1 || len(n) != 1 {
		t.Errorf("leases while it is made: %v", n)
	}
	list, err := l.s.ListInstances(l.context(), ListInstancesRequest{})
	if err != nil || len(list.Instances) != 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	leave()
	wantCode(t, <-left, fault.Cancelled)
	release()
	wantStart(t, l.create(), startClone, "")
	if n := l.made(); n["ok"] != 1 || len(n) != 1 {
		t.Errorf("made: %v", n)
	}
	l.empty()
}

// A server that is killed while it makes a template leaves neither a VM nor
// half a template.
func TestAServerKilledWhileItMakesATemplate(t *testing.T) {
	for _, at := range []string{"start", "save"} {
		t.Run(at, func(t *testing.T) {
			l := withTemplates(t)
			reached, release := l.hold(at)
			req := l.request()
			cmd, _ := l.server(labOrder{Make: &req})
			reached()
			l.killServer(cmd)
			release()
			wantStart(t, l.create(), startClone, "")
			l.gc()
			l.templates(1)
			if n := l.kinds(); n[store.KindInstance] != 1 || len(n) != 1 {
				t.Errorf("leases: %v", n)
			}
			l.empty()
		})
	}
}

// A service that closes while it makes a template ends the VM.
func TestCloseWhileATemplateIsMade(t *testing.T) {
	l := withTemplates(t)
	s := l.open(l.conf())
	reached, release := l.hold("start")
	left := make(chan error, 1)
	go func() {
		_, err := s.CreateInstance(l.context(), l.request())
		left <- err
	}()
	reached()
	go release()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-left; err == nil {
		t.Error("the create succeeded")
	}
	l.gc()
	if n := l.kinds(); len(n) != 0 {
		t.Errorf("leases: %v", n)
	}
	l.templates(0)
	l.empty()
}

// ready puts VMs into the pool by hand.
func (l *lab) ready(s *Service, req CreateInstanceRequest, n int) (shape string) {
	l.t.Helper()
	res := s.resolveConfig(l.work, req.Overrides)
	sel, err := s.selectBackend(l.context())
	if err != nil {
		l.t.Fatal(err)
	}
	spec := vmSpec(res.Config.VM)
	o, err := s.originOf(l.context(), sel, spec, func() error { return nil }, map[string]int64{})
	if err != nil || o.template == nil {
		l.t.Fatalf("%+v, %v", o, err)
	}
	spec.From = o.template.State
	for range n {
		if err := s.addReady(l.context(), poolShape{shapeOf(spec), sel, spec, time.Now()}); err != nil {
			l.t.Fatal(err)
		}
	}
	return shapeOf(spec)
}

func TestThePoolIsClaimedOnceAndNeverOverfilled(t *testing.T) {
	l := withTemplates(t, "SANDBOX_WARM_POOL=2")
	shape := l.ready(l.s, l.request(), 2)
	// Two servers that fill the same pool make no more together.
	for _, s := range []*Service{l.s, l.open(l.conf())} {
		leases, err := s.store.Leases(t.Context(), store.LeaseFilter{Kind: store.KindPool})
		if err != nil || len(leases) != 2 || specOf(leases[0]).Shape != shape {
			t.Fatalf("%+v, %v", leases, err)
		}
		sel, err := s.selectBackend(l.context())
		if err != nil {
			t.Fatal(err)
		}
		err = s.addReady(l.context(), poolShape{shape, sel, specOf(leases[0]).VM, time.Now()})
		if !errors.Is(err, errPoolFull) {
			t.Errorf("a third: %v", err)
		}
	}
	// A guest of the pool is not to be used.
	leases, err := l.s.store.Leases(t.Context(), store.LeaseFilter{Kind: store.KindPool})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = l.s.live(l.context(), leases[0].InstanceID)
	wantCode(t, err, fault.InstanceNotFound)

	starts := make([]string, 4)
	var wg sync.WaitGroup
	for i := range starts {
		s := l.s
		if i%2 == 1 {
			s = l.open(l.conf())
		}
		wg.Go(func() {
			r, err := s.CreateInstance(l.context(), l.request())
			if err != nil {
				t.Error(err)
				return
			}
			starts[i] = r.StartKind
		})
	}
	wg.Wait()
	slices.Sort(starts)
	if want := []string{"clone", "clone", "warm", "warm"}; !slices.Equal(starts, want) {
		t.Errorf("starts %v", starts)
	}
	if n := l.kinds(); n[store.KindInstance] != 4 || len(n) != 1 {
		t.Errorf("leases: %v", n)
	}
	l.empty()
}

// Who retires a ready VM by what it has seen of it never ends the instance that
// it became meanwhile.
func TestRetiringLosesToAClaim(t *testing.T) {
	l := withTemplates(t, "SANDBOX_WARM_POOL=1")
	l.ready(l.s, l.request(), 1)
	leases, err := l.s.store.Leases(t.Context(), store.LeaseFilter{Kind: store.KindPool})
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	r := l.create()
	wantStart(t, r, startWarm, "")
	if r.InstanceID != leases[0].InstanceID {
		t.Fatalf("claimed %s, ready was %s", r.InstanceID, leases[0].InstanceID)
	}
	if did, err := l.s.retireReady(l.context(), leases[0], "too late"); did || err != nil {
		t.Errorf("retired %v, %v", did, err)
	}
	if _, _, err := l.s.live(l.context(), r.InstanceID); err != nil {
		t.Errorf("the instance: %v", err)
	}
	l.empty()
}

// An instance that was asked for finds the room that ready VMs hold, those of
// other kinds first.
func TestThePoolMakesRoom(t *testing.T) {
	l := withTemplates(t, "SANDBOX_WARM_POOL=2")
	mine := l.ready(l.s, l.request(), 1)
	other := l.request()
	other.Overrides = map[string]any{"vm": map[string]any{"cpus": 1, "memory_gib": 0.125, "disk_gib": 1}}
	theirs := l.ready(l.s, other, 1)
	left := func() (shapes []string) {
		leases, err := l.s.store.Leases(t.Context(), store.LeaseFilter{Kind: store.KindPool})
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range leases {
			shapes = append(shapes, specOf(in).Shape)
		}
		return shapes
	}
	if got := left(); len(got) != 2 || mine == theirs {
		t.Fatalf("ready: %q", got)
	}
	for _, want := range [][]string{{mine}, nil} {
		if !l.s.shrinkPool(l.context(), mine) {
			t.Error("nothing made room")
		}
		if got := left(); !slices.Equal(got, want) {
			t.Errorf("left %q, want %q", got, want)
		}
	}
	if l.s.shrinkPool(l.context(), mine) {
		t.Error("an empty pool made room")
	}
	l.empty()
}

// The pool is filled behind a create, expires, and is retired with its template.
func TestThePoolIsKept(t *testing.T) {
	l := withTemplates(t, "SANDBOX_WARM_POOL=2", "SANDBOX_SWEEPER_INTERVAL_SECONDS=1")
	l.s.StartSweeper()
	wantStart(t, l.create(), startClone, "")
	full := func() bool {
		leases, err := l.s.store.Leases(t.Context(), store.LeaseFilter{Kind: store.KindPool, Statuses: []store.Status{store.Running}})
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range leases {
			if left := time.Until(in.ExpiresAt); left > poolTTL || left < poolTTL-time.Minute {
				t.Errorf("a ready VM ends in %v", left)
			}
		}
		return len(leases) == 2
	}
	l.eventually(full)
	wantStart(t, l.create(), startWarm, "")
	l.eventually(full)
	list, err := l.s.ListInstances(l.context(), ListInstancesRequest{IncludeInternal: true})
	if err != nil || len(list.Instances) != 4 || list.TemplateCount != 1 {
		t.Errorf("listed %+v, %v", list, err)
	}
	for _, state := range l.templates(1) {
		if err := os.Remove(filepath.Join(filepath.Dir(state), "template.json")); err != nil {
			t.Fatal(err)
		}
	}
	l.eventually(func() bool { return l.kinds()[store.KindPool] == 0 })
	l.s.cancel() // the pool is kept no more
	l.s.wg.Wait()
	l.empty()
}
