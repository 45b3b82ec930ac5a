package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/template"
)

func templatesForTest() []sandbox.TemplateInfo {
	now := time.Now()
	return []sandbox.TemplateInfo{
		{Info: template.Info{
			Description: template.Description{Key: "0123456789abcdef0123", Backend: "qemu", Image: "default", CPUs: 2, MemoryMiB: 2048, DiskSize: 15 << 30},
			Created:     now.Add(-time.Hour), LastUsed: now.Add(-time.Minute), Bytes: 700 << 20,
		}, InUse: 3},
		{Info: template.Info{
			Description: template.Description{Key: "fedcba9876543210"}, Created: now.Add(-2 * time.Hour), LastUsed: now.Add(-2 * time.Hour), Bytes: 1 << 20, Retired: true,
		}, InUse: 1},
	}
}

func TestTemplateCommands(t *testing.T) {
	f := &fakeService{templates: templatesForTest()}
	code, out, _ := f.run(t, "template", "list")
	want := `KEY               IMAGE      CPUS  MEMORY   VM DISK   AGE      USED       DISK       IN USE
0123456789abcdef  default    2     2.0 GiB  15.0 GiB  1h00m  1m00s ago  700.0 MiB  3
fedcba9876543210  (retired)  -     -        -         2h00m  -          1.0 MiB    1
`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if code != exitOK || squeeze(out) != squeeze(want) {
		t.Errorf("code %d, got\n%s\nwant\n%s", code, out, want)
	}
	code, out, _ = f.run(t, "template", "list", "--json")
	var list sandbox.ListTemplatesResult
	if err := json.Unmarshal([]byte(out), &list); code != exitOK || err != nil || len(list.Templates) != 2 || list.Templates[0].Image != "default" || list.Templates[0].InUse != 3 {
		t.Errorf("code %d, %v, %s", code, err, out)
	}
	if code, out, _ := f.run(t, "template", "rm", "0123"); code != exitOK || out != "removed template 0123456789abcdef of image default\n" {
		t.Errorf("code %d, %q", code, out)
	}
	if code, _, errs := f.run(t, "template", "rm", "7"); code != exitFailed || !strings.Contains(errs, "no template") {
		t.Errorf("code %d, %q", code, errs)
	}
	if code, out, _ := f.run(t, "image", "warm", "--cpus", "2"); code != exitOK || out != "made template 0123456789abcdef of image default (2 CPUs, 2.0 GiB) in 41.0 s: 700.0 MiB on the disk\n" {
		t.Errorf("code %d, %q", code, out)
	}
	f.templates = nil
	if code, out, errs := f.run(t, "template", "list"); code != exitOK || out != "" || !strings.Contains(errs, "image warm") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
}
