package standin

import (
	"strings"
	"testing"
)

// TestClosure holds what an image keeps of its packages.
func TestClosure(t *testing.T) {
	all := map[string]*found{
		"usr/bin/server":             {needed: []string{"liba.so.1"}, interp: "lib64/ld.so"},
		"usr/bin/other":              {needed: []string{"libz.so"}},
		"usr/lib/x86/liba.so.1":      {link: "liba.so.1.2"},
		"usr/lib/x86/liba.so.1.2":    {needed: []string{"libb.so"}},
		"usr/lib/x86/libb.so":        {},
		"usr/lib/x86/libz.so":        {},
		"usr/lib64/ld.so":            {link: "/lib/x86/ld-2.so"},
		"usr/lib/x86/ld-2.so":        {},
		"usr/share/server/data":      {},
		"usr/share/server/doc/large": {},
	}
	keep, err := recipe{Keep: []string{"usr/bin/server", "usr/share/server/"}, Drop: []string{"usr/share/server/doc/"}}.closure(all)
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		want := name != "usr/bin/other" && name != "usr/lib/x86/libz.so" && !strings.Contains(name, "doc")
		if keep[name] != want {
			t.Errorf("%s: kept %v", name, keep[name])
		}
	}
	if _, err := (recipe{Keep: []string{"usr/bin/none"}}).closure(all); err == nil {
		t.Error("a file that is in no package was accepted")
	}
	delete(all, "usr/lib/x86/libb.so")
	if _, err := (recipe{Keep: []string{"usr/bin/server"}}).closure(all); err == nil {
		t.Error("a library that is in no package was accepted")
	}
}
