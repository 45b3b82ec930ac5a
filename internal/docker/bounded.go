package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxRows bounds a list that an engine answers: empty rows cost it two bytes
// each, and the host a hundred times that.
const maxRows = 5000

// bounded is a list of the engine's, of at most maxRows rows.
type bounded[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (b *bounded[T]) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t == nil {
		return nil // null: none
	}
	if t != json.Delim('[') {
		return fmt.Errorf("%v where a list was expected", t)
	}
	for d.More() {
		if len(*b) == maxRows {
			return fmt.Errorf("more than %d rows", maxRows)
		}
		var row T
		if err := d.Decode(&row); err != nil {
			return err
		}
		*b = append(*b, row)
	}
	return nil
}
