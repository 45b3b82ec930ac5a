package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxLine bounds one message on stdio and one request body over HTTP.
const maxLine = 4 << 20

// eofGrace is how long a client that closed its end without waiting (a shell
// pipe) may still get the answers to what it asked.
const eofGrace = time.Second

// guard sits between the client and the SDK's line transport, which ends the
// session at the first line that is no message. It hands on only messages that
// the SDK accepts, one per line, and answers everything else itself: -32700
// for what is not JSON, -32600 for JSON that is no request.
//
// It is the io.ReadCloser and io.WriteCloser of an mcp.IOTransport. Read is
// called by one goroutine, Write by any.
type guard struct {
	in      *bufio.Reader
	closeIn func() error
	out     *lineWriter

	pending []byte // rest of the line that is being handed on
	legacy  bool   // the client negotiated a version that has batches
	lineMax int
	grace   time.Duration

	mu       sync.Mutex
	inflight map[string]struct{} // ids of calls that have no answer yet
	idle     chan struct{}       // closed while eof waits and inflight is empty
	eof      bool
	closed   chan struct{}
	once     sync.Once
}

func newGuard(in io.ReadCloser, out *lineWriter) *guard {
	return &guard{
		in:       bufio.NewReaderSize(in, 64<<10),
		closeIn:  in.Close,
		out:      out,
		lineMax:  maxLine,
		grace:    eofGrace,
		inflight: map[string]struct{}{},
		idle:     make(chan struct{}),
		closed:   make(chan struct{}),
	}
}

// Read implements io.Reader for the SDK.
func (g *guard) Read(p []byte) (int, error) {
	for len(g.pending) == 0 {
		line, tooLong, err := g.line()
		if tooLong {
			g.refuse(topID(line), jsonrpc.CodeInvalidRequest, fmt.Sprintf("the message is longer than %d bytes", g.lineMax))
		} else if line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))); len(line) > 0 {
			g.pending = g.accept(line)
		}
		if err != nil && len(g.pending) == 0 {
			if errors.Is(err, io.EOF) {
				g.drain()
			}
			return 0, err
		}
	}
	n := copy(p, g.pending)
	g.pending = g.pending[n:]
	return n, nil
}

