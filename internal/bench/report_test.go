package bench

import (
	"strings"
	"testing"

	"sandboxforge/internal/cli/ui"
)

// TestPartsStayBelowTheirFigure: a table shows what is a part of what.
func TestPartsStayBelowTheirFigure(t *testing.T) {
	table := ui.NewTable("FIGURE", "P50", "P95", "MIN", "MAX", "UNIT", "N")
	for _, f := range []Figure{figure("clone", "ms", "", []float64{7}), figure("  of which boot", "ms", "", []float64{5})} {
		table.Row(f.Row()...)
	}
	var b strings.Builder
	if _, err := table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\nclone ") || !strings.Contains(b.String(), "\n– of which boot ") {
		t.Errorf("got\n%s", &b)
	}
}

func TestFigureRanks(t *testing.T) {
	var s []float64
	for i := 100; i >= 1; i-- {
		s = append(s, float64(i))
	}
	f := figure("x", "ms", "", s)
	if f.P50 != 50 || f.P95 != 95 || f.Min != 1 || f.Max != 100 || f.N != 100 {
		t.Errorf("%+v", f)
	}
	if f := figure("one", "ms", "", []float64{7}); f.P50 != 7 || f.P95 != 7 || f.Min != 7 {
		t.Errorf("%+v", f)
	}
	if f := figure("none", "ms", "", nil); f.P50 != 0 || f.N != 0 {
		t.Errorf("%+v", f)
	}
}
