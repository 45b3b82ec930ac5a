package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// ownImages is an image directory with templates of its own: the images of all
// tests under another name, and nothing made of them yet.
func ownImages(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(imageDir), "images-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	files, err := filepath.Glob(filepath.Join(imageDir, "*-*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		to := filepath.Join(dir, filepath.Base(filepath.Dir(f)), filepath.Base(f))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Link(f, to)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// templates lists them by the command for it.
func (s *state) templates(t testing.TB) sandbox.ListTemplatesResult {
	t.Helper()
	out, err := s.cli("template", "list", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var l sandbox.ListTemplatesResult
	if err := json.Unmarshal(out, &l); err != nil {
		t.Fatalf("%v: %.300s", err, out)
	}
	return l
}

// identity is what must differ between two guests.
func (sv *server) identity(t testing.TB, instance string) map[string]string {
	t.Helper()
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": instance, "command": "head -c16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo; cat /etc/machine-id; hostname; date +%s"}, &r)
	f := strings.Fields(r.Stdout)
	if len(f) != 4 {
		t.Fatalf("identity: %q %q", r.Stdout, r.Stderr)
	}
	return map[string]string{"random": f[0], "machine-id": f[1], "hostname": f[2], "time": f[3]}
}

func TestCreateIsACloneOfATemplate(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t))
	if out, err := st.cli("image", "warm", "--image", "minimal", "--memory-gib", "0.25", "--disk-gib", "1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sv := st.start(t)
	a, b := sv.create(t, minimal(st.workspace)), sv.create(t, minimal(st.workspace))
	for _, c := range []*sandbox.CreateInstanceResult{a, b} {
		if c.StartKind != "clone" || c.Warnings != nil {
			t.Fatalf("start_kind %s, warnings %v", c.StartKind, c.Warnings)
		}
		t.Logf("timings %v", c.TimingsMS)
		if _, made := c.TimingsMS["template_make"]; made {
			t.Error("it was made again")
		}
	}
	ia, ib := sv.identity(t, a.InstanceID), sv.identity(t, b.InstanceID)
	for _, what := range []string{"random", "machine-id", "hostname"} {
		if ia[what] == ib[what] || ia[what] == "" {
			t.Errorf("two clones have the same %s: %s", what, ia[what])
		}
	}
	// Nothing tells of what was done to make the template, and what one guest
	// does is not seen by another.
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": a.InstanceID, "command": "echo secret >/etc/mine; sync", "user": "root"}, &r)
	c := sv.create(t, minimal(st.workspace))
	sv.must(t, "run_command", obj{"instance_id": c.InstanceID, "command": "ls /etc/mine /tmp/.try /root/.*_history 2>/dev/null; ls /var/lib/sandboxforge/spool | wc -l", "user": "root"}, &r)
	if n := strings.TrimSpace(r.Stdout); n != "1" && n != "2" { // this command's own, and logBoot's
		t.Errorf("in a fresh clone: %q", r.Stdout)
	}

	// What each costs is its own, not what it was promised nor the template.
	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{}, &list)
	for _, i := range list.Instances {
		t.Logf("%s: %d MiB of memory, %d KiB of disk", i.InstanceID, i.MemoryPSSBytes>>20, i.DiskUsedBytes>>10)
		if i.MemoryPSSBytes < 10<<20 || i.MemoryPSSBytes > i.MemoryMiB<<20 || i.DiskUsedBytes == 0 {
			t.Errorf("it costs %d bytes of memory and %d of disk", i.MemoryPSSBytes, i.DiskUsedBytes)
		}
	}
	if list.TemplateCount != 1 || list.TemplateBytes < 1<<20 {
		t.Errorf("%d templates of %d bytes", list.TemplateCount, list.TemplateBytes)
	}

	l := st.templates(t)
	if len(l.Templates) != 1 || l.Templates[0].InUse != 3 || l.Templates[0].Image != "minimal" || l.Templates[0].Bytes == 0 {
		t.Errorf("listed: %+v", l.Templates)
	}
	if _, err := st.cli("template", "rm", l.Templates[0].Key[:12]); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("removing a template with clones: %v", err)
	}
	for _, i := range []string{a.InstanceID, b.InstanceID, c.InstanceID} {
		sv.must(t, "destroy_instance", obj{"instance_id": i}, nil)
	}
	if out, err := st.cli("template", "rm", l.Templates[0].Key[:12]); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if l := st.templates(t); len(l.Templates) != 0 {
		t.Errorf("left: %+v", l.Templates)
	}
}

