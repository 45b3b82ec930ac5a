package hostpath

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Fold maps a name to a key that is equal for all spellings which some common
// file system takes for the same name: case (by simple folding, as NTFS, APFS
// and HFS+ do), composed and decomposed Unicode forms, and the code points
// that HFS+ ignores. Bytes that are not UTF-8 stay as they are. A path may be
// folded too: slashes are kept.
func Fold(name string) string {
	if plain, isLower := asciiLower(name); plain {
		if isLower {
			return name
		}
		return strings.ToLower(name)
	}
	var b strings.Builder
	b.Grow(len(name))
	for len(name) > 0 {
		r, n := utf8.DecodeRuneInString(name)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteByte(name[0])
		case !ignorable(r):
			b.WriteRune(r)
		}
		name = name[n:]
	}
	// Decompose, fold, and decompose again: folding may compose (U+1E9E), and
	// decomposing may yield a letter with case (U+212A, the Kelvin sign).
	s := norm.NFD.String(b.String())
	return norm.NFD.String(foldCase(s))
}

func asciiLower(s string) (ascii, lower bool) {
	lower = true
	for i := range len(s) {
		c := s[i]
		if c >= utf8.RuneSelf {
			return false, false
		}
		if 'A' <= c && c <= 'Z' {
			lower = false
		}
	}
	return true, lower
}

// foldCase replaces each rune by the smallest of its folding orbit, in lower
// case if that is ASCII.
func foldCase(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			b.WriteByte(s[0])
			s = s[1:]
			continue
		}
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		if 'A' <= least && least <= 'Z' {
			least += 'a' - 'A'
		}
		b.WriteRune(least)
		s = s[n:]
	}
	return b.String()
}

// ignorable reports whether a file system may skip r when it compares names:
// HFS+'s list and the other default-ignorable code points of Unicode.
func ignorable(r rune) bool {
	switch {
	case r == 0x00AD, r == 0x034F, r == 0x061C, r == 0x3164, r == 0xFEFF, r == 0xFFA0,
		r >= 0x115F && r <= 0x1160, r >= 0x17B4 && r <= 0x17B5, r >= 0x180B && r <= 0x180F,
		r >= 0x200B && r <= 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x2060 && r <= 0x206F,
		r >= 0xFE00 && r <= 0xFE0F, r >= 0xFFF0 && r <= 0xFFF8,
		r >= 0x1BCA0 && r <= 0x1BCA3, r >= 0x1D173 && r <= 0x1D17A, r >= 0xE0000 && r <= 0xE0FFF:
		return true
	}
	return false
}
