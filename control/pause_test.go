package control_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/control"
)

// bench is a service over a host and a store in memory, for tests in a bubble
// of time.
type bench struct {
	t     *testing.T
	host  *memHost
	store *memStore
	abuse time.Duration
	ctx   context.Context
	*control.Service
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, host: newMemHost(), store: newMemStore(),
		ctx: eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_a", Admin: true})}
	b.start()
	t.Cleanup(func() { b.Close() })
	return b
}

func (b *bench) start() {
	b.t.Helper()
	b.Service = control.New(control.Config{
		Store: b.store, Host: b.host, Tariffs: eqvps.DefaultTariffs, Keys: memKeys{}, CPUAbuseWindow: b.abuse,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err := b.Recover(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

// restart is a server that stops and another that starts.
func (b *bench) restart(id string) {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.startAfter(id, nil)
}

// startAfter starts a server on the record as mark leaves it.
func (b *bench) startAfter(id string, mark func(*eqvps.Sandbox)) {
	b.t.Helper()
	if mark != nil {
		if _, err := b.store.UpdateSandbox(b.ctx, id, func(sb *eqvps.Sandbox) error { mark(sb); return nil }); err != nil {
			b.t.Fatal(err)
		}
	}
	b.start()
	synctest.Wait()
}

func (b *bench) persistent(c eqvps.CreateSandbox) *eqvps.Sandbox {
	b.t.Helper()
	c.Mode = eqvps.Persistent
	sb, err := b.Create(b.ctx, c)
	if err != nil {
		b.t.Fatal(err)
	}
	return sb
}

func (b *bench) get(id string) *eqvps.Sandbox {
	b.t.Helper()
	sb, err := b.Get(b.ctx, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return sb
}

func (b *bench) want(id string, state eqvps.State, pause eqvps.Reason) *eqvps.Sandbox {
	b.t.Helper()
	synctest.Wait()
	sb := b.get(id)
	if sb.State != state || sb.PauseReason != pause {
		b.t.Errorf("the sandbox is %s (%s), want %s (%s)", sb.State, sb.PauseReason, state, pause)
	}
	return sb
}

// exec runs a command, which must come to its end with the code given.
func (b *bench) exec(id string, want eqvps.Code) {
	b.t.Helper()
	g, err := b.Use(b.ctx, id)
	if err == nil {
		_, err = g.Exec(b.ctx, eqvps.ExecRequest{Command: "true"}, nil)
	}
	if got := codeOf(err); got != want {
		b.t.Errorf("a command ends in %q (%v), want %q", got, err, want)
	}
}

func codeOf(err error) eqvps.Code {
	if err == nil {
		return ""
	}
	return eqvps.ErrorCode(err)
}

func (b *bench) kinds(id string) (out []eqvps.EventKind) {
	b.t.Helper()
	list, err := b.Events(b.ctx, id, 0, 100)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Kind)
	}
	return out
}

func (b *bench) wantEvents(id string, want ...eqvps.EventKind) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.kinds(id)); diff != "" {
		b.t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

func inBubble(f func(t *testing.T, b *bench)) func(*testing.T) {
	return func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newBench(t)) })
	}
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		sb := b.persistent(eqvps.CreateSandbox{Env: map[string]string{"KEY": "\xffvalue"}})
		b.exec(sb.ID, "")
		time.Sleep(90 * time.Minute)
		paused, err := b.Pause(b.ctx, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if paused.State != eqvps.StatePaused || paused.PausedAt.IsZero() || paused.CPUTime != 7*time.Second {
			t.Errorf("paused: %+v", paused)
		}
		b.exec(sb.ID, eqvps.CodePaused)
		if err := b.Ping(b.ctx, sb.ID); eqvps.ErrorCode(err) != eqvps.CodePaused {
			t.Errorf("ping: %v", err)
		}
		if _, err := b.Pause(b.ctx, sb.ID); err != nil {
			t.Errorf("pausing again: %v", err)
		}
		time.Sleep(200 * time.Hour)
		if got := b.get(sb.ID); got.Running(time.Now()) != 90*time.Minute || got.Cost(time.Now()) != 66_000 {
			t.Errorf("it ran %s and cost %s", got.Running(time.Now()), got.Cost(time.Now()))
		}
		if _, err := b.Resume(b.ctx, sb.ID, false); err != nil {
			t.Fatal(err)
		}
		if env := b.host.machine(sb.ID).env; env["KEY"] != "\xffvalue" {
			t.Errorf("its variables came back as %q", env)
		}
		b.exec(sb.ID, "")
		time.Sleep(30 * time.Minute) // the second hour, which is paid
		u, err := b.Usage(b.ctx, sb.ID)
		if err != nil || u.Running != 2*time.Hour || u.Cost != 66_000 || u.CPUTime != 14*time.Second || u.EgressBytes != 22 {
			t.Errorf("usage %+v, %v", u, err)
		}
		if _, err := b.Resume(b.ctx, sb.ID, false); err != nil {
			t.Errorf("resuming one that runs: %v", err)
		}
		end, err := b.Delete(b.ctx, sb.ID)
		if err != nil || end.CPUTime != 14*time.Second || len(end.Sealed) != 0 {
			t.Errorf("deleted: %+v, %v", end, err)
		}
		_, err = b.Resume(b.ctx, sb.ID, false)
		wantCode(t, err, eqvps.CodeSandboxEnded)
		b.wantEvents(sb.ID, eqvps.EventCreated, eqvps.EventStarted, eqvps.EventPaused, eqvps.EventResumed, eqvps.EventEnded)

		// A paused one can be deleted, and only persistent ones can be paused.
		sb = b.persistent(eqvps.CreateSandbox{})
		if _, err := b.Pause(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Delete(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		if n := b.host.count(); n != 0 {
			t.Errorf("%d machines left", n)
		}
		e, err := b.Create(b.ctx, eqvps.CreateSandbox{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Pause(b.ctx, e.ID)
		wantCode(t, err, eqvps.CodeWrongMode)
		_, err = b.Pause(eqvps.WithPrincipal(b.ctx, eqvps.Principal{AccountID: "acc_b"}), sb.ID)
		wantCode(t, err, eqvps.CodeSandboxNotFound)
	})
}

// TestIdlePausesAndUseWakes: many who come at once wake it once, and who looks
// only does not.
func TestIdlePausesAndUseWakes(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{IdleTimeout: time.Minute})
		forever := b.persistent(eqvps.CreateSandbox{})
		time.Sleep(59 * time.Second)
		b.want(sb.ID, eqvps.StateRunning, "")
		time.Sleep(3 * time.Second)
		b.want(sb.ID, eqvps.StatePaused, eqvps.ReasonIdle)
		time.Sleep(time.Hour)
		b.want(sb.ID, eqvps.StatePaused, eqvps.ReasonIdle)
		b.want(forever.ID, eqvps.StateRunning, "")
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { b.exec(sb.ID, "") })
		}
		wg.Wait()
		b.want(sb.ID, eqvps.StateRunning, "")
		b.wantEvents(sb.ID, eqvps.EventCreated, eqvps.EventStarted, eqvps.EventPaused, eqvps.EventResumed)

		// Whoever asks for the pause means it.
		time.Sleep(2 * time.Minute)
		b.want(sb.ID, eqvps.StatePaused, eqvps.ReasonIdle)
		if _, err := b.Pause(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		b.exec(sb.ID, eqvps.CodePaused)
		if _, err := b.KeepAlive(b.ctx, sb.ID); eqvps.ErrorCode(err) != eqvps.CodePaused {
			t.Errorf("keep-alive of one that was paused by a call: %v", err)
		}
	})(t)
}

