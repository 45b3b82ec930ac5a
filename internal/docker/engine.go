// Package docker speaks to the Docker engine inside a guest.
//
// It is the only package that knows Docker's API and builds its command lines.
// Reading the engine's state goes through its API over a dialled socket,
// because each start of the docker program costs the better part of a second
// in an emulated guest. The engine's answers come from the guest and are
// hostile input: bounded, and never trusted further than their types.
//
//	e := docker.NewEngine(guest.DialContext)
//	err := e.Ping(ctx)
package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// Socket is where the engine listens in every guest.
const Socket = "/run/docker.sock"

// Bounds of one answer: its bytes, and the elements of its lists and objects,
// each of which takes a few bytes of the guest and a hundred of the host.
const (
	maxAnswer   = 16 << 20
	maxElements = 100_000
)

// How long an engine may keep a call waiting that reads, and one that changes
// something, which may be to remove gigabytes. Tests shorten them.
var (
	readWithin   = 2 * time.Minute
	changeWithin = 20 * time.Minute
)

// ErrNotFound: the engine knows no such object.
var ErrNotFound = errors.New("not known to Docker")

// Engine is the API of one guest's Docker engine.
type Engine struct {
	http *http.Client
	tr   *http.Transport
}

// NewEngine makes a client; dial opens connections inside the guest. Close
// idle connections with Close.
func NewEngine(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Engine {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "unix", Socket) },
		// The answer to a ping must not be kept waiting by a proxy setting.
		Proxy:           nil,
		MaxIdleConns:    2,
		MaxConnsPerHost: 8,
	}
	return &Engine{http: &http.Client{Transport: tr}, tr: tr}
}

// Close drops idle connections.
func (e *Engine) Close() { e.tr.CloseIdleConnections() }

// Ping succeeds when the engine answers.
func (e *Engine) Ping(ctx context.Context) error {
	return e.do(ctx, http.MethodGet, "/_ping", nil, nil)
}

// do calls the API and decodes its answer into out, if out is not nil.
func (e *Engine) do(ctx context.Context, method, path string, in, out any) error {
	within := changeWithin
	if method == http.MethodGet {
		within = readWithin
	}
	try, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	b, err := e.answer(try, method, path, in)
	if err != nil && try.Err() != nil && ctx.Err() == nil {
		// Not the caller's deadline, which would mean that the caller left.
		return fmt.Errorf("%s %s: no whole answer within %v", method, path, within)
	}
	if err != nil || out == nil {
		return err
	}
	if bytes.Count(b, []byte{','}) > maxElements {
		return fmt.Errorf("%s %s: an answer of more than %d elements", method, path, maxElements)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: answer not understood: %w", method, path, err)
	}
	return nil
}

// answer calls the API and reads what it answers.
func (e *Engine) answer(ctx context.Context, method, path string, in any) ([]byte, error) {
	resp, err := e.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return b, nil
}

// send calls the API. The caller closes the answer's body; an answer that says
// the call failed is an error.
func (e *Engine) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	// 304: it was so already.
	if resp.StatusCode < 300 || resp.StatusCode == http.StatusNotModified {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	var m struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &m) != nil || m.Message == "" {
		m.Message = http.StatusText(resp.StatusCode)
	}
	m.Message = shown(m.Message, maxMessage)
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, m.Message)
	}
	return nil, fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, m.Message)
}

// maxMessage bounds what is passed on of the engine's reason for a refusal, in
// bytes.
const maxMessage = 2 << 10

// shown is a text of the guest's that people see: bounded, and without what a
// terminal would act on.
func shown(s string, most int) string {
	if len(s) > most {
		s = s[:most] + " […]"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// encode is v as JSON in a query; v always encodes.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("docker: JSON of %T: %v", v, err))
	}
	return string(b)
}
