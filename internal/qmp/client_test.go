package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

type request struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        uint64          `json:"id"`
}

// peer plays QEMU: it greets, answers qmp_capabilities, and leaves the rest to
// handle, which runs in its own goroutine for each command.
func peer(t *testing.T, handle func(say func(format string, a ...any), r request)) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	var mu sync.Mutex
	say := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(theirs, format+"\r\n", a...)
	}
	wg.Go(func() {
		say(`{"QMP": {"version": {}, "capabilities": ["oob"]}}`)
		s := bufio.NewScanner(theirs)
		for s.Scan() {
			var r request
			if err := json.Unmarshal(s.Bytes(), &r); err != nil {
				t.Errorf("client sent %q", s.Text())
				return
			}
			if r.Execute == "qmp_capabilities" {
				say(`{"return": {}, "id": %d}`, r.ID)
				continue
			}
			wg.Go(func() { handle(say, r) })
		}
	})
	t.Cleanup(func() { theirs.Close(); ours.Close(); wg.Wait() })
	return ours
}

func connect(t *testing.T, conn net.Conn) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := Connect(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAnswersFindTheirCommands(t *testing.T) {
	// The first command is answered only after the second has been.
	second := make(chan struct{})
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		if r.Execute == "first" {
			<-second
		}
		say(`{"return": {"was": %q}, "id": %d}`, r.Execute, r.ID)
	}))
	var wg sync.WaitGroup
	defer wg.Wait()
	ask := func(name string) string {
		var got struct{ Was string }
		if err := c.Do(t.Context(), name, nil, &got); err != nil {
			t.Error(err)
		}
		return got.Was
	}
	wg.Go(func() {
		if got := ask("first"); got != "first" {
			t.Errorf("first got the answer of %q", got)
		}
	})
	if got := ask("second"); got != "second" {
		t.Errorf("second got the answer of %q", got)
	}
	close(second)
}

func TestUnreadEventsNeverBlockAnswers(t *testing.T) {
	const n = eventBuffer + 50
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		for i := range n {
			say(`{"event": "E%d", "data": {"n": %d}, "timestamp": {"seconds": 5, "microseconds": 7}}`, i, i)
		}
		say(`{"return": {}, "id": %d}`, r.ID)
	}))
	if err := c.Do(t.Context(), "x", nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.Dropped(); got != 50 {
		t.Errorf("dropped %d events, want 50", got)
	}
	e := <-c.Events()
	if e.Name != "E0" || string(e.Data) != `{"n": 0}` || !e.At.Equal(time.Unix(5, 7000)) {
		t.Errorf("first event %+v", e)
	}
}

func TestLongAnswer(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		say(`{"return": %q, "id": %d}`, long, r.ID)
	}))
	var got string
	if err := c.Do(t.Context(), "query-qmp-schema", nil, &got); err != nil || got != long {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

func TestAnswerAboveTheBoundEndsTheConnection(t *testing.T) {
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		say(`{"return": %q, "id": %d}`, strings.Repeat("x", MaxMessage+1<<20), r.ID)
	}))
	if err := c.Do(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) || !errors.Is(err, errTooLong) {
		t.Fatalf("got %v", err)
	}
}

func TestRefusal(t *testing.T) {
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		say(`{"error": {"class": "CommandNotFound", "desc": "no"}, "id": %d}`, r.ID)
	}))
	var e *Error
	if err := c.Do(t.Context(), "bogus", nil, nil); !errors.As(err, &e) || e.Class != "CommandNotFound" || e.Command != "bogus" {
		t.Fatalf("got %v", err)
	}
}

func TestContextEndsOnlyItsOwnCommand(t *testing.T) {
	asked := make(chan struct{})
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		if r.Execute == "never" {
			close(asked)
			return
		}
		say(`{"return": {}, "id": 424242}`) // an answer nobody asked for
		say(`{"return": {}, "id": %d}`, r.ID)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if err := c.Do(ctx, "never", nil, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if err := c.Do(t.Context(), "other", nil, nil); err != nil {
		t.Fatalf("another command after that: %v", err)
	}
}

// TestEndedContextLeavesTheConnection: a command for somebody who has left
// already is not begun.
func TestEndedContextLeavesTheConnection(t *testing.T) {
	c := connect(t, peer(t, func(say func(string, ...any), r request) {
		say(`{"return": {}, "id": %d}`, r.ID)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // there are two ways to notice
		if err := c.Do(ctx, "x", nil, nil); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if err := c.Do(t.Context(), "y", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestEndOfConnection(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		fmt.Fprintln(theirs, `{"QMP":{}}`)
		s := bufio.NewScanner(theirs)
		s.Scan()
		fmt.Fprintln(theirs, `{"return":{},"id":1}`)
		s.Scan()
		fmt.Fprintln(theirs, `{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-shutdown"}}`)
		theirs.Close()
	}()
	c := connect(t, ours)
	if err := c.Do(t.Context(), "quit", nil, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
	var names []string
	for e := range c.Events() {
		names = append(names, e.Name)
	}
	if len(names) != 1 || names[0] != "SHUTDOWN" {
		t.Fatalf("events %v: the last ones must survive the end", names)
	}
	if err := c.Do(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("after the end: %v", err)
	}
}

func TestConnectIsBoundedByItsContext(t *testing.T) {
	ours, theirs := net.Pipe() // a QEMU that says nothing
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, ours); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if _, err := ours.Write([]byte("x")); err == nil {
		t.Fatal("the connection is still open")
	}
}

func FuzzDecoder(f *testing.F) {
	for _, s := range []string{
		`{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}`,
		`{"return": {}, "id": 1}` + "\r\n" + `{"return": [1,2], "id": 18446744073709551615}`,
		`{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": false, "reason": "host-qmp-quit"}}`,
		`{"error": {"class": "GenericError", "desc": "x"}, "id": null}`,
		`{"id": "string"}`, `{"id": -1}`, `[]`, `null`, `{"event": "a", "event": ""}`, `{`, "\xff\x00", `{"data":` + strings.Repeat("[", 300),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() {
			theirs.SetDeadline(time.Now().Add(5 * time.Second))
			theirs.Write(b)
			theirs.Close()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		// Whatever it reads, the client must come to an end with the stream.
		c, err := Connect(ctx, ours)
		if err == nil {
			c.Close()
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("the client outlived its stream")
		}
	})
}
