package mcpclient

import "testing"

func TestTail(t *testing.T) {
	tl := &tail{max: 8}
	if got := tl.last(); got != "it said nothing" {
		t.Error(got)
	}
	for range 10 {
		tl.Write([]byte("abc\n"))
	}
	if tl.String() != "abc\nabc\n" || tl.last() != "abc" {
		t.Errorf("%q", tl.String())
	}
}
