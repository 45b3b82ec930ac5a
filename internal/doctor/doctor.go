package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// Options are what Run looks at. Nil functions leave their checks out.
type Options struct {
	Version string
	// Settings, or why there are none.
	Settings    *config.Settings
	SettingsErr error
	// Backends of this platform in the order of preference, unprobed.
	Backends []backend.Backend
	// Images tells the state of each image recipe; ImageBackend is the backend
	// whose VMs boot them.
	Images       func() ([]ImageState, error)
	ImageBackend string
	// BuildTools is the error that an image build would fail with for lack of
	// host programs; nil if there is nothing to say.
	BuildTools func() error
	// Instances lists the leases that may have a VM.
	Instances func(context.Context) (*sandbox.ListInstancesResult, error)
	Host      Host
	// Progress is told what is being looked at; may be nil.
	Progress func(stage, text string)
}

// ImageState is a recipe and whether its image is there.
type ImageState struct {
	Name    string
	Built   bool // an image of that name exists
	Current bool // it is what this version would build
	Default bool // instances use it unless told otherwise
}

// What the default configuration asks for (CONFIG.md) and the headroom that
// create_instance keeps.
const (
	gib           = 1 << 30
	defaultMemory = 2*gib + gib/2
	leastMemory   = gib
	defaultDisk   = 17 * gib
	leastDisk     = 5 * gib
)

// Run makes every check that it can. It does not fail: what cannot be found
// out is a check that says so. When ctx ends the remaining checks say that.
func Run(ctx context.Context, o Options) *Report {
	r := &Report{Version: o.Version, Platform: o.Host.GOOS + "/" + o.Host.GOARCH, Checks: []Check{}}
	say := o.Progress
	if say == nil {
		say = func(string, string) {}
	}
	say("environment", "")
	o.environment(r)
	if o.Settings == nil {
		return r
	}
	o.operator(r)
	if !o.home(r) {
		// Whatever else were looked at would fail for the same reason.
		o.machine(r, false)
		for _, id := range []string{"backend", "image", "instances"} {
			r.add(needsHome(id))
		}
		return r
	}
	o.machine(r, true)
	if !o.accelerator(r) {
		return r
	}
	o.backends(ctx, r, say)
	say("images", "")
	o.images(r)
	say("instances", "")
	o.leftovers(ctx, r)
	r.OK = r.Backend != "" && !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Status == Fail })
	return r
}

func (o Options) environment(r *Report) {
	if o.SettingsErr != nil {
		f := fault.From(o.SettingsErr)
		fix := f.NextSteps
		if len(fix) == 0 {
			fix = []string{"correct or unset the variable that is named"}
		}
		r.add(Check{ID: "environment", Status: Fail, Summary: f.Error(), Fix: fix})
		return
	}
	if o.Settings == nil {
		r.add(Check{ID: "environment", Status: Fail, Summary: "the settings could not be read"})
		return
	}
	c := Check{ID: "environment", Status: OK, Summary: "every variable is valid"}
	if len(o.Settings.Warnings) > 0 {
		c.Status, c.Summary, c.Details = Warn, "valid, with remarks", o.Settings.Warnings
	}
	r.add(c)
	if o.Host.Container != nil {
		if name := o.Host.Container(); name != "" {
			r.add(Check{
				ID: "container", Status: Warn, Summary: "this seems to run inside a container (" + name + ")",
				Details: []string{"running the server inside a container is not supported: VMs then end with it and see its limits"},
				Fix:     []string{"run sandboxforge on the host itself"},
			})
		}
	}
}