// line reads up to the next newline, keeping at most lineMax bytes of it.
func (g *guard) line() (line []byte, tooLong bool, err error) {
	for {
		chunk, err := g.in.ReadSlice('\n')
		if room := g.lineMax - len(line); len(chunk) > room {
			tooLong = true
			chunk2 := chunk[:max(room, 0)]
			line = append(line, chunk2...)
		} else {
			line = append(line, chunk...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return line, tooLong, err
	}
}

// accept returns what the SDK may read of a line, newline included.
func (g *guard) accept(line []byte) []byte {
	if !json.Valid(line) {
		g.refuse(nil, jsonrpc.CodeParseError, "the line is not JSON; a message is one line of JSON")
		return nil
	}
	if line[0] != '[' {
		return g.message(line)
	}
	// Batches existed up to 2025-03-26; the SDK ends the session at one in a
	// later version. Their members are handed on one by one.
	var batch []json.RawMessage
	if err := json.Unmarshal(line, &batch); err != nil || len(batch) == 0 || !g.legacy {
		g.refuse(nil, jsonrpc.CodeInvalidRequest, "batches are not part of this protocol version; send one message per line")
		return nil
	}
	var out []byte
	for _, m := range batch {
		out = append(out, g.message(m)...)
	}
	return out
}

func (g *guard) message(raw []byte) []byte {
	msg, err := jsonrpc.DecodeMessage(raw)
	if err != nil {
		g.refuse(topID(raw), jsonrpc.CodeInvalidRequest, "not a JSON-RPC 2.0 message: "+err.Error())
		return nil
	}
	if req, ok := msg.(*jsonrpc.Request); ok {
		if req.Method == "initialize" {
			var p struct {
				ProtocolVersion string `json:"protocolVersion"`
			}
			_ = json.Unmarshal(req.Params, &p) // the SDK answers bad params
			g.legacy = p.ProtocolVersion != "" && p.ProtocolVersion < "2025-06-18"
		}
		if req.IsCall() && !g.begin(idKey(req.ID.Raw())) {
			g.refuse(nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("id %v belongs to a call that has not been answered yet", req.ID.Raw()))
			return nil
		}
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return nil // it was valid above
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// refuse answers a line in the SDK's place. An error means that the client is
// gone, which the next read finds.
func (g *guard) refuse(id any, code int64, text string) {
	raw, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id,
		"error": map[string]any{"code": code, "message": text},
	})
	if err == nil {
		_, _ = g.out.Write(append(raw, '\n'))
	}
}

func (g *guard) begin(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, dup := g.inflight[key]; dup {
		return false
	}
	g.inflight[key] = struct{}{}
	return true
}

// drain waits until everything asked is answered, for up to the grace time.
func (g *guard) drain() {
	g.mu.Lock()
	g.eof = true
	if len(g.inflight) == 0 {
		close(g.idle)
		g.inflight = nil
	}
	g.mu.Unlock()
	t := time.NewTimer(g.grace)
	defer t.Stop()
	select {
	case <-g.idle:
	case <-g.closed:
	case <-t.C:
	}
}

// Write implements io.Writer for the SDK, which writes whole lines. An answer
// counts as given when it is out.
func (g *guard) Write(p []byte) (int, error) {
	n, err := g.out.Write(p)
	if key, ok := answered(p); ok {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.inflight != nil {
			delete(g.inflight, key)
			if g.eof && len(g.inflight) == 0 {
				close(g.idle)
				g.inflight = nil
			}
		}
	}
	return n, err
}

// Close implements io.Closer for both directions. It does not wait for a read
// or write that the system has blocked.
func (g *guard) Close() error {
	var err error
	g.once.Do(func() {
		close(g.closed)
		g.out.Close()
		err = g.closeIn()
	})
	return err
}

func idKey(id any) string {
	if s, ok := id.(string); ok {
		return "s" + s
	}
	if f, ok := id.(float64); ok {
		id = int64(f)
	}
	return fmt.Sprintf("n%v", id)
}

// answered is the id of the call that a response line answers.
func answered(line []byte) (key string, ok bool) {
	id, method := head(line)
	if id == nil || method {
		return "", false
	}
	return idKey(id), true
}

// topID is the id at the top level of what may be only the beginning of an
// object, nil if there is none.
func topID(raw []byte) any {
	id, _ := head(raw)
	return id
}

// head reads the members of an object up to its id or method.
func head(raw []byte) (id any, method bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	for {
		name, err := dec.Token()
		if err != nil {
			return nil, method
		}
		switch name {
		case "id":
			v, err := dec.Token()
			if err != nil {
				return nil, method
			}
			switch v.(type) {
			case string, float64:
				return v, method
			}
			return nil, method
		case "method":
			method = true
		case "result", "error":
			return nil, method
		}
		var skip json.RawMessage
		if dec.Decode(&skip) != nil {
			return nil, method
		}
	}
}

// errClosed is what writes get after Close.
var errClosed = errors.New("the connection is closed")

// lineWriter writes from a goroutine, so that a writer can leave when the
// connection is closed although the client has stopped reading.
type lineWriter struct {
	w      io.Writer
	queue  chan write
	closed chan struct{}
	once   sync.Once
	done   chan struct{}
}

type write struct {
	p   []byte
	err chan error
}

// newLineWriter starts the goroutine. It ends after Close, once the write that
// it may be in returns; a write that the system blocks ends with the process.
func newLineWriter(w io.Writer) *lineWriter {
	l := &lineWriter{w: w, queue: make(chan write), closed: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *lineWriter) run() {
	defer close(l.done)
	for {
		select {
		case job := <-l.queue:
			_, err := l.w.Write(job.p)
			job.err <- err
		case <-l.closed:
			return
		}
	}
}

// Write returns when p is written, or when the writer is closed.
func (l *lineWriter) Write(p []byte) (int, error) {
	job := write{p: bytes.Clone(p), err: make(chan error, 1)}
	select {
	case l.queue <- job:
	case <-l.closed:
		return 0, errClosed
	}
	select {
	case err := <-job.err:
		if err != nil {
			return 0, err
		}
		return len(p), nil
	case <-l.closed:
		return 0, errClosed
	}
}

// Close makes every write return; it does not close the file.
func (l *lineWriter) Close() { l.once.Do(func() { close(l.closed) }) }
