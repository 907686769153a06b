package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/eqvps/eqvps"
)

// TestRestartOfPersistent: every state that a server can leave behind, with what
// the host may still have, comes back to life or stays paused.
func TestRestartOfPersistent(t *testing.T) {
	type world struct {
		state   eqvps.State
		reason  eqvps.Reason
		machine bool // still runs
		paused  bool // lies paused
	}
	for name, c := range map[string]struct {
		world
		wantState eqvps.State
		last      eqvps.EventKind
	}{
		"running":                       {world{eqvps.StateRunning, "", true, false}, eqvps.StateRunning, eqvps.EventStarted},
		"running, host lost":            {world{eqvps.StateRunning, "", false, false}, eqvps.StateRunning, eqvps.EventRebooted},
		"pausing, cut short":            {world{eqvps.StatePausing, eqvps.ReasonCall, true, false}, eqvps.StateRunning, eqvps.EventResumed},
		"pausing, cut short, host lost": {world{eqvps.StatePausing, eqvps.ReasonCall, false, false}, eqvps.StateRunning, eqvps.EventRebooted},
		"pausing, done":                 {world{eqvps.StatePausing, eqvps.ReasonCall, false, true}, eqvps.StateRunning, eqvps.EventResumed},
		"paused by a call":              {world{eqvps.StatePaused, eqvps.ReasonCall, false, true}, eqvps.StatePaused, eqvps.EventStarted},
		"paused when idle":              {world{eqvps.StatePaused, eqvps.ReasonIdle, false, true}, eqvps.StatePaused, eqvps.EventStarted},
		"paused for a stop of the host": {world{eqvps.StatePaused, eqvps.ReasonShutdown, false, true}, eqvps.StateRunning, eqvps.EventResumed},
		"resuming, not begun":           {world{eqvps.StateResuming, eqvps.ReasonIdle, false, true}, eqvps.StateRunning, eqvps.EventResumed},
		"resuming, done":                {world{eqvps.StateResuming, eqvps.ReasonIdle, true, false}, eqvps.StateRunning, eqvps.EventResumed},
		"resuming, lost":                {world{eqvps.StateResuming, eqvps.ReasonIdle, false, false}, eqvps.StateRunning, eqvps.EventRebooted},
		"starting":                      {world{eqvps.StateStarting, "", true, false}, eqvps.StateDeleted, eqvps.EventEnded},
		"deleting":                      {world{eqvps.StateDeleting, "", true, true}, eqvps.StateDeleted, eqvps.EventStarted},
	} {
		t.Run(name, inBubble(func(t *testing.T, b *bench) {
			sb := b.persistent(eqvps.CreateSandbox{Env: map[string]string{"A": "1"}})
			time.Sleep(time.Hour)
			synctest.Wait()
			gone := time.Now()
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if !c.machine {
				b.host.machine(sb.ID).die()
				delete(b.host.machines, sb.ID)
			}
			if c.paused {
				b.host.paused[sb.ID] = true
			}
			time.Sleep(10 * time.Hour) // nobody is there
			b.startAfter(sb.ID, func(sb *eqvps.Sandbox) {
				sb.State, sb.PauseReason = c.state, c.reason
				if c.state != eqvps.StateRunning {
					sb.Halt(gone)
				}
			})
			got := b.get(sb.ID)
			if got.State != c.wantState {
				t.Fatalf("it is %s (%s)", got.State, got.PauseReason)
			}
			if kinds := b.kinds(sb.ID); kinds[len(kinds)-1] != c.last {
				t.Errorf("events %v, want %s last", kinds, c.last)
			}
			if got.State == eqvps.StateRunning {
				b.exec(sb.ID, "")
				if env := b.host.machine(sb.ID).env; env["A"] != "1" {
					t.Errorf("its variables are %q", env)
				}
			}
			// Time that nobody can account for is not charged; a machine that ran on is.
			most := time.Hour
			if c.state == eqvps.StateRunning && c.machine {
				most = 11 * time.Hour
			}
			if ran := got.Running(time.Now()); ran > most || ran < most-time.Minute && c.wantState == eqvps.StateRunning {
				t.Errorf("it ran %s, want %s", ran, most)
			}
			if n := b.host.count(); (n == 1) != (c.wantState != eqvps.StateDeleted) {
				t.Errorf("the host has %d machines", n)
			}
		}))
	}
}
