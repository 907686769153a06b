package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// killVariable names the step before which a server that is a test program
// kills itself.
const killVariable = "EQVPS_TEST_KILL_AT"

// killAt is a ServerConfig.Step that ends the process before a step.
func killAt(label string) func(string) error {
	return func(step string) error {
		if step == label {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
}

// life is what a client does with a sandbox, until the server is gone.
func life(ctx context.Context, c *client.Client, mode eqvps.Mode) error {
	sb, err := c.Create(ctx, wire.CreateSandbox{Mode: string(mode)})
	if err != nil {
		return err
	}
	if _, err := c.Exec(ctx, sb.ID, wire.ExecRequest{Command: "echo hello"}); err != nil {
		return err
	}
	if mode == eqvps.Persistent {
		if _, err := c.Pause(ctx, sb.ID); err != nil {
			return err
		}
		if _, err := c.Resume(ctx, sb.ID, false); err != nil {
			return err
		}
		if _, err := c.Resume(ctx, sb.ID, true); err != nil {
			return err
		}
	}
	_, err = c.Delete(ctx, sb.ID)
	return err
}

// TestServerKilledAtEachStep: wherever on the way of a sandbox the server is
// killed, the next one brings store and host in accord: what is listed can be
// used, what is not has left nothing, and what never ran costs nothing.
func TestServerKilledAtEachStep(t *testing.T) { killedAtEachStep(t, eqvps.Ephemeral) }

func killedAtEachStep(t *testing.T, mode eqvps.Mode) {
	for _, step := range stepsOf(t, mode) {
		t.Run(step, func(t *testing.T) { killedAt(t, mode, step) })
	}
}

// stepsOf are the labelled steps that a sandbox's life takes, once each.
func stepsOf(t *testing.T, mode eqvps.Mode) (steps []string) {
	t.Helper()
	var mu sync.Mutex
	cfg := testConfig(machineData, io.Discard)
	cfg.Step = func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(steps, step) {
			steps = append(steps, step)
		}
		return nil
	}
	s, err := StartServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := adminClient(t, s.Addr())
	if err := s.Prepare(t.Context(), eqvps.DefaultTariff); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	steps = nil // what a start of the server takes, and making the template
	mu.Unlock()
	err = life(t.Context(), c, mode)
	mu.Lock()
	found := slices.Clone(steps)
	mu.Unlock()
	if cerr := s.Close(context.Background()); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	if len(found) < 10 {
		t.Fatalf("only the steps %v were seen", found)
	}
	return found
}

func killedAt(t *testing.T, mode eqvps.Mode, step string) {
	server, line := spawnProcess(t, killVariable+"="+step)
	// Slots are made ahead, so some steps come before the server serves.
	var told error
	if addr, ok := strings.CutPrefix(line, "serving "); ok {
		if told = life(t.Context(), adminClient(t, addr), mode); told == nil {
			t.Fatal("the server lived through it all")
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the server ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("the server lives on, and told its client %v", told)
	}

	s, err := StartServer(t.Context(), testConfig(machineData, t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c := adminClient(t, s.Addr())
	all, err := c.List(t.Context(), client.ListOptions{State: "all", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Data) > 0 {
		sb := all.Data[0]
		if sb.State == "deleted" {
			if sb.StartedAt == nil && sb.BilledMicroUSD != 0 {
				t.Errorf("it never ran and costs %d", sb.BilledMicroUSD)
			}
		} else {
			// Alive: then it works, whatever it was in the middle of.
			if _, err := c.Resume(t.Context(), sb.ID, false); err != nil && mode == eqvps.Persistent {
				t.Errorf("%s (%v) cannot be resumed: %v", sb.State, sb.PauseReason, err)
			}
			if r, err := c.Exec(t.Context(), sb.ID, wire.ExecRequest{Command: "echo alive"}); err != nil || r.Stdout != "alive\n" {
				t.Errorf("%s (%v) is listed and does not work: %+v, %v", sb.State, sb.PauseReason, r, err)
			}
			if _, err := c.Delete(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left := leftoverMachines(machineData)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %s", fmt.Sprint(left))
		}
	}
}
