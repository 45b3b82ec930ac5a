package powershell

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// maxLine bounds a line of output; the longest reply, a list of many VMs, is
// far below.
const maxLine = 8 << 20

// maxMessage bounds the text of an error.
const maxMessage = 2000

type reply struct {
	OK       bool            `json:"ok"`
	Data     json.RawMessage `json:"data"`
	ID       string          `json:"fqid"`
	Category string          `json:"category"`
	Command  string          `json:"command"`
	Message  string          `json:"message"`
	HResult  int64           `json:"hresult"`
	Inner    int64           `json:"inner"`
}

// errNotReply: the line is something else.
var errNotReply = errors.New("no reply to this request")

// parseReply finds the reply to the request with that nonce in a line. Lines
// without it, and those that are cut off, are errNotReply.
func parseReply(line []byte, nonce string) (reply, error) {
	_, rest, ok := bytes.Cut(line, []byte(nonce))
	if !ok {
		return reply{}, errNotReply
	}
	text, _, ok := bytes.Cut(rest, []byte(nonce))
	if !ok {
		return reply{}, errNotReply
	}
	raw := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(raw, text)
	if err != nil {
		return reply{}, fmt.Errorf("a reply that is no base64: %w", err)
	}
	if raw = raw[:n]; !utf8.Valid(raw) {
		return reply{}, errors.New("a reply that is not UTF-8")
	}
	var r reply
	if err := json.Unmarshal(raw, &r); err != nil {
		return reply{}, fmt.Errorf("a reply that is no JSON: %w", err)
	}
	if len(r.Message) > maxMessage {
		r.Message = string(bytes.ToValidUTF8([]byte(r.Message[:maxMessage]), nil))
	}
	return r, nil
}

// result decodes what the script output into v, or is its error.
func (r reply) result(v any) error {
	if !r.OK {
		return &Error{ID: r.ID, Category: r.Category, Command: r.Command, Message: r.Message, HResult: uint32(r.HResult), Inner: uint32(r.Inner)}
	}
	if v == nil {
		return nil
	}
	if len(r.Data) == 0 {
		r.Data = []byte("null")
	}
	if err := json.Unmarshal(r.Data, v); err != nil {
		return fmt.Errorf("a result of another form: %w", err)
	}
	return nil
}

// List is an array as 5.1's ConvertTo-Json may write one: a single element
// stands alone, none is null, and an array that passed through a pipeline comes
// wrapped as {"value": [...], "Count": n}.
type List[T any] []T

// UnmarshalJSON takes any of these.
func (l *List[T]) UnmarshalJSON(b []byte) error {
	*l = nil
	b = bytes.TrimSpace(b)
	switch {
	case bytes.Equal(b, []byte("null")):
		return nil
	case len(b) > 0 && b[0] == '[':
		var items []T
		err := json.Unmarshal(b, &items)
		*l = items
		return err
	case len(b) > 0 && b[0] == '{':
		var wrapped struct {
			Value *List[T] `json:"value"`
			Count *int     `json:"Count"`
		}
		if err := json.Unmarshal(b, &wrapped); err == nil && wrapped.Value != nil && wrapped.Count != nil {
			*l = *wrapped.Value
			return nil
		}
	}
	var one T
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*l = List[T]{one}
	return nil
}
