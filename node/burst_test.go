package node

import (
	"testing"
	"time"
)

// TestBurst: a machine runs free until its allowance is used up, then at its
// share, and what it saves comes back at the rate of its share.
func TestBurst(t *testing.T) {
	const share, allowance = 500, 30 * time.Second
	now, cpu := time.Unix(0, 0), time.Duration(0)
	b := newBurst(allowance, now, cpu)
	// run uses so many processors for a time and returns for how long it was free.
	run := func(processors float64, d time.Duration) (free time.Duration) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(burstEvery)
			used := processors
			if b.limited {
				used = min(used, share/1000.0)
			} else {
				free += burstEvery
			}
			cpu += time.Duration(used * float64(burstEvery))
			b.account(now, cpu, share, allowance)
		}
		return free
	}
	if free := run(1, time.Hour); free != time.Minute { // 30 s above half a processor
		t.Errorf("at full speed it was free for %s, want 1m", free)
	}
	if used := cpu; used != 30*time.Minute+30*time.Second {
		t.Errorf("in an hour it used %s", used)
	}
	if free := run(0, 10*time.Second); !(free < 5*time.Second) || b.limited {
		t.Errorf("after 10 s of rest: limited %v, %s back", b.limited, b.left)
	}
	if b.left != 5*time.Second {
		t.Errorf("10 s of rest gave back %s", b.left)
	}
	run(0, 10*time.Hour)
	if b.left != allowance {
		t.Errorf("the allowance grew to %s", b.left)
	}
	// One that stays within its share is never limited.
	if free := run(0.5, 10*time.Hour); free != 10*time.Hour {
		t.Errorf("within its share it was free for %s of 10 h", free)
	}
}
