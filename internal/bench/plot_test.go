package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestPlotIsXML: whatever names and values there are, a browser can read it.
func TestPlotIsXML(t *testing.T) {
	var out strings.Builder
	err := Plot(&out, `a <title> & "more"`, []Figure{
		{Name: "  <b>", Unit: "ms", P50: 0.001, P95: 12}, {Name: "zero", Unit: "ms"}, {Name: "large", Unit: "ms", P50: 1e6, P95: 1e7},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(out.String()))
	bars := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, out.String())
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if bars != 4 { // and the background
		t.Errorf("%d rectangles", bars)
	}
	if err := Plot(io.Discard, "empty", nil); err == nil {
		t.Error("a plot of nothing was made")
	}
}
