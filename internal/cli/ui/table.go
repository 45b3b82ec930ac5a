package ui

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table lines up columns for people. Cells are cleaned; an empty cell is shown
// as "-" so that columns can still be told apart.
type Table struct {
	head []string
	rows [][]string
}

// NewTable makes a table with a head line.
func NewTable(head ...string) *Table { return &Table{head: head} }

// Row appends a row; missing cells are empty, surplus ones are dropped.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(t.head))
	for i := range row {
		if i < len(cells) {
			row[i] = Clean(cells[i])
		}
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// WriteTo writes the table; the last column is never padded.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteByte('\n')
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
