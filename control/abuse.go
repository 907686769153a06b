package control

import (
	"context"
	"time"

	"github.com/eqvps/eqvps"
)

// DefaultCPUAbuseWindow is how long a sandbox may keep its share of processor
// full without a break.
const DefaultCPUAbuseWindow = 15 * time.Minute

// fullShare is how much of its share, in percent, a sandbox uses that keeps it
// full: what it does not get because the host is busy does not count as a break.
const fullShare = 95

// samplesPerWindow is how many times the use of processor is looked at in a
// window.
const samplesPerWindow = 60

// load is how busy a sandbox has been.
type load struct {
	at   time.Time     // of the last sample
	cpu  time.Duration // of its machine, then
	full time.Time     // since when its share is full; zero: it is not
}

// abuses takes a sample, if it is time for one, and reports whether the sandbox
// has kept its share full for longer than the window.
func (l *live) abuses(now time.Time, window time.Duration) bool {
	ld := &l.load
	if !ld.at.IsZero() && now.Sub(ld.at) < window/samplesPerWindow {
		return false
	}
	cpu, err := l.machine.CPUTime()
	if err != nil {
		return false
	}
	elapsed, used := now.Sub(ld.at), cpu-ld.cpu
	first := ld.at.IsZero()
	begun := ld.at
	ld.at, ld.cpu = now, cpu
	if first {
		return false
	}
	// used / elapsed >= fullShare % of milliCPU / 1000
	if int64(used)*1000*100 < int64(elapsed)*int64(l.milliCPU)*fullShare {
		ld.full = time.Time{}
		return false
	}
	if ld.full.IsZero() {
		ld.full = begun
	}
	return now.Sub(ld.full) > window
}

// stopAbuse ends the sandboxes that keep their processor full for too long;
// persistent ones are paused.
func (s *Service) stopAbuse(now time.Time) {
	if s.abuse < 0 {
		return
	}
	for _, l := range s.all() {
		if !l.abuses(now, s.abuse) || l.ending[eqvps.ReasonCPUAbuse].Swap(true) {
			continue
		}
		s.background(func(ctx context.Context) {
			defer l.ending[eqvps.ReasonCPUAbuse].Store(false)
			s.endIfDue(ctx, l, eqvps.ReasonCPUAbuse)
		})
	}
}
