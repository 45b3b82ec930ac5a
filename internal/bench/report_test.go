package bench

import "testing"

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