// Whatever happens to a template between two creates, the second gets a VM that
// works, and says why it was booted if it was.
// TestCloneHasTheDiskThatWasAskedFor: a template's disk is smaller, and its
// kernel learns of the new size while it runs.
func TestCloneHasTheDiskThatWasAskedFor(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	for _, gib := range []int64{2, 3, 7} {
		args := minimal(st.workspace)
		args["overrides"].(obj)["vm"].(obj)["disk_gib"] = gib
		inst := sv.create(t, args)
		if inst.StartKind != "clone" {
			t.Errorf("a %s start: %v", inst.StartKind, inst.Warnings)
		}
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "cat /sys/class/block/vda/size; df -B1 --output=size / | tail -n 1"}, &r)
		var sectors, size int64
		if _, err := fmt.Sscan(r.Stdout, &sectors, &size); err != nil {
			t.Fatalf("%v in %q", err, r.Stdout)
		}
		// What is the file system's own is a few percent.
		if sectors*512 != gib<<30 || size < gib<<30*9/10 || size > gib<<30 {
			t.Errorf("%d GiB were asked for, the guest has a disk of %d and room for %d bytes", gib, sectors*512, size)
		}
		sv.must(t, "destroy_instance", obj{"instance_id": inst.InstanceID, "force": true}, nil)
	}
}

func TestDamagedTemplates(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t))
	sv := st.start(t)
	works := func(c *sandbox.CreateInstanceResult) {
		t.Helper()
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", obj{"instance_id": c.InstanceID, "command": "echo works"}, &r)
		if r.Stdout != "works\n" {
			t.Errorf("in the VM: %q", r.Stdout)
		}
		sv.must(t, "destroy_instance", obj{"instance_id": c.InstanceID, "force": true}, nil)
	}
	first := sv.create(t, minimal(st.workspace))
	if first.StartKind != "clone" || first.TimingsMS["template_make"] == 0 {
		t.Fatalf("the first create: %s %v %v", first.StartKind, first.TimingsMS, first.Warnings)
	}
	works(first)
	for _, c := range []struct {
		what string
		harm func(state string) error
	}{
		{"its memory cut short", func(state string) error { return os.Truncate(filepath.Join(state, "memory"), 1<<20) }},
		{"its devices changed", func(state string) error {
			return os.WriteFile(filepath.Join(state, "devices"), []byte("no such thing"), 0o600)
		}},
		{"its record gone", func(state string) error { return os.Remove(filepath.Join(filepath.Dir(state), "template.json")) }},
		{"its directory gone", func(state string) error { return os.RemoveAll(filepath.Dir(state)) }},
	} {
		l := st.templates(t)
		if len(l.Templates) != 1 {
			t.Fatalf("%s: there are %+v", c.what, l.Templates)
		}
		old := l.Templates[0].State
		if err := c.harm(old); err != nil {
			t.Fatal(err)
		}
		res := sv.create(t, minimal(st.workspace))
		t.Logf("%s: %s, %v, %v", c.what, res.StartKind, res.TimingsMS, res.Warnings)
		if res.StartKind != "clone" || res.TimingsMS["template_make"] == 0 {
			t.Errorf("%s: %s %v %v", c.what, res.StartKind, res.TimingsMS, res.Warnings)
		}
		works(res)
		if l := st.templates(t); len(l.Templates) != 1 || l.Templates[0].State == old {
			t.Errorf("%s: afterwards there are %+v", c.what, l.Templates)
		}
	}
}

// A template that its files do not show to be damaged is found out by the first
// clone that does not come up: that create boots, and says why.
func TestACloneThatDoesNotComeUpBoots(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t))
	sv := st.start(t)
	sv.create(t, minimal(st.workspace))
	l := st.templates(t)
	if len(l.Templates) != 1 {
		t.Fatalf("%+v", l.Templates)
	}
	devices := filepath.Join(l.Templates[0].State, "devices")
	was, err := os.Stat(devices)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(devices, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(make([]byte, was.Size()), 0)
		err = errors.Join(err, f.Close(), os.Chtimes(devices, was.ModTime(), was.ModTime()))
	}
	if err != nil {
		t.Fatal(err)
	}
	cold := sv.create(t, minimal(st.workspace))
	t.Logf("%s %v %v", cold.StartKind, cold.TimingsMS, cold.Warnings)
	if cold.StartKind != "cold" || len(cold.Warnings) != 1 || !strings.Contains(cold.Warnings[0], "did not come up") {
		t.Errorf("%s %v", cold.StartKind, cold.Warnings)
	}
	again := sv.create(t, minimal(st.workspace))
	if again.StartKind != "clone" || again.TimingsMS["template_make"] == 0 {
		t.Errorf("the next: %s %v %v", again.StartKind, again.TimingsMS, again.Warnings)
	}
	// The first clone still needs the files of the old one.
	if l := st.templates(t); len(l.Templates) != 2 || l.Templates[0].Retired == l.Templates[1].Retired {
		t.Errorf("%+v", l.Templates)
	}
}

