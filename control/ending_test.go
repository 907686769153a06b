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

// TestEndsWhileStoreIsFull: a full disk keeps no machine alive, and the ends
// are recorded, as of when they came, once there is room.
func TestEndsWhileStoreIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, host := newMemStore(), newMemHost()
		svc := control.New(control.Config{Store: store, Host: host, Tariffs: eqvps.DefaultTariffs, Keys: memKeys{},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err := svc.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer svc.Close()
		ctx := eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_a"})
		create := func() string {
			sb, err := svc.Create(ctx, eqvps.CreateSandbox{})
			if err != nil {
				t.Fatal(err)
			}
			return sb.ID
		}
		deleted, died := create(), create()
		unstarted := make(chan error, 1)
		host.starting, host.entered = make(chan struct{}), make(chan string, 1)
		go func() {
			_, err := svc.Create(ctx, eqvps.CreateSandbox{})
			unstarted <- err
		}()
		failed := <-host.entered

		store.setFull(true)
		at := time.Now()
		_, err := svc.Delete(ctx, deleted)
		wantCode(t, err, eqvps.CodeCapacity)
		host.machine(died).die()
		close(host.starting)
		wantCode(t, <-unstarted, eqvps.CodeCapacity)
		synctest.Wait()
		if n := host.count(); n != 0 {
			t.Errorf("%d machines run on while the store is full", n)
		}
		want := map[string]eqvps.Reason{deleted: eqvps.ReasonDeleted, died: eqvps.ReasonError, failed: eqvps.ReasonError}
		check := func(state eqvps.State) {
			t.Helper()
			for id, reason := range want {
				sb, err := svc.Get(ctx, id)
				if err != nil {
					t.Fatal(err)
				}
				if sb.State != state || sb.Reason != reason || !sb.EndedAt.Equal(at) {
					t.Errorf("%s: state %s, reason %q, ended %s; want %s, %q, %s", id, sb.State, sb.Reason, sb.EndedAt, state, reason, at)
				}
			}
		}
		check(eqvps.StateDeleting)

		time.Sleep(time.Minute)
		store.setFull(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		check(eqvps.StateDeleted)
	})
}

// TestMachineDiesUnderCommand: the channel breaks an instant before the
// machine's end is seen, and the caller is told of the end all the same.
func TestMachineDiesUnderCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newMemHost()
		svc := control.New(control.Config{Store: newMemStore(), Host: host, Tariffs: eqvps.DefaultTariffs, Keys: memKeys{},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err := svc.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer svc.Close()
		ctx := eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_a"})
		sb, err := svc.Create(ctx, eqvps.CreateSandbox{})
		if err != nil {
			t.Fatal(err)
		}
		m := host.machine(sb.ID)
		m.release, m.lost = make(chan struct{}), make(chan struct{})
		g, err := svc.Use(ctx, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { close(m.lost) })
		time.AfterFunc(time.Second+50*time.Millisecond, m.die)
		_, err = g.Exec(ctx, eqvps.ExecRequest{Command: "work"}, nil)
		wantCode(t, err, eqvps.CodeSandboxEnded)

		// From its first moment on, an end is told as one.
		host.inject("destroy", errors.New("stuck"))
		if sb, err = svc.Create(ctx, eqvps.CreateSandbox{}); err != nil {
			t.Fatal(err)
		}
		if _, err := svc.Delete(ctx, sb.ID); err == nil {
			t.Fatal("a delete that freed nothing said it had")
		}
		_, err = svc.Use(ctx, sb.ID)
		wantCode(t, err, eqvps.CodeSandboxEnded)
	})
}
