package sandbox

import (
	"strings"
	"testing"
)

func TestKeptOutputIsReadByOffsets(t *testing.T) {
	kept := []byte("0123456789")
	at := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		offset *int64
		size   int64
		want   logPiece
	}{
		"the newest":          {nil, 4, logPiece{[]byte("6789"), 100, 100, 96}},
		"all there is":        {nil, 1000, logPiece{kept, 100, 100, 90}},
		"from the beginning":  {at(0), 1000, logPiece{kept, 100, 100, 90}},
		"within what is kept": {at(92), 3, logPiece{[]byte("234"), 95, 100, 0}},
		"at the end":          {at(100), 10, logPiece{[]byte{}, 100, 100, 0}},
		"behind the end":      {at(1 << 50), 10, logPiece{[]byte{}, 100, 100, 0}},
	} {
		got := cutTail(kept, 100, c.offset, c.size)
		if string(got.data) != string(c.want.data) || got.next != c.want.next || got.total != c.want.total || got.dropped != c.want.dropped {
			t.Errorf("%s: %q next %d total %d dropped %d, want %q %d %d %d", name,
				got.data, got.next, got.total, got.dropped, c.want.data, c.want.next, c.want.total, c.want.dropped)
		}
	}
}

func TestPiecesKeepCharactersWhole(t *testing.T) {
	text := strings.Repeat("a€😀é", 40)
	for size := int64(4); size < 20; size++ {
		var whole strings.Builder
		for off := int64(0); off < int64(len(text)); {
			p := cutTail([]byte(text), int64(len(text)), &off, size)
			p.wholeCharacters()
			s, ok := toUTF8(p.data)
			if !ok || p.next <= off {
				t.Fatalf("size %d at %d: %q, next %d", size, off, s, p.next)
			}
			whole.WriteString(s)
			off = p.next
		}
		if whole.String() != text {
			t.Errorf("size %d: %q", size, whole.String())
		}
	}
}
