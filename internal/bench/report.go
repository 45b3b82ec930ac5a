package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Figure is one measured thing.
type Figure struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
	How  string  `json:"how"` // the call or command that was timed
	// Samples are what it is made of, in the order of their measurement.
	Samples []float64 `json:"samples"`
}

// Report is one run.
type Report struct {
	At          time.Time `json:"at"`
	Version     string    `json:"version"`
	Host        string    `json:"host"` // kernel, processors, memory
	Load        string    `json:"load"` // load averages at the start
	Backend     string    `json:"backend"`
	Accelerator string    `json:"accelerator"`
	VM          string    `json:"vm"`
	Figures     []Figure  `json:"figures"`
	Took        []Took    `json:"took"`
}

// Took is how long a part of the run took.
type Took struct {
	Part    string  `json:"part"`
	Seconds float64 `json:"seconds"`
}

// figure summarises samples. Percentiles are nearest-rank.
func figure(name, unit, how string, samples []float64) Figure {
	s := slices.Clone(samples)
	slices.Sort(s)
	rank := func(p float64) float64 {
		if len(s) == 0 {
			return 0
		}
		return s[min(len(s)-1, max(0, int(p*float64(len(s))+0.9999)-1))]
	}
	return Figure{Name: name, Unit: unit, N: len(s), P50: rank(0.5), P95: rank(0.95), Min: rank(0), Max: rank(1), How: how, Samples: samples}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Row is the figure as cells of a table.
func (f Figure) Row() []string {
	v := func(x float64) string {
		if x >= 100 {
			return fmt.Sprintf("%.0f", x)
		}
		return fmt.Sprintf("%.2f", x)
	}
	name := f.Name
	if part, ok := strings.CutPrefix(name, "  "); ok {
		name = "– " + part // a table trims its cells
	}
	return []string{name, v(f.P50), v(f.P95), v(f.Min), v(f.Max), f.Unit, fmt.Sprint(f.N)}
}
