package qemu

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConsoleSigns(t *testing.T) {
	for _, s := range append(append([][]byte{}, bootTrouble...), bootStalls...) {
		if len(s) > longestSign {
			t.Errorf("%q is longer than %d", s, longestSign)
		}
	}
	for text, want := range map[string]string{
		"all is well\n": "",
		"[    1.2] Kernel panic - not syncing: Attempted to kill init!\n": "[    1.2] Kernel panic - not syncing: Attempted to kill init!",
		"[    0.9] int3: 0000 [#1] PREEMPT SMP\n":                         "[    0.9] int3: 0000 [#1] PREEMPT SMP",
		"sandboxforge-init: warning: no network\n":                        "",
		"sandboxforge-init: fatal: no root device":                        "sandboxforge-init: fatal: no root device", // without a line's end
		"rcu: INFO: rcu_sched detected stalls on CPUs/tasks:\n":           "",
		"x self-detected stall on CPU\ny self-detected stall on CPU\n":    "y self-detected stall on CPU",
		"Kernel panic - \nnot syncing":                                    "",
	} {
		c := newConsole("")
		for i := range len(text) { // byte by byte, as a serial line does
			c.take([]byte{text[i]})
		}
		got := c.sign()
		if !strings.HasPrefix(want, got) || (got == "") != (want == "") {
			t.Errorf("%q: sign %q, want the beginning of %q", text, got, want)
		}
		select {
		case <-c.failed:
			if want == "" {
				t.Errorf("%q: failed", text)
			}
		default:
			if want != "" {
				t.Errorf("%q: not failed", text)
			}
		}
	}
}

func TestConsoleLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), consoleFile)
	c := newConsole(path)
	chunk := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
	var total int64
	for total < 5*consoleLogMax {
		c.take(chunk)
		total += int64(len(chunk))
	}
	c.readFrom(strings.NewReader("the end"))
	var kept int64
	for _, p := range []string{path, path + ".old"} {
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		kept += st.Size()
	}
	if most := int64(2*consoleLogMax + 2*len(chunk)); kept > most || kept < consoleLogMax {
		t.Errorf("%d bytes were kept of %d, want between %d and %d", kept, total, consoleLogMax, most)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.HasSuffix(b, []byte("the end")) {
		t.Errorf("the newest output is not in the file: %v", err)
	}
}

func TestQEMULogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), logFile)
	l, err := newBoundedLog(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		l.Write(bytes.Repeat([]byte("warning: x\n"), 100))
	}
	l.Write([]byte("last words\n"))
	l.Close()
	l.Write([]byte("too late\n"))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > qemuLogMax+100 || !bytes.Contains(b, []byte("dropped")) {
		t.Errorf("%d bytes, ends with %q", len(b), b[len(b)-40:])
	}
	if !strings.Contains(l.text(), "last words") {
		t.Errorf("the end is lost: %q", l.text())
	}
}
