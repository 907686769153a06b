package control_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/control"
)

func locked(h *memHost, id string, f func(*memMachine)) {
	m := h.machine(id)
	m.tasks.Lock()
	defer m.tasks.Unlock()
	f(m)
}

// A running task keeps its sandbox from being idle, and its end begins the
// idle time; a guest that does not answer gets a grace; the time to live is
// hard.
func TestTasksAreActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newMemHost()
		svc := control.New(control.Config{Store: newMemStore(), Host: host, Tariffs: eqvps.DefaultTariffs, Keys: memKeys{},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err := svc.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer svc.Close()
		ctx := eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_a"})
		create := func() (string, eqvps.Guest, string) {
			sb, err := svc.Create(ctx, eqvps.CreateSandbox{IdleTimeout: 100 * time.Second, TTL: 1000 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			g, err := svc.Use(ctx, sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			task, err := g.StartTask(ctx, eqvps.StartTask{ExecRequest: eqvps.ExecRequest{Command: "work"}})
			if err != nil {
				t.Fatal(err)
			}
			if !eqvps.ValidTaskID(task.ID) || task.Duration != eqvps.MaxEphemeralTTL {
				t.Errorf("started: %+v", task)
			}
			return sb.ID, g, task.ID
		}
		want := func(id string, reason eqvps.Reason) {
			t.Helper()
			synctest.Wait()
			if got, err := svc.Get(ctx, id); err != nil || got.Reason != reason {
				t.Errorf("the reason is %q, want %q; %v", got.Reason, reason, err)
			}
		}
		finite, g, task := create()
		endless, _, _ := create()
		silent, _, _ := create()
		synctest.Wait()
		locked(host, silent, func(m *memMachine) { m.tasks.err = errors.New("busy") })

		time.Sleep(155 * time.Second)
		want(finite, "")
		want(silent, "")
		locked(host, finite, func(m *memMachine) {
			if m.tasks.asked != 1 {
				t.Errorf("the guest was asked %d times in 155 s", m.tasks.asked)
			}
		})
		time.Sleep(10 * time.Second)
		want(silent, eqvps.ReasonIdle)
		if _, err := g.KillTask(ctx, task); err != nil {
			t.Fatal(err)
		}
		time.Sleep(98 * time.Second)
		want(finite, "")
		for range 3 { // whoever only looks keeps nothing alive
			if _, err := g.ListTasks(ctx); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(4 * time.Second)
		want(finite, eqvps.ReasonIdle)

		time.Sleep(600 * time.Second)
		want(endless, "")
		time.Sleep(200 * time.Second)
		want(endless, eqvps.ReasonTTL)
	})
}

// The idle time begins when the last task ends, also where nobody made a call
// then.
func TestTaskEndBeginsIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newMemHost()
		svc := control.New(control.Config{Store: newMemStore(), Host: host, Tariffs: eqvps.DefaultTariffs, Keys: memKeys{},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err := svc.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer svc.Close()
		ctx := eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_a"})
		sb, err := svc.Create(ctx, eqvps.CreateSandbox{IdleTimeout: 100 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		locked(host, sb.ID, func(m *memMachine) { m.tasks.Running = 1 })
		time.Sleep(190 * time.Second) // asked at 100 s
		locked(host, sb.ID, func(m *memMachine) { m.tasks.Running, m.tasks.LastEnd = 0, time.Now() })
		for _, step := range []struct {
			after time.Duration
			want  eqvps.State
		}{{95 * time.Second, eqvps.StateRunning}, {10 * time.Second, eqvps.StateDeleted}} {
			time.Sleep(step.after)
			synctest.Wait()
			if got, err := svc.Get(ctx, sb.ID); err != nil || got.State != step.want {
				t.Errorf("the sandbox is %s, want %s; %v", got.State, step.want, err)
			}
		}
	})
}

func TestTaskRequestsAreChecked(t *testing.T) {
	r := newRig(t)
	sb, err := r.Create(r.ctx, eqvps.CreateSandbox{TTL: 60 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	g, err := r.Use(r.ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	start := func(e eqvps.ExecRequest) error {
		_, err := g.StartTask(r.ctx, eqvps.StartTask{ExecRequest: e})
		return err
	}
	wantCode(t, start(eqvps.ExecRequest{Command: "x", Timeout: 58 * time.Second}), "")
	wantCode(t, start(eqvps.ExecRequest{Command: "x", Timeout: 61 * time.Second}), eqvps.CodeInvalidTimeout)
	wantCode(t, start(eqvps.ExecRequest{Command: "x", Timeout: time.Millisecond}), eqvps.CodeInvalidTimeout)
	wantCode(t, start(eqvps.ExecRequest{}), eqvps.CodeInvalidRequest)
	_, err = g.ReadTask(r.ctx, "../x", eqvps.ReadTask{})
	wantCode(t, err, eqvps.CodeTaskNotFound)
	_, err = g.ReadTask(r.ctx, "task_00000000000000000000", eqvps.ReadTask{Stdout: -1})
	wantCode(t, err, eqvps.CodeInvalidRequest)
	_, err = g.KillTask(r.ctx, "")
	wantCode(t, err, eqvps.CodeTaskNotFound)
}
