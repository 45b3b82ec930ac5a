package supervisor

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/guest/guestv1"
)

// memory returns a field of /proc/PID/smaps_rollup in KiB.
func memory(t testing.TB, pid int, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Skip(err)
	}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		var kib int
		if rest, ok := strings.CutPrefix(sc.Text(), field+":"); ok {
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("no %s in smaps_rollup", field)
	return 0
}

// A supervisor idles for most of its life and there is one for each VM: after
// a burst its memory goes back to the host.
func TestIdleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("measures the race detector")
	}
	const bound = 25 << 10 // KiB
	c := launch(t, testOptions(t, &fakeBackend{}))
	pid := c.Hello().PID
	t.Logf("after the boot: PSS %d KiB, RSS %d KiB, anonymous %d KiB", memory(t, pid, "Pss"), memory(t, pid, "Rss"), memory(t, pid, "Anonymous"))
	up, err := guestOf(c).files.PutTar(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 256<<10)
	for range 256 {
		if err := up.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Data{Data: data}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := up.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	t.Logf("after 64 MiB up: PSS %d KiB, RSS %d KiB, anonymous %d KiB", memory(t, pid, "Pss"), memory(t, pid, "Rss"), memory(t, pid, "Anonymous"))
	burst, pss := memory(t, pid, "Anonymous"), 0
	for range 300 {
		if pss = memory(t, pid, "Pss"); pss < bound && memory(t, pid, "Anonymous") < burst {
			break
		}
		time.Sleep(100 * time.Millisecond) // the kernel announces nothing
	}
	t.Logf("idle: PSS %d KiB, RSS %d KiB, anonymous %d KiB", pss, memory(t, pid, "Rss"), memory(t, pid, "Anonymous"))
	if pss >= bound {
		t.Errorf("PSS %d KiB, want less than %d", pss, bound)
	}
}
