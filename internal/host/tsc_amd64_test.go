package host

import (
	"testing"
	"time"
)

// TestTSCKilohertz: the rate foretells the counter's advance over a longer time.
func TestTSCKilohertz(t *testing.T) {
	khz := TSCKilohertz()
	if khz < 100_000 || khz > 100_000_000 {
		t.Fatalf("%d kHz is no processor's", khz)
	}
	t0, c0 := readBoth()
	time.Sleep(200 * time.Millisecond) // the measured interval
	t1, c1 := readBoth()
	got := float64(c1-c0) / 1000 / t1.Sub(t0).Seconds()
	if ratio := got / float64(khz); ratio < 0.97 || ratio > 1.03 {
		t.Errorf("the counter advanced at %.0f kHz, %d were foretold", got, khz)
	}
}
