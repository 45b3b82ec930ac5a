package sandbox

import (
	"fmt"
	"strings"
	"testing"
)

func TestClipLabels(t *testing.T) {
	some := map[string]string{"a": "1", "b": strings.Repeat("x", maxLabelBytes)}
	if got := clipLabels(some); len(got) != 2 || got["b"] != some["b"] {
		t.Errorf("%d labels", len(got))
	}
	many, large := map[string]string{}, map[string]string{strings.Repeat("k", 1<<20): "v"}
	for i := range 10_000 {
		many[fmt.Sprint(i)] = ""
		large[fmt.Sprint(i)] = strings.Repeat("x", 1<<10)
	}
	for _, l := range []map[string]string{many, large, nil} {
		size := 0
		got := clipLabels(l)
		for k, v := range got {
			size += len(k) + len(v)
		}
		if got == nil || len(got) > maxLabels || size > maxLabelsSize {
			t.Errorf("%d labels of %d bytes", len(got), size)
		}
	}
}
