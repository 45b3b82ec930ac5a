package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxforge/internal/backend"
)

func TestPagesAreUpToDate(t *testing.T) {
	for name, want := range pages() {
		got, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("docs/%s differs from the code; run `go run ./internal/docgen`", name)
		}
	}
}

func TestEveryCapabilityIsExplained(t *testing.T) {
	raw, err := json.Marshal(backend.Capabilities{})
	if err != nil {
		t.Fatal(err)
	}
	var names map[string]bool
	if err := json.Unmarshal(raw, &names); err != nil {
		t.Fatal(err)
	}
	for name := range names {
		if !strings.Contains(capabilities, "- `"+name+"`: ") {
			t.Errorf("%s is not explained", name)
		}
	}
	if n := strings.Count(capabilities, "\n- `"); n != len(names) {
		t.Errorf("%d are explained, there are %d", n, len(names))
	}
}
