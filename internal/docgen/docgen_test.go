package main

import (
	"os"
	"path/filepath"
	"testing"
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
