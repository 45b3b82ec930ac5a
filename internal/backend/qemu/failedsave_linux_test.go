package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/qmp"
)

// scripted is as much of QEMU as a save talks to. It keeps block nodes as QEMU
// does and refuses what it is told to.
type scripted struct {
	mu     sync.Mutex
	refuse string            // a command
	paused bool              //
	nodes  map[string]string // file names, by name
	top    string            // the node that the guest writes to

	under   map[string]string // the node below, by name
	backing map[string]string // what it is called, by name
	lose    string            // a command that is done and not answered
	ignore  string            // a command that is neither
	cut     string            // a command that is done, and the connection ends
	still   int               // how often the run state is that of a migration that has ended
	job     string            // status of the flattening job
	began   func()            // called when a job has begun, which then never ends
	noJobs  int               // how often QEMU refuses to list its jobs
	dead    bool              // it was asked for nodes while a job had ended

	memory   int64          // of the guest, in bytes
	transfer string         // state of a migration
	to       net.Conn       // where the memory goes
	sending  sync.WaitGroup // the pages that are sent while the guest runs
	torn     bool           // the memory is to end in the middle
	sent     func() bool    // called when that is done; false: QEMU goes on with it for ever
}

// lowestNode is of the saved disk that lies on the image.
const lowestNode = "#block1"

func (q *scripted) depth(node string) int {
	switch below := q.under[node]; {
	case node == lowestNode:
		return 1
	case below == "":
		return 0
	default:
		return q.depth(below) + 1
	}
}

