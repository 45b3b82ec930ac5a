package network

import (
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
)

func benchRoom(b *testing.B) room {
	return newRoom(b, Config{Log: slog.New(slog.DiscardHandler)})
}

// BenchmarkConnect is a TCP connection from the guest to the world and back.
func BenchmarkConnect(b *testing.B) {
	r := benchRoom(b)
	r.world.serve(b, public, func(*net.TCPConn) {})
	for b.Loop() {
		c, err := r.guest.dial(b.Context(), public)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, c)
		c.Close()
	}
}

const benchChunk = 4 << 20

func BenchmarkToGuest(b *testing.B) {
	r := benchRoom(b)
	chunk := noise(benchChunk)
	r.world.serve(b, public, func(c *net.TCPConn) {
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	c := r.guest.mustDial(public)
	b.SetBytes(benchChunk)
	for b.Loop() {
		if _, err := io.CopyN(io.Discard, c, benchChunk); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
}

func BenchmarkFromGuest(b *testing.B) {
	r := benchRoom(b)
	arrived := make(chan int64, 1)
	r.world.serve(b, public, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		arrived <- n
	})
	c := r.guest.mustDial(public)
	chunk := noise(benchChunk)
	b.SetBytes(benchChunk)
	var sent int64
	for b.Loop() {
		n, err := c.Write(chunk)
		if err != nil {
			b.Fatal(err)
		}
		sent += int64(n)
	}
	c.CloseWrite()
	if n := <-arrived; n != sent {
		b.Errorf("%d of %d bytes arrived", n, sent)
	}
}

// BenchmarkIdle reports what one network without flows holds on the heap.
func BenchmarkIdle(b *testing.B) {
	heap := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	bareNetwork(b, Config{}).Close() // what is made once
	before := heap()
	var all []*Network
	for b.Loop() {
		n, err := New(Config{Resolver: noResolver{}, Dialer: &world{}})
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, n)
	}
	after := heap()
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(all)), "heap-B/network")
	b.ReportMetric(float64(after.StackInuse-before.StackInuse)/float64(len(all)), "stack-B/network")
	for _, n := range all {
		n.Close()
	}
}
