package node

import (
	"maps"
	"slices"
	"time"
)

// A machine's share of processor is a weight among all that want one, always,
// and a hard limit once it has used up a burst allowance. So starting and short
// commands run at full speed, and no machine gets more than it pays for over
// time, whether others want the processor or not.

// DefaultBurst is how much processor time a machine may use above its share
// before it is limited.
const DefaultBurst = 30 * time.Second

// burstEvery is how often use is looked at: so much, times its processors, can
// a machine use beyond its allowance.
const burstEvery = 250 * time.Millisecond

// burst is one machine's allowance.
type burst struct {
	left    time.Duration
	limited bool
	at      time.Time
	cpu     time.Duration // its monitor's processor time, then
}

// newBurst is a full allowance.
func newBurst(allowance time.Duration, now time.Time, cpu time.Duration) *burst {
	return &burst{left: allowance, at: now, cpu: cpu}
}

// account charges what was used since the last look and refills at the rate of
// the share, in thousandths of a processor. It reports whether the machine has
// to be limited from now on. A limit is lifted when a tenth of the allowance is
// back, so that it does not come and go with every look.
func (b *burst) account(now time.Time, cpu time.Duration, milliCPU int, allowance time.Duration) bool {
	earned := time.Duration(int64(now.Sub(b.at)) * int64(milliCPU) / 1000)
	b.left = min(allowance, b.left+earned-(cpu-b.cpu))
	b.at, b.cpu = now, cpu
	switch {
	case b.left <= 0:
		b.limited = true
	case b.left >= allowance/10:
		b.limited = false
	}
	return b.limited
}

// keepShares looks at what machines use, and limits those that have used up
// their allowance, until the node closes. A machine that was taken over from
// another process begins with a full one.
func (n *Node) keepShares() {
	tick := time.NewTicker(burstEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.quit:
			return
		case <-tick.C:
		}
		n.mu.Lock()
		machines := slices.Collect(maps.Values(n.live))
		n.mu.Unlock()
		for _, mc := range machines {
			n.keepShare(mc, time.Now())
		}
	}
}

// keepShare looks at one machine. Only keepShares calls it.
func (n *Node) keepShare(mc *machine, now time.Time) {
	share := mc.record.Claim.MilliCPU
	cpu, err := mc.vm.CPUTime()
	if err != nil || share == 0 {
		return // it has ended, or is of an older version of this program
	}
	// One that was taken over may have been limited by whoever had it before.
	first := mc.burst == nil
	if first {
		mc.burst = newBurst(n.burst, now, cpu)
	}
	was := mc.burst.limited
	limited := mc.burst.account(now, cpu, share, n.burst)
	if limited == was && !first {
		return
	}
	if !limited {
		share = 0
	}
	if err := n.group(mc.record.Name).limit(share); err != nil {
		select {
		case <-mc.vm.Done():
		default:
			n.log.Error("a machine's share of processor cannot be set", "machine", mc.id, "limited", limited, "err", err)
		}
		// Tried again at the next look.
		if mc.burst.limited = was; first {
			mc.burst = nil
		}
	}
}