func TestTemplatesCanBeSwitchedOff(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t), "SANDBOX_TEMPLATES=off")
	sv := st.start(t)
	if r := sv.create(t, minimal(st.workspace)); r.StartKind != "cold" || r.Warnings != nil {
		t.Errorf("%s %v", r.StartKind, r.Warnings)
	}
	if l := st.templates(t); len(l.Templates) != 0 {
		t.Errorf("%+v", l.Templates)
	}
}

// A maker that is killed leaves nothing: the next create makes the template,
// and the VM it was made of is gone.
func TestKilledTemplateMaker(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t))
	a := st.start(t)
	ctx, cancel := contextFor(5 * time.Minute)
	defer cancel()
	lost := make(chan error, 1)
	go func() { lost <- a.call(ctx, "create_instance", minimal(st.workspace), nil) }()
	for _, stage := range []string{"coming up", "coming to rest"} {
		a.awaitProgress(t, map[string]string{"coming up": "waiting for the guest agent", "coming to rest": "come to rest"}[stage])
		vm := st.templateVM(t)
		a.kill(t)
		<-lost
		b := st.start(t)
		if stage == "coming up" {
			go func() { lost <- b.call(ctx, "create_instance", minimal(st.workspace), nil) }()
			a = b
			continue
		}
		if r := b.create(t, minimal(st.workspace)); r.StartKind != "clone" || r.Warnings != nil {
			t.Errorf("%s %v", r.StartKind, r.Warnings)
		}
		if pid := st.qemuPID(vm); pid != 0 {
			t.Errorf("the dead maker's VM %s still runs as %d", vm, pid)
		}
	}
	if l := st.templates(t); len(l.Templates) != 1 || l.Templates[0].Retired {
		t.Errorf("%+v", l.Templates)
	}
}

// templateVM is the VM that is being made into a template.
func (s *state) templateVM(t testing.TB) string {
	t.Helper()
	for _, i := range s.ps(t) {
		if i.Kind == "template" {
			return i.InstanceID
		}
	}
	t.Fatal("no VM is being made into a template")
	return ""
}

func (s *state) ps(t testing.TB) []sandbox.Instance {
	t.Helper()
	out, err := s.cli("ps", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var list sandbox.ListInstancesResult
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%v: %.300s", err, out)
	}
	return list.Instances
}

// awaitProgress returns when a call of the server has reported something.
func (sv *server) awaitProgress(t testing.TB, text string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		sv.mu.Lock()
		told := strings.Join(sv.progress, "\n")
		sv.mu.Unlock()
		if strings.Contains(told, text) {
			return
		}
	}
	t.Fatalf("nothing was reported of %q", text)
}

// ready waits until n VMs of the pool are ready.
func (s *state) ready(t testing.TB, n int) (pool []sandbox.Instance) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		pool = nil
		for _, i := range s.ps(t) {
			if i.Kind == "pool" && i.Status == "running" {
				pool = append(pool, i)
			}
		}
		if len(pool) == n {
			return pool
		}
	}
	t.Fatalf("%d VMs are ready, want %d", len(pool), n)
	return nil
}

