package qemu

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]facts{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright": {Version: "7.2.22", Major: 7, Minor: 2},
		"QEMU emulator version 10.0.2 (qemu-10.0.2-1.fc43)":                         {Version: "10.0.2", Major: 10},
		"QEMU emulator version 8.2":                                                 {Version: "8.2", Major: 8, Minor: 2},
		"QEMU emulator version 99999999999999999999.1":                              {},
		"": {}, "\x00\xff": {},
	} {
		got, err := parseVersion([]byte(out))
		if !reflect.DeepEqual(got, want) || (err == nil) != (want.Version != "") {
			t.Errorf("%q: %+v, %v", out, got, err)
		}
	}
	for v, old := range map[[2]int]bool{{7, 1}: true, {6, 9}: true, {7, 2}: false, {7, 10}: false, {10, 0}: false} {
		if got := (facts{Major: v[0], Minor: v[1]}).tooOld(); got != old {
			t.Errorf("%v: too old %v", v, got)
		}
	}
}

func TestMachinePattern(t *testing.T) {
	help := "Supported machines are:\nmicrovm              microvm (i386)\npc                   Standard PC (i440FX + PIIX, 1996) (alias of pc-i440fx-7.2)\n" +
		"q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\npc-q35-7.2           Standard PC (Q35 + ICH9, 2009)\n"
	if m := machinePattern["amd64"].FindStringSubmatch(help); m == nil || m[1] != "pc-q35-7.2" {
		t.Errorf("%q", m)
	}
	if m := machinePattern["arm64"].FindStringSubmatch("virt-7.2             QEMU 7.2 ARM Virtual Machine\nvirt                 QEMU 7.2 ARM Virtual Machine (alias of virt-7.2)\n"); m == nil || m[1] != "virt-7.2" {
		t.Errorf("%q", m)
	}
}

// Whatever the tools print, it gives a size and a format or an error, and text
// for people stays text.
func FuzzToolOutput(f *testing.F) {
	for _, s := range []string{
		`{"virtual-size": 1073741824, "filename": "d", "cluster-size": 65536, "format": "qcow2", "actual-size": 200704, "backing-filename": "/r", "dirty-flag": false}`,
		`{"virtual-size": -1, "format": "raw"}`, `{"virtual-size": 1e400, "format": "raw"}`, `[]`, `null`, ``, `{`,
		"QEMU emulator version 7.2.22 (Debian)", "q35   x (alias of pc-q35-7.2)", "\x1b[31mred\x07\xff\u009b\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if i, err := parseDiskInfo(b); err == nil && (i.VirtualSize <= 0 || i.Format == "") {
			t.Errorf("%+v", i)
		}
		if v, err := parseVersion(b); err == nil && (v.Major > 9999 || v.Version == "") {
			t.Errorf("%+v", v)
		}
		for _, s := range []string{firstLine(b), lastLines(b, 100), printable(b, 50)} {
			if !utf8.ValidString(s) || strings.ContainsAny(s, "\x00\x1b\x07\x7f\r") || len(s) > 400 {
				t.Errorf("not printable: %q", s)
			}
		}
	})
}

// A guest may write anything to its console: nothing grows without bound, and
// a sign is found however the bytes are cut.
func FuzzConsole(f *testing.F) {
	f.Add([]byte("[    0.000000] Linux version 6.12\n[ 1.0] Kernel panic - not syncing: VFS\n"), 3)
	f.Add([]byte(strings.Repeat("x", 5000)+"\nint3: 0000"), 1000)
	f.Add([]byte("watchdog: BUG: soft lockup\nrcu: INFO: rcu_sched detected stalls on CPUs/tasks\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		cut = max(cut, 1)
		whole, parts := newConsole(""), newConsole("")
		whole.take(b)
		for p := b; len(p) > 0; {
			n := min(cut, len(p))
			parts.take(p[:n])
			p = p[n:]
		}
		if (whole.sign() == "") != (parts.sign() == "") {
			t.Errorf("whole %q, in parts %q", whole.sign(), parts.sign())
		}
		if bytes.Contains(b, []byte(panicText)) && len(b) < consoleLine && whole.sign() == "" {
			t.Error("the panic was not seen")
		}
		if got := parts.newest(100); !bytes.HasSuffix(b, got) || len(got) != min(100, len(b)) {
			t.Errorf("newest %q", got)
		}
		if len(parts.tail) > 2*consoleMemory || len(parts.line) > consoleLine {
			t.Error("it grows")
		}
	})
}