// migrate sends the guest's memory, pages of zeros but for the first.
func (q *scripted) migrate(uri string) string {
	path, ok := strings.CutPrefix(uri, "unix:")
	if !ok {
		return "no such way to migrate"
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		return err.Error()
	}
	q.to, q.transfer = c, "active"
	q.sending.Go(func() {
		var s streamOf
		s.header().begin(uint64(q.memory))
		pages := []any{uint64(ramPage), "ram", page('a')}
		for at := int64(ramPageSize); at < q.memory; at += ramPageSize {
			pages = append(pages, uint64(at|ramZero|ramSame), byte(0))
		}
		s.section(sectionPart, pages...)
		_, err := c.Write(s.Bytes())
		if q.sent != nil && !q.sent() {
			return
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		switch {
		case q.to != c || q.transfer != "active": // cancelled
		case err != nil:
			q.transfer = "failed"
		default:
			q.transfer, q.paused = "pre-switchover", true
		}
	})
	return ""
}

// complete sends what is left when the guest stands still.
func (q *scripted) complete() {
	var s streamOf
	s.section(sectionEnd, uint64(ramPageSize|ramPage|ramSame), page('b')).put([]byte("devices"))
	b := s.Bytes()
	if q.torn {
		b = b[:len(b)/2]
	}
	q.transfer = "completed"
	if _, err := q.to.Write(b); err != nil {
		q.transfer = "failed"
	}
	q.to.Close()
}

func (q *scripted) answer(command string, args json.RawMessage) (any, string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch command {
	case q.refuse:
		return nil, "told to refuse"
	case q.ignore:
		return struct{}{}, ""
	}
	var a struct {
		Node     string `json:"node-name"`
		Base     string `json:"node"`
		Overlay  string `json:"overlay"`
		Filename string `json:"filename"`
		URI      string `json:"uri"`
		BaseNode string `json:"base-node"`
		Backing  string `json:"backing-file"`
		File     struct {
			Filename string `json:"filename"`
		} `json:"file"`
	}
	if len(args) > 0 && json.Unmarshal(args, &a) != nil {
		return nil, "malformed"
	}
	switch command {
	case "stop":
		q.paused = true
	case "query-status":
		if q.still > 0 {
			q.still--
			return map[string]any{"status": "finish-migrate"}, ""
		}
	case "cont":
		if q.still > 0 {
			return nil, "Migration is not finalized yet"
		}
		q.paused = false
	case "query-named-block-nodes":
		q.dead = q.dead || q.job == "concluded"
		nodes := []any{map[string]any{"node-name": lowestNode, "drv": "qcow2", "backing_file_depth": 1}}
		for name := range q.nodes {
			nodes = append(nodes, map[string]any{
				"node-name": name, "drv": "qcow2", "backing_file_depth": q.depth(name),
				"image": map[string]any{"virtual-size": 1 << 30, "backing-filename": q.backing[name]},
			})
		}
		return nodes, ""
	case "block-stream":
		if q.job != "" {
			return nil, "job ID in use"
		}
		if q.began != nil {
			q.job = "running"
			q.began()
			break
		}
		q.job, q.under[q.top], q.backing[q.top] = "concluded", a.BaseNode, a.Backing
	case "query-jobs":
		if q.noJobs > 0 {
			q.noJobs--
			return nil, "told to refuse"
		}
		if q.job == "" {
			return []any{}, ""
		}
		return []any{map[string]any{"id": flattenJob, "status": q.job}}, ""
	case "job-dismiss":
		q.job = ""
	case "blockdev-add":
		if q.nodes[a.Node] != "" {
			return nil, "duplicate node name"
		}
		q.nodes[a.Node] = a.File.Filename
	case "migrate":
		if refused := q.migrate(a.URI); refused != "" {
			return nil, refused
		}
	case "query-migrate":
		if q.transfer == "" {
			return struct{}{}, ""
		}
		return map[string]any{"status": q.transfer}, ""
	case "migrate-continue":
		if q.transfer != "pre-switchover" {
			return nil, "nothing waits"
		}
		q.complete()
	case "migrate_cancel":
		if q.transfer == "active" || q.transfer == "pre-switchover" {
			q.transfer, q.paused = "cancelled", false
			q.to.Close()
		}
	case "blockdev-del":
		delete(q.nodes, a.Node)
	case "blockdev-snapshot":
		if a.Base != q.top || q.nodes[a.Overlay] == "" {
			return nil, "no such node, or not the one that is written to"
		}
		q.under[a.Overlay], q.top = a.Base, a.Overlay
	case "xen-save-devices-state":
		if err := os.WriteFile(a.Filename, []byte("devices"), 0o600); err != nil {
			return nil, err.Error()
		}
	}
	return struct{}{}, ""
}

// serve is QEMU's end of the control channel.
func (q *scripted) serve(c net.Conn) {
	fmt.Fprintln(c, `{"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}}, "capabilities": []}}`)
	for in := bufio.NewScanner(c); in.Scan(); {
		var m struct {
			Execute   string          `json:"execute"`
			Arguments json.RawMessage `json:"arguments"`
			ID        json.RawMessage `json:"id"`
		}
		if json.Unmarshal(in.Bytes(), &m) != nil {
			continue
		}
		result, refused := q.answer(m.Execute, m.Arguments)
		switch m.Execute {
		case q.lose, q.ignore:
			continue
		case q.cut:
			c.Close()
			return
		}
		out := map[string]any{"id": m.ID, "return": result}
		if refused != "" {
			out = map[string]any{"id": m.ID, "error": map[string]any{"class": "GenericError", "desc": refused}}
		}
		line, _ := json.Marshal(out) // of maps and strings
		fmt.Fprintf(c, "%s\n", line)
	}
}

// writes is the file that the guest writes to.
func (q *scripted) writes() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nodes[q.top]
}

// scriptedVM is a VM whose QEMU is a script, over a saved state whose disk its
// own lies on, and whose memory is a mapping of this process.
func scriptedVM(t *testing.T, b *Backend, from string) (*vm, *scripted) {
	t.Helper()
	s := spec("vm-1")
	s.From = from
	if err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	record, err := readVM(b.dir("vm-1"), "vm-1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "memory")
	size := int(s.MemoryMiB) << 20
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(int64(size))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	mem[size/2] = 1

	q := &scripted{
		nodes: map[string]string{rootNode: record.disk(b.dir("vm-1"))}, top: rootNode, memory: int64(size),
		under: map[string]string{rootNode: lowestNode}, backing: map[string]string{},
	}
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { q.serve(theirs) })
	control, err := qmp.Connect(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close(); theirs.Close(); wg.Wait(); q.sending.Wait() })
	bin, err := b.binary(record.Image.Arch)
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{
		b: b, name: "vm-1", control: control, done: make(chan struct{}), halted: make(chan time.Time, 1), node: rootNode, record: record,
		run: &running{process: &process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}},
		bin: bin, memory: path, accel: accelerator{name: "tcg"},
	}
	return v, q
}