// operator looks at the operator's configuration files: an error in one fails
// the creation of every instance. Where there is none nothing is said.
func (o Options) operator(r *Report) {
	res := config.Load(config.Input{UserHome: o.Settings.UserHome, ConfigHome: o.Settings.ConfigHome, GOOS: o.Host.GOOS})
	files := res.Sources[1:] // the first are the defaults
	if len(files) == 0 {
		return
	}
	c := Check{ID: "config", Status: OK, Summary: strings.Join(files, ", ") + ": valid"}
	for _, d := range res.Diagnostics {
		c.Details = append(c.Details, d.String())
	}
	switch {
	case !res.Valid():
		c.Status, c.Summary = Fail, "the operator's configuration has errors"
		c.Fix = []string{"correct what is named in " + strings.Join(files, ", ")}
	case len(c.Details) > 0:
		c.Status, c.Summary = Warn, "valid, with remarks"
	}
	r.add(c)
}

// home looks whether state can be written, by writing, and reports whether it
// can.
func (o Options) home(r *Report) bool {
	dir := o.Settings.Home
	err := o.Settings.EnsureHome()
	if err == nil {
		err = tryWrite(dir)
	}
	if err == nil {
		r.add(Check{ID: "home", Status: OK, Summary: dir + " is writable"})
		return true
	}
	f := fault.From(err)
	fix := f.NextSteps
	if len(fix) == 0 {
		fix = []string{"make " + dir + " writable for this user, or set SANDBOXFORGE_HOME to a directory that is"}
	}
	r.add(Check{ID: "home", Status: Fail, Summary: f.Error(), Fix: fix})
	return false
}

func needsHome(id string) Check {
	return Check{ID: id, Status: Info, Summary: "not looked at: it needs the state directory"}
}

// accelerators are what SANDBOX_ACCEL can be on a system; there is no choice
// on others.
var accelerators = map[string][]string{"linux": {"auto", "kvm", "tcg"}, "darwin": {"auto", "hvf", "tcg"}}

// accelerator says what no backend of this system can obey, and reports whether
// there is nothing to say. The backends need not be asked then.
func (o Options) accelerator(r *Report) bool {
	here := accelerators[o.Host.GOOS]
	if o.Settings.Backend == "hyperv" || here == nil || slices.Contains(here, o.Settings.Accel) {
		return true
	}
	r.add(Check{
		ID: "accelerator", Status: Fail, Summary: "SANDBOX_ACCEL=" + o.Settings.Accel + ": not on " + o.Host.GOOS,
		Fix: []string{fmt.Sprintf("unset SANDBOX_ACCEL, or set it to %s or %s", strings.Join(here[:len(here)-1], ", "), here[len(here)-1])},
	})
	return false
}

func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", dir, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 4096)); err != nil {
		return fmt.Errorf("%s cannot be written: %w", dir, err)
	}
	return f.Sync()
}

// machine looks at processors and memory, and at the disk below the home where
// there is one.
func (o Options) machine(r *Report, home bool) {
	r.add(Check{ID: "cpu", Status: OK, Summary: fmt.Sprintf("%d processors", o.Host.CPUs())})

	if avail, err := o.Host.Memory(); err != nil {
		r.add(Check{ID: "memory", Status: Warn, Summary: "available memory is unknown: " + err.Error()})
	} else {
		r.add(enough("memory", "available", avail, leastMemory, defaultMemory,
			"free memory, or ask for less: vm.memory_gib = %.1f in .sandboxforge.toml", gib/2,
			"end other programs: the smallest useful VM needs 1 GiB"))
	}
	if !home {
		r.add(needsHome("disk"))
	} else if free, err := o.Host.DiskFree(o.Settings.VMDir()); err != nil {
		r.add(Check{ID: "disk", Status: Warn, Summary: "free disk space is unknown: " + err.Error()})
	} else {
		c := enough("disk", "free for VMs", free, leastDisk, defaultDisk,
			"free disk space, or ask for less: vm.disk_gib = %.0f in .sandboxforge.toml", 2*gib,
			"free disk space, or set SANDBOXFORGE_HOME to a file system with more")
		c.Summary += " in " + filepath.Clean(o.Settings.Home)
		r.add(c)
	}
}