// TestIdlePauseYieldsToUse: a command that begins while the sandbox is asked
// about its tasks keeps it.
func TestIdlePauseYieldsToUse(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{IdleTimeout: time.Minute})
		m := b.host.machine(sb.ID)
		m.release = make(chan struct{})
		asked := make(chan struct{})
		wait := func() { <-asked }
		m.onAsk.Store(&wait)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		done := make(chan struct{})
		go func() { b.exec(sb.ID, ""); close(done) }()
		synctest.Wait()
		close(asked)
		b.want(sb.ID, eqvps.StateRunning, "")
		close(m.release)
		<-done
	})(t)
}

// TestPauseEndsCommands: whose connection it was is told of the pause.
func TestPauseEndsCommands(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{})
		b.host.machine(sb.ID).release = make(chan struct{})
		done := make(chan struct{})
		go func() { b.exec(sb.ID, eqvps.CodePaused); close(done) }()
		synctest.Wait()
		if _, err := b.Pause(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		<-done
	})(t)
}

func TestFailedPauseRunsOn(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{})
		time.Sleep(time.Hour)
		b.host.inject("pause", eqvps.Errorf(eqvps.CodeCapacity, "The server's disk is full."))
		_, err := b.Pause(b.ctx, sb.ID)
		wantCode(t, err, eqvps.CodeCapacity)
		b.want(sb.ID, eqvps.StateRunning, "")
		b.exec(sb.ID, "")
		time.Sleep(time.Hour)
		if got := b.get(sb.ID).Running(time.Now()); got != 2*time.Hour {
			t.Errorf("it ran %s", got)
		}
		b.wantEvents(sb.ID, eqvps.EventCreated, eqvps.EventStarted, eqvps.EventFailed)

		// One whose machine dies of the try comes back from its disk.
		m := b.host.machine(sb.ID)
		b.host.inject("pause", errors.New("died"))
		m.die()
		if _, err := b.Pause(b.ctx, sb.ID); err == nil {
			// The machine's end may be seen first; then it is brought back, and paused.
			t.Log("paused after it was brought back")
			return
		}
		b.want(sb.ID, eqvps.StateRunning, "")
		b.exec(sb.ID, "")
	})(t)
}

