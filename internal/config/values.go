package config

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// normalise turns a decoded TOML or JSON value into the form of the key's
// kind. The message says what was found instead; it never shows the value,
// which may be a secret.
func normalise(kind Kind, v any) (value any, problem string) {
	if n, ok := v.(json.Number); ok {
		v = jsonNumber(n)
	}
	switch n := v.(type) {
	case int:
		v = int64(n)
	case float64:
		if math.IsInf(n, 0) || math.IsNaN(n) {
			return nil, "inf and nan are not allowed"
		}
	}
	mismatch := fmt.Sprintf("found %s where %s is expected", nameOf(v), article(kind))
	switch kind {
	case Bool:
		if b, ok := v.(bool); ok {
			return b, ""
		}
	case Integer:
		switch n := v.(type) {
		case int64:
			return n, ""
		case jsonFloat: // JSON has no integers of its own
			if f := float64(n); f == math.Trunc(f) && math.Abs(f) < 1<<53 {
				return int64(f), ""
			}
			return nil, "found a fraction where an integer is expected"
		}
	case Number:
		switch n := v.(type) {
		case int64:
			return float64(n), ""
		case float64:
			return n, ""
		case jsonFloat:
			return float64(n), ""
		}
	case Text:
		if s, ok := v.(string); ok {
			if len(s) > maxText {
				return nil, fmt.Sprintf("found a text of %d bytes, longer than %d", len(s), maxText)
			}
			return s, ""
		}
	case List:
		items, ok := v.([]any)
		if !ok {
			break
		}
		if len(items) > maxList {
			return nil, fmt.Sprintf("found a list of %d items, more than %d", len(items), maxList)
		}
		list := make([]string, len(items))
		for i, item := range items {
			s, ok := item.(string)
			if !ok {
				return nil, fmt.Sprintf("item %d is %s, not a string", i+1, nameOf(item))
			}
			if len(s) > maxText {
				return nil, fmt.Sprintf("item %d is longer than %d bytes", i+1, maxText)
			}
			list[i] = s
		}
		return list, ""
	case Map:
		table, ok := v.(map[string]any)
		if !ok {
			break
		}
		if len(table) > maxList {
			return nil, fmt.Sprintf("found a table of %d entries, more than %d", len(table), maxList)
		}
		m := make(map[string]string, len(table))
		for k, item := range table {
			s, ok := item.(string)
			if !ok {
				return nil, fmt.Sprintf("the value of %s is %s, not a string", quote(k), nameOf(item))
			}
			if len(s) > maxText {
				return nil, fmt.Sprintf("the value of %s is longer than %d bytes", quote(k), maxText)
			}
			m[k] = s
		}
		return m, ""
	case Duration:
		switch n := v.(type) {
		case int64:
			return hours(float64(n))
		case float64:
			return hours(n)
		case jsonFloat:
			return hours(float64(n))
		case string:
			return parseDuration(n)
		}
	}
	return nil, mismatch
}

// jsonFloat is a number that came from JSON, where 2 and 2.0 are the same.
type jsonFloat float64

func jsonNumber(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	f, err := n.Float64()
	if err != nil {
		return math.Inf(1)
	}
	return jsonFloat(f)
}

// fromJSON prepares decoded JSON: its floats are marked.
func fromJSON(v any) any {
	switch x := v.(type) {
	case float64:
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return x
		}
		return jsonFloat(x)
	case []string:
		list := make([]any, len(x))
		for i, s := range x {
			list[i] = s
		}
		return list
	case []any:
		list := make([]any, len(x))
		for i, item := range x {
			list[i] = fromJSON(item)
		}
		return list
	case map[string]any:
		m := make(map[string]any, len(x))
		for k, item := range x {
			m[k] = fromJSON(item)
		}
		return m
	}
	return v
}

func nameOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case int64, int:
		return "an integer"
	case float64, jsonFloat, json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return "a date or time"
}

func article(k Kind) string {
	switch k {
	case Bool:
		return "a boolean"
	case Integer:
		return "an integer"
	}
	return "a " + string(k)
}

// maxDuration keeps thresholds far from overflow.
const maxDuration = 10 * 365 * 24 * time.Hour

func hours(h float64) (any, string) {
	if math.IsNaN(h) || math.IsInf(h, 0) {
		return nil, "inf and nan are not allowed"
	}
	if h < 0 {
		return nil, "a duration must not be negative"
	}
	if h > maxDuration.Hours() {
		return nil, "the duration is longer than ten years"
	}
	return time.Duration(h * float64(time.Hour)), ""
}

var durationPart = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(d|h|m)`)

func parseDuration(s string) (any, string) {
	text := strings.TrimSpace(s)
	if strings.HasPrefix(text, "-") {
		return nil, "a duration must not be negative"
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return hours(n)
	}
	var total float64 // hours
	for rest := text; rest != "" || text == ""; {
		m := durationPart.FindStringSubmatch(rest)
		if m == nil {
			return nil, quote(s) + " is not a duration"
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return nil, quote(s) + " is not a duration"
		}
		switch m[2] {
		case "d":
			n *= 24
		case "m":
			n /= 60
		}
		total += n
		rest = rest[len(m[0]):]
	}
	return hours(total)
}

// formatDuration writes a duration in the units that the schema accepts.
func formatDuration(d time.Duration) string {
	minutes := d.Round(time.Minute) / time.Minute
	switch {
	case minutes%60 == 0:
		return fmt.Sprintf("%dh", minutes/60)
	case minutes < 60:
		return fmt.Sprintf("%dm", minutes)
	}
	return fmt.Sprintf("%dh%dm", minutes/60, minutes%60)
}
