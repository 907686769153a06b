package control

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/eqvps/eqvps"
)

// live is a sandbox whose machine runs: its connection and its activity.
type live struct {
	id, account string
	mode        eqvps.Mode
	machine     eqvps.Machine
	before      eqvps.MachineUsage // of its earlier machines
	milliCPU    int                // its share of processor
	since       time.Time          // when this machine became usable
	rebooted    bool               // this machine came back from its disk

	env sync.Mutex // one change of variables at a time

	mu          sync.Mutex
	idleTimeout time.Duration // 0: none
	expires     time.Time
	calls       int       // calls under way: a sandbox that works is not idle
	closed      bool      // it is about to be paused: no call begins any more
	last        time.Time // when the last call began or ended
	stored      time.Time // what the store knows of last

	load load // used by the reaper only

	// ending is set while the sandbox is being asked about its tasks or ended
	// for that reason.
	ending map[eqvps.Reason]*atomic.Bool
}

func (s *Service) newLive(sb *eqvps.Sandbox, m eqvps.Machine, now time.Time) *live {
	l := &live{
		id: sb.ID, account: sb.AccountID, mode: sb.Mode, machine: m, before: sb.Before, since: now,
		idleTimeout: sb.IdleTimeout, expires: sb.ExpiresAt(),
		last: now, stored: sb.LastActive,
		ending: map[eqvps.Reason]*atomic.Bool{eqvps.ReasonIdle: {}, eqvps.ReasonTTL: {}, eqvps.ReasonCPUAbuse: {}},
	}
	if t, err := s.tariffs.Find(sb.Tariff); err == nil {
		l.milliCPU = t.MilliCPU
	}
	return l
}

// begin counts a call; the function it returns ends it. ok is false when the
// sandbox is about to be paused.
func (l *live) begin(now func() time.Time) (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false
	}
	l.calls++
	l.last = now()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls--
		l.last = now()
	}), true
}

// shut keeps calls from beginning. If it shall be idle and is not, it stays
// open and ok is false.
func (l *live) shut(idle bool, now time.Time) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if idle && !l.idle(now) {
		return false
	}
	l.closed = true
	return true
}

// reopen is the reverse of shut.
func (l *live) reopen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = false
}

// idle reports whether it has been without use for its idle timeout.
func (l *live) idle(now time.Time) bool {
	return l.idleTimeout > 0 && l.calls == 0 && now.Sub(l.last) >= l.idleTimeout
}

// activeAt notes activity that a call did not tell of.
func (l *live) activeAt(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.last) {
		l.last = at
	}
}

func (l *live) lastActive() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// setTimes takes over what was changed in the record.
func (l *live) setTimes(sb *eqvps.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idleTimeout, l.expires = sb.IdleTimeout, sb.ExpiresAt()
}

// due says whether, and why, the sandbox is over at a time.
func (l *live) due(now time.Time) (eqvps.Reason, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !now.Before(l.expires):
		return eqvps.ReasonTTL, true
	case l.idle(now):
		return eqvps.ReasonIdle, true
	}
	return "", false
}

// left is how long it may live on.
func (l *live) left(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires.Sub(now)
}

// overdue reports whether a sandbox that would be idle has been so for longer
// than a grace.
func (l *live) overdue(now time.Time, grace time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.last) >= l.idleTimeout+grace
}

// unstored returns the last activity if the store does not have it yet.
func (l *live) unstored() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.last.After(l.stored)
}

func (l *live) markStored(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored = at
}

// usage is what all machines of the sandbox have used. A machine that has just
// ended has no figures any more; then those given stay.
func (l *live) usage(known eqvps.MachineUsage) eqvps.MachineUsage {
	if cpu, err := l.machine.CPUTime(); err == nil {
		known.CPUTime = l.before.CPUTime + cpu
	}
	if n, err := l.machine.EgressBytes(); err == nil {
		known.EgressBytes = l.before.EgressBytes + n
	}
	return known
}

// recordUsage writes the last figures into the record.
func (l *live) recordUsage(sb *eqvps.Sandbox) {
	u := l.usage(eqvps.MachineUsage{CPUTime: sb.CPUTime, EgressBytes: sb.EgressBytes})
	sb.CPUTime, sb.EgressBytes = u.CPUTime, u.EgressBytes
}
