package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// TestRacingCallers: whoever pauses, resumes, restarts and uses one sandbox at
// the same time gets an answer that makes sense, and afterwards there is one
// sandbox that works, with one machine.
func TestRacingCallers(t *testing.T) {
	_, c := startServer(t)
	id := newPersistent(t, c, wire.CreateSandbox{})
	shell(t, c, id, "echo kept > /root/file; sync")
	ctx, cancel := context.WithTimeout(t.Context(), raceFor)
	defer cancel()
	calls := []func(context.Context) error{
		func(ctx context.Context) error { _, err := c.Pause(ctx, id); return err },
		func(ctx context.Context) error { _, err := c.Resume(ctx, id, false); return err },
		func(ctx context.Context) error { _, err := c.Resume(ctx, id, rand.IntN(10) == 0); return err },
		func(ctx context.Context) error {
			r, err := c.Exec(ctx, id, wire.ExecRequest{Command: "cat /root/file"})
			if err == nil && r.Stdout != "kept\n" {
				t.Errorf("a command says %q", r.Stdout)
			}
			return err
		},
		func(ctx context.Context) error { _, err := c.Stat(ctx, id, "/root/file"); return err },
		func(ctx context.Context) error { _, err := c.KeepAlive(ctx, id); return err },
		func(ctx context.Context) error { _, err := c.Events(ctx, id, 0, 1); return err },
	}
	// What a caller may be told while others move the sandbox.
	fine := map[eqvps.Code]bool{eqvps.CodePaused: true, eqvps.CodeNotRunning: true, eqvps.CodeUnreachable: true}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for ctx.Err() == nil {
				// Some leave before they have an answer.
				patience, leave := context.WithTimeout(ctx, time.Duration(100+rand.IntN(20_000))*time.Millisecond)
				err := calls[rand.IntN(len(calls))](patience)
				if gone := patience.Err() != nil; err != nil && !gone && !fine[eqvps.ErrorCode(err)] {
					t.Errorf("%v (%s)", err, eqvps.ErrorCode(err))
				}
				leave()
			}
		})
	}
	wg.Wait()
	if _, err := c.Resume(t.Context(), id, false); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, c, id, "cat /root/file"); got != "kept" {
		t.Errorf("afterwards it says %q", got)
	}
	if n := len(monitors(machineData)); n != 1 {
		t.Errorf("%d machines run for one sandbox", n)
	}
	if _, err := c.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := leftoverMachines(machineData); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
