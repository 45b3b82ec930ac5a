package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
	"sandboxforge/internal/template"
)

// templateContent is what makeTemplate makes ready, as part of the key: raise
// the number when that changes.
const templateContent = "3: agent, docker with the image's container images and the network " + defaultNetwork + " if the image has it, idle"

// How long a kind of VM boots after its template could not be made, so that not
// every create pays for the same failure. A template that somebody asks for by
// name (WarmImage) is tried all the same.
const templateRest = 10 * time.Minute

// templateRefusal is what a host may take to refuse a VM for want of room, for
// that not to count as a failure.
const templateRefusal = 3 * time.Second

// templates is what the service knows of templates beyond the disk.
type templates struct {
	mu     sync.Mutex
	making map[string]*shared[*template.Template] // by key
	failed map[string]templateFailure             // by key
}

type templateFailure struct {
	at     time.Time
	reason string
}

// origin is where a new VM begins.
type origin struct {
	template *template.Template // nil: it boots
	// why says why it boots although its backend could do better; "" if it
	// could not, or nobody wants it to.
	why string
}

// templateStore is the templates of a backend; nil where there are none.
func (s *Service) templateStore(sel Selected) *template.Store {
	keeper, ok := sel.Backend.(backend.StateKeeper)
	if !ok || !s.settings.Templates || !sel.Backend.Capabilities().Clones {
		return nil
	}
	return s.templatesOf(keeper)
}

func (s *Service) templatesOf(keeper backend.StateKeeper) *template.Store {
	return &template.Store{
		Dir: filepath.Join(s.settings.ImageDir, "templates"), Keeper: keeper,
		CapBytes: s.settings.TemplateCap, Logger: s.log,
	}
}

// grownDisk is the size, in bytes, to which a template's file system is grown if
// no clone of it wants less: that of the default configuration. To grow it in
// each clone takes a fifth of the clone's start, and writes to its disk.
const grownDisk = 15 << 30

// templateSpec is the VM that a template for VMs of spec is made of. Its disk
// is no larger than that of any of them, since a clone's can only be larger.
func templateSpec(spec backend.Spec) backend.Spec {
	spec.Name, spec.Hostname, spec.From, spec.MemoryFile = "", "", "", true
	if spec.DiskBytes >= grownDisk {
		spec.DiskBytes = grownDisk
	} else {
		spec.DiskBytes = 0 // the image's
	}
	return spec
}

// templateKey names everything that must agree between a template and a clone.
func templateKey(ctx context.Context, st *template.Store, spec backend.Spec, p preparation) (string, error) {
	spec = templateSpec(spec)
	spec.Name = "template" // any name will do, and some is needed
	k, err := st.Keeper.StateKey(ctx, spec)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%s", templateContent, k, spec.DiskBytes, p.key()))
	return hex.EncodeToString(sum[:]), nil
}

// originOf finds the template for a new VM, and makes it if it is missing. That
// there is none in the end is no error: the VM boots then, and the origin says
// why. The error is ctx's, room's, which is asked before a template is made, or
// that there is no such image, without which no VM boots either.
func (s *Service) originOf(ctx context.Context, sel Selected, spec backend.Spec, room func() error, timings map[string]int64) (origin, error) {
	st := s.templateStore(sel)
	if st == nil {
		return origin{}, nil
	}
	began := s.now()
	var refused error
	t, made, err := s.findTemplate(ctx, st, sel, spec, preparation{}, false, func() error {
		refused = room()
		return refused
	})
	what := "template"
	if made {
		what = "template_make"
	}
	timings[what] = s.now().Sub(began).Milliseconds()
	switch {
	case err == nil:
		return origin{template: t}, nil
	case ctx.Err() != nil:
		return origin{}, fault.Wrap(context.Cause(ctx), fault.Cancelled, "create_instance was cancelled while its template was made").
			Next("call create_instance again: the template is still being made, and is used when it is ready")
	case refused != nil, fault.Is(err, fault.ImageNotFound):
		return origin{}, err
	}
	return origin{why: reasonOf(err)}, nil
}

// reasonOf is an error in one line of bounded length.
func reasonOf(err error) string {
	const most = 600
	f := fault.From(err)
	msg := f.Message
	switch {
	case strings.Contains(msg, f.Cause) && f.Cause != "": // said already
	case f.Cause != "":
		msg += ": " + f.Cause
	case f.Err != nil:
		msg += ": " + f.Err.Error()
	}
	msg = strings.Join(strings.Fields(msg), " ")
	if len(msg) > most {
		msg = strings.ToValidUTF8(msg[:most], "") + " ..."
	}
	return msg
}

// findTemplate returns the template for VMs of spec with p, and whether it had
// to be waited for. anew: a recent failure does not keep it from being tried again.
// room, if not nil, is asked before it is made, and its error returned.
func (s *Service) findTemplate(ctx context.Context, st *template.Store, sel Selected, spec backend.Spec, p preparation, anew bool, room func() error) (t *template.Template, waited bool, err error) {
	key, err := templateKey(ctx, st, spec, p)
	if err != nil {
		return nil, false, err
	}
	t, err = st.Find(ctx, key)
	if err == nil || !errors.Is(err, template.ErrMissing) {
		return t, false, err
	}
	if err != template.ErrMissing {
		s.record(ctx, "template_unfit", "", "", nil, map[string]any{"key": key, "reason": err.Error()})
	}
	if room != nil {
		if err := room(); err != nil {
			return nil, false, err
		}
	}
	w, err := s.joinMaking(st, sel, spec, p, key, anew)
	if err != nil {
		return nil, false, err
	}
	report(ctx, Progress{Stage: "template", Message: "the first VM of its kind is made into a template, which takes a boot; later ones start in its clones"})
	t, err = w.wait(ctx)
	return t, true, err
}

