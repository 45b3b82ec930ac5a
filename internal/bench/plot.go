package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// Plot writes figures of one unit as an SVG bar chart: the median as a bar, the
// 95th percentile as a line. The axis is logarithmic, since what is compared
// differs by orders of magnitude.
func Plot(w io.Writer, title string, figures []Figure) error {
	const (
		row, top, left, width = 26, 56, 330, 520
		right                 = 130
	)
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, f := range figures {
		if f.P50 > 0 {
			lo, hi = math.Min(lo, f.P50), math.Max(hi, math.Max(f.P50, f.P95))
		}
	}
	if math.IsInf(lo, 1) {
		return fmt.Errorf("nothing to plot in %q", title)
	}
	from := math.Floor(math.Log10(lo)) // whole decades
	to := math.Max(math.Ceil(math.Log10(hi)), from+1)
	x := func(v float64) float64 {
		return left + width*math.Max(0, math.Log10(math.Max(v, 1e-9))-from)/(to-from)
	}
	height := top + row*len(figures) + 30
	var b strings.Builder
	text := func(px, py float64, anchor, style, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>`, px, py, anchor, style)
		xml.EscapeText(&b, []byte(s)) //nolint:errcheck // a strings.Builder never fails
		b.WriteString("</text>\n")
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", left+width+right, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n")
	text(16, 26, "start", `font-size="16" font-weight="bold"`, title)
	for d := from; d <= to; d++ {
		px := x(math.Pow(10, d))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#d0d0d0"/>`+"\n", px, top-8, px, height-26)
		text(px, float64(height-10), "middle", `fill="#555555"`, fmt.Sprintf("%g", math.Pow(10, d)))
	}
	for i, f := range figures {
		y := float64(top + row*i)
		text(left-10, y+14, "end", "", strings.TrimSpace(f.Name))
		fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="%.1f" height="16" fill="#3b6ea5"/>`+"\n", left, y+2, math.Max(1, x(f.P50)-left))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#222222" stroke-width="2"/>`+"\n", x(f.P50), y+10, x(f.P95), y+10)
		text(x(math.Max(f.P95, f.P50))+8, y+15, "start", "", f.Row()[1]+" "+f.Unit)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Plots are the charts of a report, by file name: one of times, one of memory.
func (r *Report) Plots() map[string][]Figure {
	plots := map[string][]Figure{}
	for _, f := range r.Figures {
		switch {
		case strings.Contains(f.Name, "of which"):
		case f.Unit == "ms" && (strings.Contains(f.Name, "sync") || strings.Contains(f.Name, "tar of it")):
			plots["sync.svg"] = append(plots["sync.svg"], f)
		case f.Unit == "ms" && (strings.Contains(f.Name, "ping") || strings.Contains(f.Name, "run_command") || strings.Contains(f.Name, "same start")):
			plots["calls.svg"] = append(plots["calls.svg"], f)
		case f.Unit == "ms":
			plots["starts.svg"] = append(plots["starts.svg"], f)
		default:
			plots["memory.svg"] = append(plots["memory.svg"], f)
		}
	}
	return plots
}