func TestFailedResume(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{IdleTimeout: time.Minute})
		time.Sleep(2 * time.Minute)
		b.host.inject("resume", eqvps.Errorf(eqvps.CodeStartFailed, "The paused memory is damaged."))
		b.exec(sb.ID, eqvps.CodeStartFailed)
		b.want(sb.ID, eqvps.StatePaused, eqvps.ReasonIdle)
		if b.host.reboots != 0 {
			t.Error("memory was dropped that nobody said could go")
		}
		if _, err := b.Resume(b.ctx, sb.ID, true); err != nil {
			t.Fatal(err)
		}
		b.want(sb.ID, eqvps.StateRunning, "")
		b.exec(sb.ID, "")
		b.wantEvents(sb.ID, eqvps.EventCreated, eqvps.EventStarted, eqvps.EventPaused, eqvps.EventFailed, eqvps.EventRebooted)
		// Also one that runs can be started anew.
		if _, err := b.Resume(b.ctx, sb.ID, true); err != nil || b.host.reboots != 2 {
			t.Errorf("%d reboots, %v", b.host.reboots, err)
		}
	})(t)
}

// TestMachineOfPersistentDies: it comes back from its disk, but does not turn
// in circles.
func TestMachineOfPersistentDies(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{})
		time.Sleep(time.Hour)
		b.host.machine(sb.ID).die()
		b.want(sb.ID, eqvps.StateRunning, "")
		b.exec(sb.ID, "")
		time.Sleep(time.Second)
		m := b.host.machine(sb.ID)
		m.cause = eqvps.ReasonOOM
		m.die()
		b.want(sb.ID, eqvps.StatePaused, eqvps.ReasonOOM)
		if n := b.host.reboots; n != 1 {
			t.Errorf("%d reboots, want 1", n)
		}
		time.Sleep(time.Hour)
		b.exec(sb.ID, "")
		got := b.want(sb.ID, eqvps.StateRunning, "")
		if ran := got.Running(time.Now()); ran != time.Hour+time.Second {
			t.Errorf("it ran %s", ran)
		}
		b.wantEvents(sb.ID, eqvps.EventCreated, eqvps.EventStarted, eqvps.EventRebooted, eqvps.EventFailed, eqvps.EventRebooted)
	})(t)
}

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