// joinMaking joins the making of a template in this process, or starts it.
func (s *Service) joinMaking(st *template.Store, sel Selected, spec backend.Spec, p preparation, key string, anew bool) (*shared[*template.Template], error) {
	n := &s.templates
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.making[key]; w != nil {
		return w, nil
	}
	if f, ok := n.failed[key]; ok && !anew {
		if ago := s.now().Sub(f.at); ago < templateRest {
			return nil, fault.New(fault.RuntimeNotReady, "its template could not be made %s ago (%s), and is tried again %s after that",
				ago.Round(time.Second), f.reason, templateRest)
		}
	}
	w := newShared[*template.Template]()
	if n.making == nil {
		n.making, n.failed = map[string]*shared[*template.Template]{}, map[string]templateFailure{}
	}
	n.making[key] = w
	s.wg.Go(func() {
		began := s.now()
		var made bool
		w.val, made, w.err = s.makeTemplate(WithProgress(s.root, func(p Progress) { w.report(p.Stage, p.Message) }), st, sel, spec, p, key)
		n.mu.Lock()
		delete(n.making, key)
		delete(n.failed, key)
		// A host that has no room now may have some at the next call; it is asked
		// again unless it took a boot to find out.
		took := s.now().Sub(began)
		if w.err != nil && s.root.Err() == nil && (!noRoom(w.err) || took > templateRefusal) {
			n.failed[key] = templateFailure{s.now(), reasonOf(w.err)}
		}
		n.mu.Unlock()
		if made || w.err != nil {
			s.record(s.root, "template_make", "", "", w.err, map[string]any{
				"key": key, "image": spec.Image, "cpus": spec.CPUs, "memory_mib": spec.MemoryMiB, "services": services.Names(p.services), "duration_ms": took.Milliseconds()})
		}
		close(w.done)
	})
	return w, nil
}

// noRoom: it was the host that refused.
func noRoom(err error) bool {
	return fault.Is(err, fault.InsufficientHostResources) || fault.Is(err, fault.InsufficientDisk)
}

// blamesState reports whether a clone failed by what it began in. Where its
// processes could not be started, were killed, or found no room, others may
// begin there all the same.
func blamesState(err error) bool {
	return errors.Is(err, backend.ErrStateUnfit) || errors.Is(err, supervisor.ErrEnded) && fault.Is(err, fault.RuntimeNotReady)
}

// bringUpFrom is bringUp for a lease whose VM begins in o. If a clone does not
// come up, the same lease's VM boots, and its template is taken out of force if
// it is to blame; the returned warnings say so. For want of room on the host
// there is no boot either.
func (s *Service) bringUpFrom(ctx context.Context, sel Selected, lease store.Lease, o origin, timings map[string]int64) (store.Lease, []string, error) {
	var warnings []string
	if o.why != "" {
		s.log.Warn("no template, the VM boots", "instance", lease.InstanceID, "reason", o.why)
		warnings = append(warnings, "the VM was booted instead of cloned: "+o.why)
	}
	began := s.now()
	up, err := s.bringUp(ctx, sel, lease, timings)
	if err == nil || o.template == nil || ctx.Err() != nil || noRoom(err) {
		return up, warnings, err
	}
	if now, lerr := s.store.Lease(ctx, lease.InstanceID); lerr != nil || now.Status != store.Creating || now.Generation != lease.Generation {
		return up, warnings, err // somebody else owns it
	}
	reason := reasonOf(err)
	s.log.Warn("a clone did not come up, the VM boots", "instance", lease.InstanceID, "template", o.template.Key, "reason", reason)
	report(ctx, Progress{Stage: "template", Message: "the clone did not come up; booting instead"})
	if rerr := s.removeVM(ctx, lease, "its clone did not come up", 0); rerr != nil {
		return lease, warnings, errors.Join(err, rerr)
	}
	if blamesState(err) {
		if derr := s.templateStore(sel).Discard(ctx, o.template, "a clone of it did not come up: "+reason); derr != nil {
			s.log.Warn("an unfit template stays in force", "key", o.template.Key, "error", derr)
		}
		s.record(ctx, "template_unfit", lease.InstanceID, "", nil, map[string]any{"key": o.template.Key, "reason": reason})
	}
	spec := specOf(lease)
	spec.VM.From, spec.Shape = "", ""
	patch, err := spec.patch()
	if err != nil {
		return lease, warnings, err
	}
	if _, err := s.store.Update(ctx, lease.InstanceID, patch); err != nil {
		return lease, warnings, err
	}
	lease.Spec = patch.Spec
	timings["failed_clone"] = s.now().Sub(began).Milliseconds()
	up, err = s.bringUp(ctx, sel, lease, timings)
	return up, append(warnings, fmt.Sprintf("the VM was booted instead of cloned: a clone of its template did not come up (%s)", reason)), err
}
