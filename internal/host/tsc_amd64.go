package host

import (
	"sync"
	"time"
)

func readTSC() uint64

// TSCKilohertz is the rate of the processor's time stamp counter, measured once
// for 20 ms; 0 where there is none. The counter of an emulated x86 guest is the
// host's, and a guest that measures it while the host is busy can be wrong by
// a multiple, and its clock with it.
var TSCKilohertz = sync.OnceValue(func() int64 {
	t0, c0 := readBoth()
	time.Sleep(20 * time.Millisecond) // the measured interval
	t1, c1 := readBoth()
	if c1 <= c0 {
		return 0
	}
	return int64(float64(c1-c0) / t1.Sub(t0).Seconds() / 1000)
})

// readBoth reads counter and clock at one moment: of several readings, the one
// that took the least time was not interrupted between the two.
func readBoth() (at time.Time, tsc uint64) {
	best := ^uint64(0)
	for range 32 {
		before := readTSC()
		now := time.Now()
		after := readTSC()
		if d := after - before; d < best {
			best, at, tsc = d, now, before+d/2
		}
	}
	return at, tsc
}
