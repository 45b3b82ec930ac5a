package hyperv

import (
	"strings"
	"testing"

	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/backend/hyperv/standin"
)

// TestScriptsStayInTheirPart of the language: ASCII, nothing that the
// stand-in's parser refuses, cmdlets that it knows, those of Hyper-V under the
// module's name, because other products have a Get-VM too.
func TestScriptsStayInTheirPart(t *testing.T) {
	files, err := scriptFiles.ReadDir("scripts")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"runner": powershell.Runner()}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".ps1")
		whole, err := scriptFiles.ReadFile("scripts/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[f.Name()] = string(whole)
		texts[name] = script(name)
	}
	if len(texts) < 20 {
		t.Fatalf("only %d texts", len(texts))
	}
	for name, text := range texts {
		names, err := standin.Cmdlets(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, n := range names {
			if !standin.Knows(n) {
				t.Errorf("%s: the cmdlet %s is unknown", name, n)
			}
			if bare := strings.TrimPrefix(n, `Hyper-V\`); bare == n && standin.Knows(`Hyper-V\`+n) {
				t.Errorf("%s: %s without its module", name, n)
			}
		}
	}
}