// TestVariablesOfPersistentComeBack: also those that were changed while it ran.
func TestVariablesOfPersistentComeBack(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		sb := b.persistent(eqvps.CreateSandbox{Env: eqvps.Env{"A": "1", "B": "2"}})
		if _, err := b.SetEnv(b.ctx, sb.ID, eqvps.EnvChange{Set: eqvps.Env{"C": "3"}, Remove: []string{"A"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Resume(b.ctx, sb.ID, true); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"B": "2", "C": "3"}, map[string]string(b.host.machine(sb.ID).env)); diff != "" {
			t.Errorf("variables differ (-want +got):\n%s", diff)
		}
		list, err := b.Events(b.ctx, sb.ID, 0, 10)
		if err != nil || list[2].Kind != eqvps.EventEnvChanged || list[2].Detail != "C A" {
			t.Errorf("events %+v, %v", list, err)
		}
	})(t)
}

// TestNetworkPolicyStays: each machine of a sandbox gets the policy that its
// record has, and a change reaches the one that runs.
func TestNetworkPolicyStays(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		want := func(id string, mode eqvps.NetworkMode) {
			t.Helper()
			if got := b.host.machine(id).network.Mode; got != mode {
				t.Errorf("the machine has the policy %q, want %q", got, mode)
			}
			if got := b.get(id).Network.Mode; got != mode {
				t.Errorf("the record has the policy %q, want %q", got, mode)
			}
		}
		sb := b.persistent(eqvps.CreateSandbox{Network: eqvps.NetworkPolicy{Mode: eqvps.NetworkNone}})
		want(sb.ID, eqvps.NetworkNone)
		if _, err := b.SetNetwork(b.ctx, sb.ID, eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted}); err != nil {
			t.Fatal(err)
		}
		want(sb.ID, eqvps.NetworkRestricted)
		if _, err := b.Pause(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := b.SetNetwork(b.ctx, sb.ID, eqvps.NetworkPolicy{Mode: eqvps.NetworkNone}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Resume(b.ctx, sb.ID, false); err != nil {
			t.Fatal(err)
		}
		want(sb.ID, eqvps.NetworkNone)
		_, err := b.SetNetwork(b.ctx, sb.ID, eqvps.NetworkPolicy{Mode: "closed"})
		wantCode(t, err, eqvps.CodeInvalidValue)
		if _, err := b.Delete(b.ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		_, err = b.SetNetwork(b.ctx, sb.ID, eqvps.NetworkPolicy{})
		wantCode(t, err, eqvps.CodeSandboxEnded)
	})(t)
}

// TestVaultIsBoundToItsSandbox: what is sealed for one cannot be put in
// another's record.
func TestVaultIsBoundToItsSandbox(t *testing.T) {
	inBubble(func(t *testing.T, b *bench) {
		one, two := b.persistent(eqvps.CreateSandbox{}), b.persistent(eqvps.CreateSandbox{})
		stolen := slices.Clone(b.get(one.ID).Sealed)
		if _, err := b.store.UpdateSandbox(b.ctx, two.ID, func(sb *eqvps.Sandbox) error { sb.Sealed = stolen; return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Pause(b.ctx, two.ID); err == nil {
			t.Error("a foreign vault was opened")
		}
		b.want(two.ID, eqvps.StateRunning, "")
		b.exec(two.ID, "")
	})(t)
}
