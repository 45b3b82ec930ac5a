package ui

import (
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	for name, c := range map[string]struct {
		rows [][]string
		want string
	}{
		"none":    {nil, "ID  WORKSPACE\n"},
		"aligned": {[][]string{{"inst_1", "/a"}, {"i", "/b"}}, "ID      WORKSPACE\ninst_1  /a\ni       /b\n"},
		"runes":   {[][]string{{"ää", "x"}, {"bbb", "y"}}, "ID   WORKSPACE\nää   x\nbbb  y\n"},
		"empty":   {[][]string{{"", ""}}, "ID  WORKSPACE\n-   -\n"},
		"short":   {[][]string{{"a"}}, "ID  WORKSPACE\na   -\n"},
		"hostile": {[][]string{{"a\x1b[2Jb", "line\nbreak\u202etxt"}}, "ID  WORKSPACE\nab  line break txt\n"},
	} {
		table := NewTable("ID", "WORKSPACE")
		for _, row := range c.rows {
			table.Row(row...)
		}
		var b strings.Builder
		if _, err := table.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if b.String() != c.want {
			t.Errorf("%s:\n%q\nwant\n%q", name, b.String(), c.want)
		}
	}
}

func TestDurationAndBytes(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", 1500 * time.Millisecond: "1.5 s",
		61 * time.Second: "1m01s", 3*time.Hour + 4*time.Minute: "3h04m", 50 * time.Hour: "2d02h", -time.Second: "-1.0 s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 s", 999 * time.Millisecond: "0 s", 40 * time.Second: "40 s", 61 * time.Second: "1m01s", 3 * time.Hour: "3h00m", -1500 * time.Millisecond: "-1 s",
	} {
		if got := Age(d); got != want {
			t.Errorf("Age(%v) = %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 30: "3.0 GiB", 1536 << 20: "1.5 GiB", 1 << 62: "4.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestCleanLinesKeepsLinesAndNothingElse(t *testing.T) {
	if got, want := CleanLines("a\r\nb\tc\x1b[31m\x00d\xff"), "a\nb\tcd\uFFFD"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 2, "ä…"}, {"abc", 0, "abc"}, {"abc", 1, "…"}} {
		if got := Cut(c.s, c.n); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
}

type clock struct{ now time.Time }

func (c *clock) add(d time.Duration) { c.now = c.now.Add(d) }

func newTestProgress(tty bool) (*Progress, *strings.Builder, *clock) {
	c := &clock{now: time.Unix(1000, 0)}
	b := &strings.Builder{}
	p := NewProgress(b, ProgressOptions{
		Terminal: &tty, Width: func() int { return 30 }, Now: func() time.Time { return c.now }, Manual: true,
	})
	return p, b, c
}

func TestPlainProgressIsALinePerStageAndRarelyMore(t *testing.T) {
	p, b, c := newTestProgress(false)
	p.Update("packages", "one")
	c.add(time.Second)
	p.Update("packages", "two") // too soon
	c.add(10 * time.Second)
	p.Update("packages", "three")
	p.Update("filesystem", "")
	p.Update("filesystem", "") // the same again
	p.Close()
	p.Update("late", "not shown")
	want := "packages: one (0 ms)\npackages: three (11.0 s)\nfilesystem (11.0 s)\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestTerminalProgressIsOneLineThatFits(t *testing.T) {
	p, b, c := newTestProgress(true)
	p.Update("boot", "a message that is much too long for it")
	c.add(2 * time.Second)
	p.Tick()
	p.Print("kept")
	p.Close()
	p.Close()
	out := b.String()
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, "\r\x1b[Kkept\n") {
		t.Errorf("only printed lines may end in a newline: %q", out)
	}
	if !strings.HasSuffix(out, "\r\x1b[K") {
		t.Errorf("Close must leave a clean line: %q", out)
	}
	if !strings.Contains(out, "2.0 s") {
		t.Errorf("the time does not run: %q", out)
	}
	for _, line := range strings.FieldsFunc(out, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if line = strings.TrimPrefix(line, "\x1b[K"); len([]rune(line)) > 29 {
			t.Errorf("%q is wider than the terminal", line)
		}
	}
}

func TestProgressRunsAndStopsByItself(t *testing.T) {
	tty := true
	b := &strings.Builder{}
	p := NewProgress(b, ProgressOptions{Terminal: &tty, Width: func() int { return 40 }})
	p.Update("x", "y")
	p.Close() // must return: its goroutine ends
	if !strings.Contains(b.String(), "x: y") {
		t.Errorf("nothing was drawn: %q", b.String())
	}
}

func TestSafeWriter(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\r\n":       "plain\ttext\r\n",
		"\x1b[31mred\x1b[0m":    "\x1b[31mred\x1b[0m",
		"\x1b[38;2;1;2;3mx":     "\x1b[38;2;1;2;3mx",
		"a\x1b[2Jb\x1b[10;10Hc": "abc",
		"\x1b]0;title\x07x":     "x",
		"\x1b]52;c;aGk=\x1b\\x": "x",
		"\x1bP+q544e\x1b\\x":    "x",
		"\x1b[?1049hx":          "x",
		"\x1b[>4;2mx":           "x",
		"\x1bcx":                "x",
		"\x1b(0x":               "x",
		"bell\x07\x08\x00\x7f":  "bell",
		"äöü€":                  "äöü€",
		"\x1b[" + strings.Repeat("1", 200) + "mx": "x",
	} {
		for _, split := range []bool{false, true} {
			var b strings.Builder
			w := NewSafeWriter(&b)
			if split {
				for i := range len(in) {
					w.Write([]byte{in[i]})
				}
			} else {
				w.Write([]byte(in))
			}
			if b.String() != want {
				t.Errorf("%q (split %v): got %q, want %q", in, split, b.String(), want)
			}
		}
	}
}

func FuzzSafeWriter(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b[0m\x1b]0;t\x07"), 3)
	f.Add([]byte("\x1b[\x1b[2J"), 1)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		if len(in) > 0 {
			cut = ((cut % len(in)) + len(in)) % len(in)
		} else {
			cut = 0
		}
		var b strings.Builder
		w := NewSafeWriter(&b)
		w.Write(in[:cut])
		w.Write(in[cut:])
		out := b.String()
		for i := 0; i < len(out); i++ {
			switch c := out[i]; {
			case c == 0x1b:
				end := strings.IndexByte(out[i:], 'm')
				if end < 2 || strings.Trim(out[i+2:i+end], "0123456789;:") != "" || out[i+1] != '[' {
					t.Fatalf("an escape sequence that is no colour came through: %q", out[i:])
				}
				i += end
			case c < 0x20 && c != '\n' && c != '\t' && c != '\r', c == 0x7f:
				t.Fatalf("control byte %#x came through", c)
			}
		}
	})
}