// enough compares a quantity with what the smallest and the default VM need.
func enough(id, what string, have, least, wanted int64, less string, headroom int64, fix string) Check {
	c := Check{ID: id, Status: OK, Summary: ui.Bytes(have) + " " + what}
	switch {
	case have < least:
		c.Status, c.Fix = Fail, []string{fix}
		c.Details = []string{"not enough for any VM"}
	case have < wanted:
		c.Status = Warn
		c.Details = []string{"not enough for a VM of the default size"}
		c.Fix = []string{fmt.Sprintf(less, float64((have-headroom)/(gib/2))/2)}
	}
	return c
}

// images reports whether VMs of the embedded backend have something to boot.
// It matters only where that backend is the one to be used.
func (o Options) images(r *Report) {
	if o.Images == nil || !o.hasBackend(o.ImageBackend) {
		return
	}
	missing, outdated := Fail, Warn
	if r.Backend != o.ImageBackend && r.Backend != "" {
		missing, outdated = Info, Info
	}
	states, err := o.Images()
	if err != nil {
		f := fault.From(err)
		r.add(Check{ID: "image", Status: missing, Summary: f.Error(), Fix: f.NextSteps})
		return
	}
	c := Check{ID: "image", Status: OK}
	for _, s := range states {
		switch {
		case s.Current:
			c.Details = append(c.Details, s.Name+": built")
		case s.Built:
			c.Details = append(c.Details, s.Name+": built by another version")
		default:
			c.Details = append(c.Details, s.Name+": not built")
		}
		if !s.Default {
			continue
		}
		switch {
		case s.Current:
			c.Summary = "the default guest image is built"
		case s.Built:
			c.Status, c.Summary = outdated, "the default guest image was built by another version"
			c.Fix = []string{buildCommand}
		default:
			c.Status, c.Summary = missing, "the default guest image has not been built"
			c.Fix = []string{buildCommand}
		}
	}
	if o.BuildTools != nil && c.Status != OK {
		if err := o.BuildTools(); err != nil {
			f := fault.From(err)
			r.add(Check{ID: "image.tools", Status: c.Status, Summary: f.Error(), Fix: o.Host.fixes(f.NextSteps)})
		}
	}
	r.add(c)
}

const buildCommand = "sandboxforge image build"

func (o Options) hasBackend(name string) bool {
	return slices.ContainsFunc(o.Backends, func(b backend.Backend) bool { return b.Name() == name })
}

