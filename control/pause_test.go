package control_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

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
