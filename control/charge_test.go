package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/eqvps/eqvps"
)

// TestChargeIsOfTrueIntervals: whatever happens to a sandbox and in whichever
// order, its charge is the pure function of the time in which it was usable.
func TestChargeIsOfTrueIntervals(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mode := rapid.SampledFrom([]eqvps.Mode{eqvps.Ephemeral, eqvps.Persistent}).Draw(rt, "mode")
		ops := rapid.SliceOfN(rapid.SampledFrom([]string{"pause", "resume", "from disk", "die", "restart", "lose", "use"}), 1, 12).Draw(rt, "ops")
		rests := rapid.SliceOfN(rapid.Int64Range(0, int64(9*time.Hour)), len(ops)+1, len(ops)+1).Draw(rt, "rests")
		synctest.Test(t, func(t *testing.T) {
			var ran eqvps.RunTime
			var open time.Time
			b := newBench(t)
			sb, err := b.Create(b.ctx, eqvps.CreateSandbox{Mode: mode, IdleTimeout: 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			open = time.Now()
			// turn notes an interval's end, and a new one's begin if it runs then.
			turn := func(end time.Time) {
				synctest.Wait()
				if !open.IsZero() {
					ran = ran.Add(open, end)
					open = time.Time{}
				}
				if b.get(sb.ID).State == eqvps.StateRunning {
					open = time.Now()
				}
			}
			for i, op := range ops {
				time.Sleep(time.Duration(rests[i]))
				synctest.Wait()
				if b.get(sb.ID).Ended() { // its ttl
					break
				}
				switch op {
				case "pause":
					_, _ = b.Pause(b.ctx, sb.ID)
					turn(time.Now())
				case "resume", "from disk":
					_, _ = b.Resume(b.ctx, sb.ID, op == "from disk")
					turn(time.Now())
				case "use":
					_, _ = b.KeepAlive(b.ctx, sb.ID)
					turn(time.Now())
				case "die":
					if m := b.host.machine(sb.ID); m != nil {
						m.die()
					}
					turn(time.Now())
				case "restart":
					b.restart(sb.ID)
					turn(time.Now())
				case "lose": // the host goes down for a while
					if err := b.Close(); err != nil {
						t.Fatal(err)
					}
					gone := time.Now()
					if m := b.host.machine(sb.ID); m != nil {
						m.die()
						delete(b.host.machines, sb.ID)
					}
					time.Sleep(time.Duration(rests[i]))
					b.startAfter(sb.ID, nil)
					turn(gone)
				}
			}
			end := b.get(sb.ID)
			if !end.Ended() {
				if end, err = b.Delete(b.ctx, sb.ID); err != nil {
					t.Fatal(err)
				}
			}
			turn(end.EndedAt)
			want := eqvps.EphemeralCharge(end.Hourly, ran.Total())
			if mode == eqvps.Persistent {
				want = eqvps.PersistentCharge(end.Hourly, ran)
			}
			later := time.Now().Add(1000 * time.Hour)
			if end.Running(later) != ran.Total() || end.Cost(later) != want {
				t.Errorf("%s %v: it ran %s and cost %d, want %s and %d", mode, ops, end.Running(later), end.Cost(later), ran.Total(), want)
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}
