package control_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eqvps/eqvps"
)

// TestEphemeralDiesOfMemory: the reason is told.
func TestEphemeralDiesOfMemory(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb, err := b.Create(b.ctx, eqvps.CreateSandbox{})
		if err != nil {
			t.Fatal(err)
		}
		m := b.host.machine(sb.ID)
		m.cause = eqvps.ReasonOOM
		m.die()
		synctest.Wait()
		if got := b.get(sb.ID); got.Reason != eqvps.ReasonOOM {
			t.Errorf("the reason is %q", got.Reason)
		}
	})(t)
}

// TestPausedSandboxEndsAtItsTTL: ttl is hard.
func TestPausedSandboxEndsAtItsTTL(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{TTL: time.Hour})
		if _, err := b.Pause(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if got := b.get(sb.ID); !got.Ended() || got.Reason != eqvps.ReasonTTL {
			t.Errorf("it is %s (%s)", got.State, got.Reason)
		}
	})(t)
}

func TestExtendAndKeepAlive(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb, err := b.Create(b.ctx, eqvps.CreateSandbox{TTL: time.Hour, IdleTimeout: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []eqvps.Extend{{}, {By: -time.Second}, {By: 24 * time.Hour}, {By: time.Hour, IdleTimeout: time.Second}, {IdleTimeout: 25 * time.Hour}} {
			if _, err := b.Extend(b.ctx, sb.ID, e); err == nil {
				t.Errorf("%+v was accepted", e)
			}
		}
		if got := b.get(sb.ID); got.TTL != time.Hour || got.IdleTimeout != 10*time.Minute {
			t.Errorf("a refused change changed %+v", got)
		}
		time.Sleep(9 * time.Minute)
		if _, err := b.Extend(b.ctx, sb.ID, eqvps.Extend{By: 23 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		for range 8 { // 72 minutes: beyond the first time to live
			time.Sleep(9 * time.Minute)
			if _, err := b.KeepAlive(b.ctx, sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Extend(b.ctx, sb.ID, eqvps.Extend{IdleTimeout: time.Hour}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		b.want(sb.ID, eqvps.StateRunning, "")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := b.get(sb.ID); got.Reason != eqvps.ReasonIdle {
			t.Errorf("it is %s (%s)", got.State, got.Reason)
		}
		_, err = b.Extend(b.ctx, sb.ID, eqvps.Extend{By: time.Second})
		wantCode(t, err, eqvps.CodeSandboxEnded)
		b.wantEvents(sb.ID, eqvps.EventCreated, eqvps.EventStarted, eqvps.EventExtended, eqvps.EventExtended, eqvps.EventEnded)
	})(t)
}

// TestCPUAbuse: a share that is kept full for the whole window ends an
// ephemeral sandbox and pauses a persistent one; a break begins a new window.
func TestCPUAbuse(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		busy := func(id string, share func(since time.Duration) float64) {
			m, began := b.host.machine(id), time.Now()
			var mu sync.Mutex
			var used time.Duration
			last := began
			cpu := func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				used += time.Duration(float64(now.Sub(last)) * share(now.Sub(began)))
				last = now
				return used
			}
			m.cpu.Store(&cpu)
		}
		c := eqvps.CreateSandbox{IdleTimeout: 24 * time.Hour} // small: half a processor
		create := func(c eqvps.CreateSandbox) string {
			sb, err := b.Create(b.ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			return sb.ID
		}
		full, half, pauses := create(c), create(c), create(c)
		persistent := b.persistent(c).ID
		busy(full, func(time.Duration) float64 { return 0.5 })
		busy(half, func(time.Duration) float64 { return 0.4 })
		busy(persistent, func(time.Duration) float64 { return 1 })
		busy(pauses, func(at time.Duration) float64 {
			if at%(10*time.Minute) < time.Minute {
				return 0
			}
			return 0.5
		})
		time.Sleep(14 * time.Minute)
		synctest.Wait()
		for _, id := range []string{full, half, pauses, persistent} {
			b.want(id, eqvps.StateRunning, "")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := b.get(full); got.Reason != eqvps.ReasonCPUAbuse {
			t.Errorf("the full one is %s (%s)", got.State, got.Reason)
		}
		b.want(persistent, eqvps.StatePaused, eqvps.ReasonCPUAbuse)
		b.exec(persistent, eqvps.CodePaused) // it does not just go on
		time.Sleep(2 * time.Hour)
		b.want(half, eqvps.StateRunning, "")
		b.want(pauses, eqvps.StateRunning, "")
	})(t)
}

func TestDrain(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		p := b.persistent(eqvps.CreateSandbox{})
		e, err := b.Create(b.ctx, eqvps.CreateSandbox{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Drain(eqvps.WithPrincipal(b.ctx, eqvps.Principal{AccountID: "acc_a"}))
		wantCode(t, err, eqvps.CodeForbidden)
		n, err := b.Drain(b.ctx)
		if err != nil || n != 1 {
			t.Fatalf("%d paused, %v", n, err)
		}
		b.want(p.ID, eqvps.StatePaused, eqvps.ReasonShutdown)
		b.want(e.ID, eqvps.StateRunning, "")
		b.exec(p.ID, eqvps.CodeCapacity)
		_, err = b.Create(b.ctx, eqvps.CreateSandbox{})
		wantCode(t, err, eqvps.CodeCapacity)
		b.restart(p.ID)
		b.want(p.ID, eqvps.StateRunning, "")
		b.exec(p.ID, "")
	})(t)
}
