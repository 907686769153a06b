package qemu

import (
	"time"

	"golang.org/x/sys/unix"
)

// readTSC reads the processor's time stamp counter.
func readTSC() uint64

// tscKHz is the rate of the host's time stamp counter in kHz, or 0 when no
// clock can be read. A guest under TCG reads the host's counter, so this is its
// rate too. Linux tells the rate to no program everywhere, hence the
// measurement: 50 ms against the raw clock, right to a few millionths.
func tscKHz() int {
	begin, ok1 := sampleTSC()
	time.Sleep(50 * time.Millisecond)
	end, ok2 := sampleTSC()
	if !ok1 || !ok2 || end.ns <= begin.ns {
		return 0
	}
	ticks, ns := end.tsc-begin.tsc, uint64(end.ns-begin.ns)
	return int((ticks*1e6 + ns/2) / ns)
}

type tscSample struct {
	tsc uint64
	ns  int64
}

// sampleTSC reads both clocks at one moment: of several tries it takes the one
// that was interrupted least.
func sampleTSC() (best tscSample, ok bool) {
	least := ^uint64(0)
	for range 20 {
		var ts unix.Timespec
		before := readTSC()
		err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts)
		after := readTSC()
		if err == nil && after-before < least {
			least = after - before
			best = tscSample{tsc: before + least/2, ns: ts.Nano()}
			ok = true
		}
	}
	return best, ok
}
