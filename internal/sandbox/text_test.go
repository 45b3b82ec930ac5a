package sandbox

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClipKeepsHeadAndTail(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10, 11, 12, 100, 10_000} {
		for _, step := range []int{1, 3, 7, 1000} {
			var all []byte
			for i := 0; len(all) < n; i++ {
				all = fmt.Appendf(all, "%d,", i)
			}
			all = all[:n]
			c := newClip(10)
			for b := all; len(b) > 0; b = b[min(step, len(b)):] {
				c.write(b[:min(step, len(b))])
			}
			s, truncated, ok := c.text()
			if !ok || c.total != int64(n) {
				t.Fatalf("n=%d step=%d: ok %v, total %d", n, step, ok, c.total)
			}
			if n <= 10 {
				if truncated || s != string(all) {
					t.Errorf("n=%d step=%d: %q, want all of %q", n, step, s, all)
				}
				continue
			}
			if !truncated || !strings.HasPrefix(s, string(all[:5])) || !strings.HasSuffix(s, string(all[n-5:])) ||
				!strings.Contains(s, fmt.Sprintf("%d bytes left out", n-10)) {
				t.Errorf("n=%d step=%d: %q of %q", n, step, s, all)
			}
		}
	}
}

func TestClipCountsWhatWasLostBefore(t *testing.T) {
	c := newClip(100)
	c.write([]byte("head"))
	c.lost(1000)
	c.write([]byte("tail"))
	s, truncated, _ := c.text()
	if !truncated || c.total != 1008 || !strings.HasPrefix(s, "head\n[... 1000 bytes") || !strings.HasSuffix(s, "tail") {
		t.Errorf("total %d, %q", c.total, s)
	}
}

func TestClipNeverCutsACharacter(t *testing.T) {
	text := strings.Repeat("äöü€😀", 50)
	for limit := 1; limit < 40; limit++ {
		c := newClip(limit)
		c.write([]byte(text))
		if s, _, ok := c.text(); !ok || !utf8.ValidString(s) {
			t.Errorf("limit %d: %q", limit, s)
		}
	}
}

func TestToUTF8(t *testing.T) {
	for in, want := range map[string]string{"a\xffb": "a\uFFFDb", "nul\x00": "nul\u2400"} {
		if got, ok := toUTF8([]byte(in)); got != want || ok {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
	if _, ok := toUTF8([]byte("fine \u2028")); !ok {
		t.Error("valid text was called damaged")
	}
}

func TestTailLines(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\n", 5, "a\n"}, {"", 3, ""}, {"a\nb", 0, ""}, {"\n\n\n", 1, "\n"},
	} {
		if got := string(tailLines([]byte(c.in), c.n)); got != c.want {
			t.Errorf("tailLines(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestLastLine(t *testing.T) {
	for in, want := range map[string]string{
		"one\ntwo\n":           "two",
		"10%\r20%\r":           "20%",
		"\x1b[31mred\x1b[0m\n": "[31mred[0m",
		"":                     "",
	} {
		if got := lastLine([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := lastLine(bytes.Repeat([]byte("x"), 1000)); len(got) != 200 {
		t.Errorf("a long line came through with %d bytes", len(got))
	}
}
