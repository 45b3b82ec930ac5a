package qmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// ErrClosed: the connection has ended, by Close or from QEMU's side. The
// outcome of a command in flight is unknown.
var ErrClosed = errors.New("qmp: connection closed")

// eventBuffer is how many unread events are kept.
const eventBuffer = 256

// Client is one connection. Its methods may be called concurrently.
type Client struct {
	conn    io.ReadWriteCloser
	writing chan struct{} // capacity 1: held while a command is written
	events  chan Event
	dropped atomic.Uint64
	done    chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan *message // each with room for its one answer
	err     error                    // why the reader ended
}

// Connect reads QEMU's greeting from conn and negotiates. The client owns conn
// from here on, also when Connect fails. When ctx ends first, conn is closed.
func Connect(ctx context.Context, conn io.ReadWriteCloser) (*Client, error) {
	c := &Client{
		conn:    conn,
		writing: make(chan struct{}, 1),
		events:  make(chan Event, eventBuffer),
		done:    make(chan struct{}),
		pending: map[uint64]chan *message{},
	}
	greeted := make(chan struct{})
	go c.read(greeted)
	select {
	case <-greeted:
	case <-c.done:
		return nil, c.reason()
	case <-ctx.Done():
		c.Close()
		return nil, context.Cause(ctx)
	}
	if err := c.Do(ctx, "qmp_capabilities", nil, nil); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Do runs one command. args is marshalled as its arguments unless nil; the
// answer is stored in result unless nil. A refusal is an *Error. When ctx ends
// first, Do returns its cause and the command may or may not take effect.
func (c *Client) Do(ctx context.Context, command string, args, result any) error {
	req := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{Execute: command, Arguments: args}
	answer := make(chan *message, 1)
	c.mu.Lock()
	c.nextID++
	req.ID = c.nextID
	c.pending[req.ID] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, req.ID)
		c.mu.Unlock()
	}()

	line, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("qmp: arguments of %s: %w", command, err)
	}
	if err := c.write(ctx, append(line, '\n')); err != nil {
		return err
	}
	select {
	case m := <-answer:
		return finish(command, m, result)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
	}
	select { // the answer may have come with the end
	case m := <-answer:
		return finish(command, m, result)
	default:
		return c.reason()
	}
}

func finish(command string, m *message, result any) error {
	if m.Error != nil {
		return &Error{Command: command, Class: m.Error.Class, Desc: m.Error.Desc}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, result); err != nil {
		return fmt.Errorf("qmp: answer of %s: %w", command, err)
	}
	return nil
}

// write sends one line. What has been begun is written whole, also when ctx ends
// meanwhile: half a command would be the end of the connection, and with it of the
// VM.
func (c *Client) write(ctx context.Context, line []byte) error {
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
		return c.reason()
	}
	if err := context.Cause(ctx); err != nil { // both were true
		<-c.writing
		return err
	}
	written := make(chan error, 1)
	go func() { // ends with the connection at the latest
		_, err := c.conn.Write(line)
		if err != nil {
			c.conn.Close()
		}
		<-c.writing
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrClosed, err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Events hands out QEMU's events, oldest first. It is closed when the
// connection has ended, after the last event. Events beyond the buffer are
// dropped; Dropped counts them.
func (c *Client) Events() <-chan Event { return c.events }

// Dropped is the number of events nobody read in time.
func (c *Client) Dropped() uint64 { return c.dropped.Load() }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection and waits for its reader. Pending commands return
// ErrClosed.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, c.err)
}

// read is the one reader; it ends with the connection.
func (c *Client) read(greeted chan<- struct{}) {
	defer close(c.done)
	defer close(c.events)
	d := newDecoder(c.conn)
	for {
		m, err := d.next()
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			c.conn.Close()
			return
		}
		switch {
		case m.Event != "":
			select {
			case c.events <- m.event():
			default:
				c.dropped.Add(1)
			}
		case m.ID != nil:
			c.mu.Lock()
			answer := c.pending[*m.ID]
			delete(c.pending, *m.ID) // a second answer to one id has nowhere to go
			c.mu.Unlock()
			if answer != nil {
				answer <- m
			}
		case m.QMP != nil && greeted != nil:
			close(greeted)
			greeted = nil
		}
	}
}
