package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a guest may make this process hold. A bound on the bytes of a message
// is not enough: two bytes on the wire are an empty message of some hundred
// bytes in memory, and a stream has any number of messages.
const (
	// maxAnswer bounds one message, in bytes.
	maxAnswer = 64 << 20
	// maxParts bounds the messages within one message. It is what a whole tree
	// may have, since an unpacked tar is answered in one.
	maxParts = defaultTreeEntries + 1000
	// maxErrorBytes bounds the JSON that ends a failed call or any stream.
	maxErrorBytes = 1 << 20
	// maxText bounds a text of the guest's that is shown, in bytes.
	maxText = 2 << 10
	// maxTreeText bounds the names of one tree, and maxSkipped the reports of
	// one tar stream, in bytes.
	maxTreeText = 256 << 20
	maxSkipped  = 64 << 20
)

// codec is the protocol's own, but for messages of too many parts.
type codec struct{}

// Name implements connect.Codec.
func (codec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend lets the protocol use its own buffers again.
func (codec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", m)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, p)
}

// Unmarshal implements connect.Codec.
func (codec) Unmarshal(b []byte, m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", m)
	}
	left := maxParts
	if err := countParts(b, p.ProtoReflect().Descriptor(), &left); err != nil {
		return err
	}
	return proto.Unmarshal(b, p)
}

var errParts = errors.New("a message of too many parts")

// countParts takes the messages within b from left. What is malformed is left
// to the decoder to report.
func countParts(b []byte, d protoreflect.MessageDescriptor, left *int) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return nil
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		f := d.Fields().ByNumber(num)
		if f == nil || f.Kind() != protoreflect.MessageKind && !f.IsList() {
			continue
		}
		if *left--; *left < 0 {
			return errParts
		}
		if f.Kind() == protoreflect.MessageKind {
			if err := countParts(v, f.Message(), left); err != nil {
				return err
			}
		}
	}
	return nil
}

// boundErrors bounds what the protocol decodes as JSON: the body of a failed
// call and the message that ends a stream.
func boundErrors(resp *http.Response) {
	switch {
	case resp.StatusCode != http.StatusOK:
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxErrorBytes), resp.Body}
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "application/connect+"):
		resp.Body = &envelopes{ReadCloser: resp.Body}
	}
}

// envelopes watches a stream's envelopes (a byte of flags, four of length) go
// by and fails at an end message that is too long.
type envelopes struct {
	io.ReadCloser
	head [5]byte
	have int    // of head
	rest uint32 // of the message under way
	err  error
}

const flagEnd = 0b10

var errLongEnd = errors.New("an end of stream that is too long")

// Read implements io.Reader.
func (e *envelopes) Read(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.ReadCloser.Read(p)
	for b := p[:n]; len(b) > 0; {
		if e.rest > 0 {
			k := min(e.rest, uint32(len(b)))
			b, e.rest = b[k:], e.rest-k
			continue
		}
		k := copy(e.head[e.have:], b)
		b, e.have = b[k:], e.have+k
		if e.have < len(e.head) {
			break
		}
		e.have, e.rest = 0, binary.BigEndian.Uint32(e.head[1:])
		if e.head[0]&flagEnd != 0 && e.rest > maxErrorBytes {
			e.err = errLongEnd
			return 0, e.err
		}
	}
	return n, err
}

// text bounds a text of the guest's and takes out what a terminal would act on;
// lines stay.
func text(s string) string {
	const more = " […]"
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText-len(more)], "") + more
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == unicode.ReplacementChar:
			return r
		case unicode.IsControl(r):
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}