func TestWarmPool(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t), "MAX_INSTANCES=3")
	if out, err := st.cli("image", "warm", "--image", "minimal", "--memory-gib", "0.25", "--disk-gib", "1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a := st.start(t, "SANDBOX_WARM_POOL=2")
	b := st.start(t) // claims what the other made, and makes none
	first := a.create(t, minimal(st.workspace))
	if first.StartKind != "clone" {
		t.Fatalf("the first: %s %v", first.StartKind, first.Warnings)
	}
	pool := st.ready(t, 2)

	// Its VMs are nobody's instances.
	var list sandbox.ListInstancesResult
	a.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 1 || list.Instances[0].InstanceID != first.InstanceID {
		t.Errorf("listed: %+v", list.Instances)
	}
	a.must(t, "list_instances", obj{"include_internal": true}, &list)
	if len(list.Instances) != 3 {
		t.Errorf("with the pool: %+v", list.Instances)
	}
	a.fails(t, fault.InstanceNotFound, "run_command", obj{"instance_id": pool[0].InstanceID, "command": "true"})

	// Two servers want one each at the same time.
	var wg sync.WaitGroup
	var got [2]sandbox.CreateInstanceResult
	for i, sv := range []*server{a, b} {
		wg.Go(func() {
			ctx, cancel := contextFor(2 * time.Minute)
			defer cancel()
			if err := sv.call(ctx, "create_instance", minimal(st.workspace), &got[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ids := map[string]bool{pool[0].InstanceID: true, pool[1].InstanceID: true}
	for i, sv := range []*server{a, b} {
		if got[i].StartKind != "warm" || !ids[got[i].InstanceID] {
			t.Fatalf("create %d: %+v", i, got[i])
		}
		delete(ids, got[i].InstanceID)
		t.Logf("timings %v", got[i].TimingsMS)
		if id := sv.identity(t, got[i].InstanceID); id["hostname"] != vmName(got[i].InstanceID) {
			t.Errorf("identity %v", id)
		}
		// Its end is the lease's, no longer the pool's.
		at, err := time.Parse(time.RFC3339Nano, got[i].ExpiresAt)
		if err != nil {
			t.Fatal(err)
		}
		if d := supervisorDeadline(t, st, got[i].InstanceID); d.Sub(at).Abs() > time.Second {
			t.Errorf("the lease expires %v, its VM %v", at, d)
		}
	}
	// The cap of instances is kept although VMs are ready.
	st.ready(t, 2)
	a.fails(t, fault.InstanceLimitExceeded, "create_instance", minimal(st.workspace))
	b.must(t, "destroy_instance", obj{"instance_id": first.InstanceID}, nil)

	// One that has died unnoticed is not handed out.
	for _, i := range st.ready(t, 2) {
		kill(t, st.qemuPID(i.InstanceID))
	}
	alive := b.create(t, minimal(st.workspace))
	t.Logf("after the ready ones were killed: %s %v", alive.StartKind, alive.TimingsMS)
	b.identity(t, alive.InstanceID)

	// What was made of a template that is no longer in force is retired.
	b.must(t, "destroy_instance", obj{"instance_id": alive.InstanceID}, nil)
	for _, l := range st.templates(t).Templates {
		if err := os.Remove(filepath.Join(filepath.Dir(l.State), "template.json")); err != nil {
			t.Fatal(err)
		}
	}
	st.ready(t, 0)
}

// TestDamageUnderAReadyVM: whatever happens to a template while a VM of the pool
// waits in it, the next create gets one that works, and the one that waited is
// not handed out.
func TestDamageUnderAReadyVM(t *testing.T) {
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t), "SANDBOX_WARM_POOL=1")
	sv := st.start(t)
	first := sv.create(t, minimal(st.workspace))
	destroyAll(t, sv, first.InstanceID)
	for _, c := range []struct {
		what string
		harm func(state string) error
	}{
		{"a byte of its memory changed", func(state string) error {
			f, err := os.OpenFile(filepath.Join(state, "memory"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			b := make([]byte, 1)
			_, err = f.ReadAt(b, 100<<20)
			b[0] ^= 0x40
			if err == nil {
				_, err = f.WriteAt(b, 100<<20)
			}
			return errors.Join(err, f.Close())
		}},
		{"its memory cut short", func(state string) error { return os.Truncate(filepath.Join(state, "memory"), 1<<20) }},
		{"its disk gone", func(state string) error { return os.Remove(filepath.Join(state, "disk.qcow2")) }},
	} {
		waits := st.ready(t, 1)[0].InstanceID
		state := ""
		for _, l := range st.templates(t).Templates {
			if !l.Retired {
				state = l.State
			}
		}
		if state == "" {
			t.Fatalf("%s: no template is in force", c.what)
		}
		if err := c.harm(state); err != nil {
			t.Fatal(err)
		}
		res := sv.create(t, minimal(st.workspace))
		t.Logf("%s: %s %v %v", c.what, res.StartKind, res.TimingsMS, res.Warnings)
		if res.InstanceID == waits {
			t.Errorf("%s: the VM that waited was handed out", c.what)
		}
		if out := sv.sh(t, res.InstanceID, "echo works"); out != "works" {
			t.Errorf("%s: in the VM: %q", c.what, out)
		}
		destroyAll(t, sv, res.InstanceID)
		await(t, time.Minute, func() bool { return st.qemuPID(waits) == 0 && st.supervisorPID(waits) == 0 })
	}
}
