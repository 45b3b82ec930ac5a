package config

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// position is a place in a file, from 1; zero is unknown.
type position struct{ line, column int }

// document is a parsed TOML file: its values and where each key stands.
type document struct {
	values    map[string]any
	positions map[string]position // by joined path
}

// joinKey makes the map key of a path, for any content of its parts.
func joinKey(path []string) string { return strings.Join(path, "\x00") }

func (d *document) at(path []string) position {
	if d.positions == nil {
		return position{}
	}
	return d.positions[joinKey(path)]
}

// maxDepth bounds the paths whose positions are kept. The schema is less deep,
// and a dotted key may have half a million parts.
const maxDepth = 8

// parseTOML parses a file of hostile origin. A failure is one message with a
// place: what is wrong with the syntax hides what follows.
func parseTOML(data []byte) (*document, position, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		n := 0
		for n < len(data) {
			r, size := utf8.DecodeRune(data[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		return nil, placeOf(data, n), errors.New("the file is not UTF-8")
	}
	doc := &document{values: map[string]any{}}
	if err := toml.Unmarshal(data, &doc.values); err != nil {
		var de *toml.DecodeError
		if errors.As(err, &de) {
			line, column := de.Position()
			return nil, position{line, column}, errors.New(strings.TrimPrefix(de.Error(), "toml: "))
		}
		return nil, position{}, errors.New(strings.TrimPrefix(err.Error(), "toml: "))
	}
	doc.positions = positionsOf(data)
	return doc, position{}, nil
}

func placeOf(data []byte, offset int) position {
	before := data[:offset]
	line := bytes.Count(before, []byte("\n")) + 1
	return position{line, offset - (bytes.LastIndexByte(before, '\n') + 1) + 1}
}

// positionsOf finds where each key of a valid document stands: the last part
// of its first mention.
func positionsOf(data []byte) map[string]position {
	found := map[string]position{}
	lines := newLineIndex(data)
	var p unstable.Parser
	p.Reset(data)
	note := func(path []string, n *unstable.Node) {
		k := joinKey(path)
		if _, ok := found[k]; !ok {
			found[k] = lines.place(int(n.Raw.Offset))
		}
	}
	var value func(prefix []string, n *unstable.Node)
	keyValue := func(prefix []string, n *unstable.Node) {
		path := prefix
		for it := n.Key(); it.Next(); {
			k := it.Node()
			if len(path) == maxDepth {
				return
			}
			path = append(path[:len(path):len(path)], string(k.Data))
			note(path, k)
		}
		value(path, n.Value())
	}
	value = func(prefix []string, n *unstable.Node) {
		if n.Kind != unstable.InlineTable {
			return
		}
		for it := n.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				keyValue(prefix, it.Node())
			}
		}
	}
	var table []string
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = nil
			for it := e.Key(); it.Next(); {
				k := it.Node()
				if len(table) == maxDepth {
					break
				}
				table = append(table[:len(table):len(table)], string(k.Data))
				note(table, k)
			}
		case unstable.KeyValue:
			keyValue(table, e)
		}
	}
	return found
}

// lineIndex turns offsets into places.
type lineIndex struct{ starts []int }

func newLineIndex(data []byte) lineIndex {
	starts := []int{0}
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return lineIndex{starts}
}

func (l lineIndex) place(offset int) position {
	low, high := 0, len(l.starts)
	for high-low > 1 {
		if mid := (low + high) / 2; l.starts[mid] <= offset {
			low = mid
		} else {
			high = mid
		}
	}
	return position{low + 1, offset - l.starts[low] + 1}
}