// TestFailedSaves: whatever QEMU refuses in a save, the guest goes on, the next
// save is of the disk that the guest writes to, and no disk below it can be
// removed while something needs it.
func TestFailedSaves(t *testing.T) {
	read := []string{"query-named-block-nodes", "blockdev-add", "stop", "blockdev-snapshot", "xen-save-devices-state", "cont"}
	sent := []string{
		"query-named-block-nodes", "blockdev-add", "blockdev-snapshot", "xen-save-devices-state", "cont",
		"migrate-set-capabilities", "migrate-set-parameters", "migrate", "query-migrate", "migrate-continue", tornStream,
	}
	for _, refuse := range read {
		t.Run("read/"+refuse, func(t *testing.T) { failedSave(t, refuse, false, "tcg") })
	}
	for _, refuse := range append(sent, "stop") {
		t.Run("sent/"+refuse, func(t *testing.T) { failedSave(t, refuse, true, "tcg") })
	}
	for _, refuse := range sent {
		t.Run("sent running/"+refuse, func(t *testing.T) { failedSave(t, refuse, true, "kvm") })
	}
}

// tornStream is not refused, but ends in the middle of the memory.
const tornStream = "torn"

func failedSave(t *testing.T, refuse string, blind bool, accel string) {
	b, _ := newBackend(t)
	tmp := t.TempDir()
	base, failed, good := filepath.Join(tmp, "base"), filepath.Join(tmp, "failed"), filepath.Join(tmp, "good")
	madeState(t, b, base, func(r *stateRecord) { r.Saved.DiskSize = 1 << 30 })
	v, q := scriptedVM(t, b, base)
	v.accel.name = accel
	b.blind, q.refuse, q.torn = blind, refuse, refuse == tornStream
	if _, err := v.Save(t.Context(), failed, backend.SaveOptions{}); err == nil {
		t.Fatal("the save did not fail")
	}
	if _, err := b.CheckState(t.Context(), failed); !errors.Is(err, backend.ErrStateUnfit) {
		t.Errorf("a failed save is a state: %v", err)
	}
	if q.paused && refuse != "cont" {
		t.Error("the guest stands still")
	}
	if q.writes() == "" || len(q.nodes) > 2 {
		t.Errorf("QEMU has the disks %v", q.nodes)
	}
	if _, err := os.Stat(q.writes()); err != nil {
		t.Errorf("the guest's disk: %v", err)
	}

	q.refuse, q.torn = "", false
	disk, err := os.Stat(q.writes())
	if err != nil {
		t.Fatal(err)
	}
	st, err := v.Save(t.Context(), good, backend.SaveOptions{})
	if err != nil {
		t.Fatalf("the save after it: %v", err)
	}
	saved, err := os.Stat(filepath.Join(good, stateDisk))
	if err != nil || !os.SameFile(disk, saved) {
		t.Errorf("the saved disk is not the one that the guest wrote to: %v", err)
	}
	if q.paused {
		t.Error("the guest stands still")
	}

	// The VM ends, and everything is asked to go, the lowest first.
	if err := b.Delete(t.Context(), "vm-1"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{base, failed} {
		if err := b.RemoveState(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	for dir := st.Parent; dir != ""; {
		if _, err := os.Stat(filepath.Join(dir, stateDisk)); err != nil {
			t.Errorf("a disk below the saved one is gone: %v", err)
		}
		r, err := readState(dir)
		if err != nil {
			r = new(stateRecord)
			if err := readJSON(filepath.Join(dir, removedFile), r); err != nil {
				t.Fatal(err)
			}
		}
		dir = r.Saved.Parent
	}
	if err := b.RemoveState(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{good, failed, base} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// TestUnrecordedSave: the guest has its new disk, and vm.json could not say so.
func TestUnrecordedSave(t *testing.T) {
	b, _ := newBackend(t)
	tmp := t.TempDir()
	base := filepath.Join(tmp, "base")
	madeState(t, b, base, func(r *stateRecord) { r.Saved.DiskSize = 1 << 30 })
	v, q := scriptedVM(t, b, base)
	before, err := os.ReadFile(filepath.Join(b.dir("vm-1"), vmFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Save(t.Context(), filepath.Join(tmp, "one"), backend.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir("vm-1"), vmFile), before, 0o600); err != nil {
		t.Fatal(err)
	}
	disk, err := os.Stat(q.writes())
	if err != nil {
		t.Fatal(err)
	}
	st, err := v.Save(t.Context(), filepath.Join(tmp, "two"), backend.SaveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	saved, err := os.Stat(filepath.Join(tmp, "two", stateDisk))
	if err != nil || !os.SameFile(disk, saved) || st.Parent != filepath.Join(tmp, "one") {
		t.Errorf("saved %+v, %v", st, err)
	}
}

// TestRemovalWaitsForTheSave: a state that is being written is not pulled away.
func TestRemovalWaitsForTheSave(t *testing.T) {
	dir := t.TempDir()
	b, _ := newBackend(t)
	lock, err := lockState(t.Context(), dir, true) // as Save has it
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.RemoveState(short, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a removal beside a save: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	lock.Close()
	if err := b.RemoveState(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestUsersThatCannotBeTold: a list of users that cannot be read is not one
// without users.
func TestUsersThatCannotBeTold(t *testing.T) {
	b, _ := newBackend(t)
	dir := filepath.Join(t.TempDir(), "state")
	madeState(t, b, dir, func(*stateRecord) {})
	if err := os.WriteFile(filepath.Join(dir, stateUsers), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveState(t.Context(), dir); err == nil {
		t.Error("the state was removed")
	}
	if _, err := b.CheckState(t.Context(), dir); err != nil {
		t.Errorf("the state is not whole any more: %v", err)
	}
}

// TestEachStartBeginsInTheState: a clone that is started again has the disk of
// its state again, and not what an earlier try wrote.
func TestEachStartBeginsInTheState(t *testing.T) {
	b, _ := newBackend(t)
	dir := filepath.Join(t.TempDir(), "state")
	madeState(t, b, dir, func(r *stateRecord) { r.Saved.DiskSize = 1 << 30 })
	s := spec("vm-1")
	s.From = dir
	if err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	vdir := b.dir("vm-1")
	record, err := readVM(vdir, "vm-1")
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(record.disk(vdir))
	if err != nil {
		t.Fatal(err)
	}
	check := func(same bool) {
		t.Helper()
		if err := b.beginAnew(t.Context(), vdir, record); err != nil {
			t.Fatal(err)
		}
		on, err := readVM(vdir, "vm-1")
		if err != nil {
			t.Fatal(err)
		}
		now, err := os.Stat(on.disk(vdir))
		if err != nil || os.SameFile(first, now) != same {
			t.Errorf("the same disk: %t, want %t (%v)", os.SameFile(first, now), same, err)
		}
		if on.Parent != dir || on.Layers != 1 || on.DiskBytes != 1<<30 {
			t.Errorf("%+v", on)
		}
	}
	check(true)                                                                            // it never ran
	if err := os.Link(record.disk(vdir), filepath.Join(t.TempDir(), "kept")); err != nil { // nobody else gets its inode
		t.Fatal(err)
	}
	if err := os.Rename(record.disk(vdir), filepath.Join(vdir, "disk-1.qcow2")); err != nil {
		t.Fatal(err)
	}
	record.Disk, record.Parent, record.Layers = "disk-1.qcow2", "/elsewhere", 2 // as after a save
	if err := writeJSON(filepath.Join(vdir, runFile), runRecord{PID: 1}, false); err != nil {
		t.Fatal(err)
	}
	check(false)
	if _, err := os.Lstat(filepath.Join(vdir, "disk-1.qcow2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old disk: %v", err)
	}
}
