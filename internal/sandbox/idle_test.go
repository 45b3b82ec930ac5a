package sandbox

import "testing"

func TestParseStat(t *testing.T) {
	got, err := parseStat("cpu  10 1 20 400 5 2 3 4 0 0\ncpu0 1 2\n")
	if err != nil || got != (cpuTimes{busy: 45, all: 445}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu", "cpu  1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu  a b c d e f g h"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}
