package ui

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Clean makes one printable line of text that may come from anywhere: escape
// sequences are left out, other control characters and what is not UTF-8
// become spaces or U+FFFD, runs of white space become one space.
func Clean(s string) string {
	s = strings.ToValidUTF8(withoutEscapes(s), "\uFFFD")
	return strings.Join(strings.Fields(strings.Map(printable, s)), " ")
}

// CleanLines is Clean for text of several lines: newlines stay, tabs and
// spaces too, every other control character is dropped and so are escape
// sequences.
func CleanLines(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(withoutEscapes(s), "\uFFFD"), "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if p := printable(r); p != ' ' || r == ' ' {
			return p
		}
		return -1
	}, s)
}

// printable maps what could change the terminal's state, or the order in which
// it shows other text, to a space.
func printable(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
		return ' '
	}
	return r
}

// Cut shortens s to at most width runes, the last one an ellipsis if anything
// was left out. Width 0 or less means no limit.
func Cut(s string, width int) string {
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// Duration prints a duration to the precision a person cares for.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// Age prints how long something has been, or will be, in whole seconds at the
// finest.
func Age(d time.Duration) string {
	d = d.Truncate(time.Second)
	if -time.Minute < d && d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return Duration(d)
}

// Bytes prints a size in binary units.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, name := float64(n), ""
	for _, name = range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		if value /= unit; value < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, name)
}
