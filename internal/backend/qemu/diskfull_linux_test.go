package qemu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/qmp"
)

// TestAFullDiskPausesOnly: a VM that QEMU paused for want of room goes on as
// soon as there is some, and one that is paused for another reason does not.
func TestAFullDiskPausesOnly(t *testing.T) {
	pause := fullPause
	fullPause = time.Millisecond
	t.Cleanup(func() { fullPause = pause })
	ours, theirs := net.Pipe()
	var mu sync.Mutex
	status, room, conts := "io-error", 3, 0 // there is room at the third try
	runs := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		fmt.Fprintln(theirs, `{"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}}, "capabilities": []}}`)
		for in := bufio.NewScanner(theirs); in.Scan(); {
			var c struct {
				Execute string          `json:"execute"`
				ID      json.RawMessage `json:"id"`
			}
			if json.Unmarshal(in.Bytes(), &c) != nil {
				continue
			}
			mu.Lock()
			answer := "{}"
			switch c.Execute {
			case "query-status":
				answer = fmt.Sprintf(`{"status": %q, "running": %t}`, status, status == "running")
				if status == "running" {
					close(runs)
					status = "seen running"
				}
			case "cont":
				if conts++; conts == room {
					status = "running"
				}
			}
			mu.Unlock()
			fmt.Fprintf(theirs, "{\"return\": %s, \"id\": %s}\n", answer, c.ID)
		}
	})
	control, err := qmp.Connect(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{b: &Backend{c: Config{Logger: slog.New(slog.DiscardHandler)}}, name: "vm-1", control: control}
	full := make(chan struct{}, 1)
	wg.Go(func() { v.resume(t.Context(), full) })
	t.Cleanup(func() { control.Close(); theirs.Close(); wg.Wait() })
	full <- struct{}{}
	select {
	case <-runs:
	case <-time.After(20 * time.Second):
		t.Fatal("the VM was not let go on")
	}
	mu.Lock()
	defer mu.Unlock()
	if conts != room {
		t.Errorf("%d tries, want %d", conts, room)
	}
}

func TestDiskFull(t *testing.T) {
	for data, want := range map[string]bool{
		`{"action": "stop", "nospace": true, "reason": "No space left on device"}`: true,
		`{"action": "stop", "nospace": false}`:                                     false,
		`{"action": "report", "nospace": true}`:                                    false,
		`[]`:                                                                       false,
		``:                                                                         false,
	} {
		if got := diskFull(qmp.Event{Name: "BLOCK_IO_ERROR", Data: json.RawMessage(data)}); got != want {
			t.Errorf("%s: %t", data, got)
		}
	}
	if diskFull(qmp.Event{Name: "STOP", Data: json.RawMessage(`{"action": "stop", "nospace": true}`)}) {
		t.Error("another event")
	}
}
