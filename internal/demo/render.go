package demo

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/host"
)

// argumentText shows a call's arguments on one line.
func argumentText(args any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // && is easier to read than \u0026\u0026
	if enc.Encode(args) != nil {
		return ""
	}
	return ui.Cut(ui.Clean(b.String()), 160)
}

// summary prints the table of timings and what to remember.
func (d *demo) summary(failed error) {
	if len(d.r.Steps) == 0 {
		return
	}
	d.say("")
	t := ui.NewTable("STEP", "TIME", "RESULT")
	for _, s := range d.r.Steps {
		note := s.Note
		if !s.OK {
			note = "failed"
		}
		t.Row(s.Name, ui.Duration(time.Duration(s.DurationMS)*time.Millisecond), ui.Cut(note, 90))
	}
	t.Row("total", ui.Duration(time.Duration(d.r.TotalMS)*time.Millisecond), "")
	t.WriteTo(d.o.Out)
	for _, a := range d.r.Artifacts {
		fmt.Fprintf(d.o.Out, "\nartifact %s\n  sha256 %s\n", a.RemotePath, a.SHA256)
	}
	if d.r.GuestOutput != "" {
		d.say("\nfrom the guest's kernel: %s", ui.Clean(d.r.GuestOutput))
	}
	if d.r.Workspace != "" {
		d.say("kept: %s", d.r.Workspace)
	}
	if failed == nil {
		d.say("\nThe demo ran to its end.")
		d.next()
	}
}

// state says where what stays is, and what it takes.
func (d *demo) state() {
	s := d.o.Settings
	dirs := []string{s.Home}
	if rel, err := filepath.Rel(s.Home, s.ImageDir); err != nil || !filepath.IsLocal(rel) {
		dirs = append(dirs, s.ImageDir)
	}
	for _, dir := range dirs {
		d.say("state: %s, %s on the disk", dir, ui.Bytes(host.TreeAllocated(dir)))
	}
}

// next says what stays and what to do with it.
func (d *demo) next() {
	switch {
	case d.o.EnsureTemplate != nil:
		d.say("The guest image stays, and the template in which VMs of this size begin.")
	case d.o.EnsureImage != nil:
		d.say("The guest image stays.")
	}
	d.state()
	d.say("\nNext: have your MCP client start %s", d.o.Server)
	d.say("(README.md, “Connecting clients”, shows how) and ask it for a VM for a workspace of yours;")
	d.say("see its VMs with %s.", filepath.Join(filepath.Dir(d.o.Server), "sandboxforge ps"))
}
