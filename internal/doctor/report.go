package doctor

import (
	"fmt"
	"io"
	"strings"

	"sandboxforge/internal/cli/ui"
)

// Status is the outcome of one check.
type Status string

// The outcomes. Only Fail keeps VMs from being made.
const (
	OK   Status = "ok"
	Info Status = "info" // worth knowing; nothing to do
	Warn Status = "warn" // works, but not as well as it could
	Fail Status = "fail"
)

// Check is one thing that was looked at.
type Check struct {
	// ID is stable: environment, home, cpu, memory, disk, container, image,
	// image.tools, instances, leftovers, accelerator, backend.NAME, backend.
	ID      string   `json:"id"`
	Status  Status   `json:"status"`
	Summary string   `json:"summary"`
	Details []string `json:"details"`
	// Fix are commands or instructions, the likeliest first.
	Fix []string `json:"fix"`
}

// Report is what Run found.
type Report struct {
	// OK: a VM could be made now.
	OK bool `json:"ok"`
	// Backend is the one that new instances would be made on, "" if none.
	Backend     string  `json:"backend"`
	Accelerator string  `json:"accelerator"`
	Version     string  `json:"version"`
	Platform    string  `json:"platform"`
	Checks      []Check `json:"checks"`
}

// Find returns the check with an id, nil if it was not made.
func (r *Report) Find(id string) *Check {
	for i := range r.Checks {
		if r.Checks[i].ID == id {
			return &r.Checks[i]
		}
	}
	return nil
}

func (r *Report) add(c Check) {
	if c.Details == nil {
		c.Details = []string{}
	}
	if c.Fix == nil {
		c.Fix = []string{}
	}
	r.Checks = append(r.Checks, c)
}

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "SandboxForge %s on %s\n\n", r.Version, r.Platform)
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.ID))
	}
	indent := strings.Repeat(" ", 6+width+2)
	for _, c := range r.Checks {
		mark := string(c.Status)
		if c.Status == Fail {
			mark = "FAIL"
		}
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", mark, width, c.ID, ui.Clean(c.Summary))
		for _, d := range c.Details {
			fmt.Fprintf(&b, "%s- %s\n", indent, ui.Clean(d))
		}
		for _, f := range c.Fix {
			fmt.Fprintf(&b, "%sfix: %s\n", indent, ui.Clean(f))
		}
	}
	if r.OK {
		fmt.Fprintf(&b, "\nA VM can be made: %s", r.Backend)
		if r.Accelerator != "" {
			fmt.Fprintf(&b, " with %s", r.Accelerator)
		}
		b.WriteString(".\n")
	} else {
		b.WriteString("\nNo VM can be made here yet. What to do:\n")
		var steps []string
		for _, c := range r.Checks {
			if c.Status == Fail {
				steps = union(steps, c.Fix)
			}
		}
		for i, f := range joined(steps) {
			fmt.Fprintf(&b, "  %d. %s\n", i+1, ui.Clean(f))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