// backends probes each backend and decides which one instances would be made
// on, as the server does: the one that is asked for, else the first usable.
func (o Options) backends(ctx context.Context, r *Report, say func(string, string)) {
	wanted := o.Settings.Backend
	seen := false
	first := len(r.Checks)
	for _, b := range o.Backends {
		name := b.Name()
		c := Check{ID: "backend." + name}
		if wanted != "auto" && wanted != "" && wanted != name {
			c.Status, c.Summary = Info, "not looked at: SANDBOX_BACKEND="+wanted
			r.add(c)
			continue
		}
		seen = true
		say("backend "+name, "")
		rep, err := b.Probe(ctx, func(stage, message string) { say("backend "+name, strings.TrimSpace(stage+" "+message)) })
		if err != nil {
			f := fault.From(err)
			c.Status, c.Summary, c.Fix = Warn, "could not be probed: "+f.Error(), o.Host.fixes(f.NextSteps)
			r.add(c)
			continue
		}
		c.Details = slices.Clone(rep.Evidence)
		var fix []string
		for _, p := range rep.Problems {
			if o.Images != nil && name == o.ImageBackend && strings.Contains(p.Fix, buildCommand) {
				continue // the image has a check of its own
			}
			what := p.What
			if p.Fatal {
				what = "missing: " + what
			}
			c.Details = append(c.Details, what)
			if p.Fix != "" {
				fix = append(fix, p.Fix)
			}
		}
		c.Fix = o.Host.fixes(fix)
		if rep.Usable {
			c.Status, c.Summary = OK, strings.TrimSpace("usable "+rep.Version)
			if rep.Accelerator != "" {
				c.Summary += ", accelerator " + rep.Accelerator
			}
			if len(c.Fix) > 0 {
				c.Status = Warn
			}
			if i := slices.IndexFunc(rep.Problems, func(p backend.Problem) bool { return p.Doubtful }); i >= 0 {
				// The server would take it, and the VM would not come up.
				p := rep.Problems[i]
				c.Status, c.Summary, c.Fix = Fail, p.What, o.Host.fixes([]string{p.Fix})
				c.Details = slices.DeleteFunc(c.Details, func(d string) bool { return d == p.What })
			}
			if r.Backend == "" {
				r.Backend, r.Accelerator = name, rep.Accelerator
			}
		} else {
			c.Status, c.Summary = Warn, strings.TrimSpace("not usable "+rep.Version)
		}
		r.add(c)
	}
	if r.Backend != "" {
		return
	}
	// None will do: what was a remark is now what stands in the way.
	for i := first; i < len(r.Checks); i++ {
		if r.Checks[i].Status == Warn {
			r.Checks[i].Status = Fail
		}
	}
	if !seen {
		r.add(Check{
			ID: "backend." + wanted, Status: Fail, Summary: "this platform has no backend " + wanted,
			Fix: []string{"set SANDBOX_BACKEND to auto"},
		})
	}
}

// leftovers compares the leases with the processes there are.
func (o Options) leftovers(ctx context.Context, r *Report) {
	live := map[string]bool{}
	known := false
	if o.Instances != nil {
		list, err := o.Instances(ctx)
		if err != nil {
			f := fault.From(err)
			r.add(Check{ID: "instances", Status: Fail, Summary: "the lease database cannot be used: " + f.Error(), Fix: f.NextSteps})
		} else {
			known = true
			instances, own := 0, 0
			for _, in := range list.Instances {
				if in.Kind == "" || in.Kind == "instance" {
					instances++
				} else {
					own++
				}
			}
			c := Check{ID: "instances", Status: OK, Summary: fmt.Sprintf("%d of at most %d", instances, o.Settings.MaxInstances)}
			if instances > o.Settings.MaxInstances {
				c.Summary = fmt.Sprintf("%d; MAX_INSTANCES is %d here, and more for the server that made them", instances, o.Settings.MaxInstances)
			}
			if own > 0 {
				c.Summary += fmt.Sprintf(", and %d VMs of SandboxForge's own (pool, templates)", own)
			}
			for _, in := range list.Instances {
				live[in.BackendInstanceName] = true
				if in.ReconciliationDrift != nil && *in.ReconciliationDrift != "" {
					c.Status = Warn
					c.Details = append(c.Details, fmt.Sprintf("%s is %s, but %s", in.InstanceID, in.Status, *in.ReconciliationDrift))
					c.Fix = []string{"sandboxforge gc"}
				}
			}
			r.add(c)
		}
	}
	if o.Host.Processes == nil || !known {
		return
	}
	procs, err := o.Host.Processes(o.Settings.VMDir())
	if err != nil {
		r.add(Check{ID: "leftovers", Status: Info, Summary: "the process table cannot be read: " + err.Error()})
		return
	}
	c := Check{ID: "leftovers", Status: OK, Summary: "no process without a lease"}
	for _, p := range procs {
		if !live[p.VM] {
			c.Status = Warn
			c.Details = append(c.Details, fmt.Sprintf("%s of %s, process %d", p.Kind, p.VM, p.PID))
		}
	}
	if c.Status == Warn {
		c.Summary = fmt.Sprintf("%d processes belong to no lease", len(c.Details))
		c.Fix = []string{"sandboxforge gc"}
	}
	r.add(c)
}
