package control_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/control"
	"github.com/eqvps/eqvps/keyring"
	"github.com/eqvps/eqvps/sqlite"
)

// rig is a service over a real store and a host in memory.
type rig struct {
	t    testing.TB
	host *memHost
	path string
	*control.Service
	ctx   context.Context // of the administrator
	store *sqlite.Store
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, host: newMemHost(), path: filepath.Join(t.TempDir(), "test.db")}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// start opens the store and recovers, as a server's start does.
func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.store, err = sqlite.Open(context.Background(), r.path); err != nil {
		r.t.Fatal(err)
	}
	keys, err := keyring.Open(filepath.Join(filepath.Dir(r.path), "keyring.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.Service = control.New(control.Config{
		Store: r.store, Host: r.host, Tariffs: eqvps.DefaultTariffs, Keys: keys,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err := r.Recover(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	secret, _, err := r.AdminToken(context.Background(), "")
	if err != nil {
		r.t.Fatal(err)
	}
	r.ctx = r.as(secret)
}

func (r *rig) stop() {
	if err := errors.Join(r.Close(), r.store.Close()); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) as(secret string) context.Context {
	r.t.Helper()
	p, err := r.Authenticate(context.Background(), secret)
	if err != nil {
		r.t.Fatal(err)
	}
	return eqvps.WithPrincipal(context.Background(), p)
}

func (r *rig) create() *eqvps.Sandbox {
	r.t.Helper()
	sb, err := r.Create(r.ctx, eqvps.CreateSandbox{})
	if err != nil {
		r.t.Fatal(err)
	}
	return sb
}

func (r *rig) get(id string) *eqvps.Sandbox {
	r.t.Helper()
	sb, err := r.Get(r.ctx, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return sb
}

func wantCode(t *testing.T, err error, want eqvps.Code) {
	t.Helper()
	if got := eqvps.ErrorCode(err); got != want {
		t.Errorf("error %v has code %q, want %q", err, got, want)
	}
}

func TestSandboxLife(t *testing.T) {
	r := newRig(t)
	sb := r.create()
	if sb.State != eqvps.StateRunning || sb.Image != "img_test" || sb.StartedAt.IsZero() {
		t.Errorf("created: %+v", sb)
	}
	g, err := r.Use(r.ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Exec(r.ctx, eqvps.ExecRequest{Command: "true"}, nil); err != nil {
		t.Error(err)
	}
	if _, err := g.Exec(r.ctx, eqvps.ExecRequest{Command: "true", Timeout: time.Hour}, nil); err == nil {
		t.Error("a timeout of an hour was accepted in the foreground")
	}
	end, err := r.Delete(r.ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if end.State != eqvps.StateDeleted || end.Reason != eqvps.ReasonDeleted || end.EndedAt.IsZero() {
		t.Errorf("deleted: %+v", end)
	}
	if end.CPUTime != 7*time.Second || end.EgressBytes != 11 {
		t.Errorf("the machine's last figures were not kept: %+v", end)
	}
	again, err := r.Delete(r.ctx, sb.ID)
	if err != nil || !again.EndedAt.Equal(end.EndedAt) {
		t.Errorf("deleting again: %+v, %v", again, err)
	}
	if _, err := r.Use(r.ctx, sb.ID); eqvps.ErrorCode(err) != eqvps.CodeSandboxEnded {
		t.Errorf("using a deleted sandbox: %v", err)
	}
	if n := r.host.count(); n != 0 {
		t.Errorf("%d machines left", n)
	}
}

func TestForeignSandboxIsAbsent(t *testing.T) {
	r := newRig(t)
	sb := r.create()
	other := eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_other"})
	_, err := r.Get(other, sb.ID)
	wantCode(t, err, eqvps.CodeSandboxNotFound)
	_, err = r.Delete(other, sb.ID)
	wantCode(t, err, eqvps.CodeSandboxNotFound)
	_, err = r.Use(other, sb.ID)
	wantCode(t, err, eqvps.CodeSandboxNotFound)
	_, err = r.Get(r.ctx, "sb_../../etc")
	wantCode(t, err, eqvps.CodeSandboxNotFound)
	_, err = r.Get(context.Background(), sb.ID)
	wantCode(t, err, eqvps.CodeUnauthenticated)
	if list, err := r.List(other, eqvps.SandboxFilter{}); err != nil || len(list) != 0 {
		t.Errorf("another account sees %v, %v", list, err)
	}
}

func TestFailedStartCostsNothingAndLeavesNothing(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name string
		prep func()
		ctx  func() context.Context
		code eqvps.Code
	}{
		{"host", func() { r.host.inject("start", eqvps.WrapError(eqvps.CodeCapacity, io.EOF)) },
			func() context.Context { return r.ctx }, eqvps.CodeCapacity},
		{"client gone", func() { r.host.starting = make(chan struct{}) },
			func() context.Context {
				ctx, cancel := context.WithTimeout(r.ctx, time.Millisecond)
				t.Cleanup(cancel)
				return ctx
			}, eqvps.CodeInternal},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.prep()
			defer func() { r.host.starting = nil }()
			_, err := r.Create(c.ctx(), eqvps.CreateSandbox{})
			wantCode(t, err, c.code)
		})
	}
	all, err := r.List(r.ctx, eqvps.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range all {
		if !sb.Ended() || sb.Reason != eqvps.ReasonError || sb.Cost(time.Now()) != 0 {
			t.Errorf("a sandbox that never started: %+v costs %s", sb, sb.Cost(time.Now()))
		}
	}
	if n := r.host.count(); n != 0 {
		t.Errorf("%d machines left", n)
	}
}

func TestDeletedWhileStarting(t *testing.T) {
	r := newRig(t)
	r.host.starting, r.host.entered = make(chan struct{}), make(chan string, 1)
	created := make(chan error, 1)
	go func() {
		_, err := r.Create(r.ctx, eqvps.CreateSandbox{})
		created <- err
	}()
	id := <-r.host.entered
	if _, err := r.Delete(r.ctx, id); err != nil {
		t.Fatal(err)
	}
	close(r.host.starting)
	wantCode(t, <-created, eqvps.CodeSandboxEnded)
	if sb := r.get(id); sb.State != eqvps.StateDeleted || sb.Reason != eqvps.ReasonDeleted {
		t.Errorf("after both: %+v", sb)
	}
	if n := r.host.count(); n != 0 {
		t.Errorf("%d machines left", n)
	}
}

func TestMachineDies(t *testing.T) {
	r := newRig(t)
	sb := r.create()
	vm := r.host.machine(sb.ID)
	vm.release = make(chan struct{})
	g, err := r.Use(r.ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := g.Exec(r.ctx, eqvps.ExecRequest{Command: "sleep 9"}, nil)
		result <- err
	}()
	vm.die()
	err = <-result
	if c := eqvps.ErrorCode(err); c != eqvps.CodeSandboxEnded && c != eqvps.CodeUnreachable {
		t.Errorf("exec on a dying machine: %v", err)
	}
	waitFor(t, func() bool { return r.get(sb.ID).Ended() })
	if got := r.get(sb.ID).Reason; got != eqvps.ReasonError {
		t.Errorf("reason %q", got)
	}
}

// waitFor waits until a condition that must come true does.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true within 30 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRestart(t *testing.T) {
	r := newRig(t)
	keep, lost := r.create(), r.create()
	r.stop()
	seen := time.Now()
	r.host.machine(lost.ID).die()
	// A machine nobody knows: its server died before it wrote the record.
	if _, err := r.host.Start(context.Background(), eqvps.StartMachine{ID: "sb_orphan"}); err != nil {
		t.Fatal(err)
	}
	r.start()

	if sb := r.get(keep.ID); sb.State != eqvps.StateRunning {
		t.Errorf("the survivor is %+v", sb)
	}
	if _, err := r.Use(r.ctx, keep.ID); err != nil {
		t.Errorf("the survivor cannot be used: %v", err)
	}
	sb := r.get(lost.ID)
	if sb.State != eqvps.StateDeleted || sb.Reason != eqvps.ReasonHostLost {
		t.Errorf("the lost one is %+v", sb)
	}
	if sb.EndedAt.After(seen) || sb.Running(time.Now()) > seen.Sub(sb.StartedAt) {
		t.Errorf("time nobody can account for is charged: ended %s, the last server was there until %s", sb.EndedAt, seen)
	}
	if r.host.machine("sb_orphan") != nil {
		t.Error("the orphan lives on")
	}
	if n := r.host.count(); n != 1 {
		t.Errorf("%d machines, want 1", n)
	}
}

// crash leaves a sandbox in a state that only a killed server leaves it in.
func (r *rig) crash(id string, change func(*eqvps.Sandbox)) {
	r.t.Helper()
	_, err := r.store.UpdateSandbox(context.Background(), id, func(sb *eqvps.Sandbox) error {
		change(sb)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.stop()
	r.start()
}

func TestCrashWhileStartingOrDeleting(t *testing.T) {
	r := newRig(t)
	sb := r.create()
	r.crash(sb.ID, func(sb *eqvps.Sandbox) {
		sb.State, sb.StartedAt, sb.RunningSince = eqvps.StateStarting, time.Time{}, time.Time{}
	})
	if got := r.get(sb.ID); !got.Ended() || got.Reason != eqvps.ReasonError || got.Cost(time.Now()) != 0 {
		t.Errorf("starting when the server died: %+v", got)
	}
	sb = r.create()
	ended := time.Now().Add(-time.Second)
	r.crash(sb.ID, func(sb *eqvps.Sandbox) {
		sb.State, sb.Reason, sb.EndedAt = eqvps.StateDeleting, eqvps.ReasonIdle, ended
	})
	if got := r.get(sb.ID); !got.Ended() || got.Reason != eqvps.ReasonIdle || got.EndedAt.Sub(ended).Abs() > time.Millisecond {
		t.Errorf("being deleted when the server died: %+v", got)
	}
	if n := r.host.count(); n != 0 {
		t.Errorf("%d machines left", n)
	}
}

func TestFailedDestroyIsFinishedLater(t *testing.T) {
	r := newRig(t)
	sb := r.create()
	r.host.inject("destroy", errors.New("stuck"))
	if _, err := r.Delete(r.ctx, sb.ID); err == nil {
		t.Fatal("a delete that freed nothing said it had")
	}
	first := r.get(sb.ID)
	if first.State != eqvps.StateDeleting || first.EndedAt.IsZero() {
		t.Errorf("after the failure: %+v", first)
	}
	end, err := r.Delete(r.ctx, sb.ID)
	if err != nil || end.State != eqvps.StateDeleted || !end.EndedAt.Equal(first.EndedAt) {
		t.Errorf("the second time: %+v, %v", end, err)
	}
}

func TestParallelDeletesEndOnce(t *testing.T) {
	r := newRig(t)
	sb := r.create()
	var wg sync.WaitGroup
	var failures atomic.Int32
	for range 16 {
		wg.Go(func() {
			if _, err := r.Delete(r.ctx, sb.ID); err != nil {
				failures.Add(1)
				t.Log(err)
			}
		})
	}
	wg.Wait()
	if failures.Load() != 0 || !r.get(sb.ID).Ended() {
		t.Errorf("%d of 16 deletes failed; now %+v", failures.Load(), r.get(sb.ID))
	}
}

// TestReaping runs on a clock of its own: hours pass at once.
func TestReaping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		host := newMemHost()
		svc := control.New(control.Config{Store: store, Host: host, Tariffs: eqvps.DefaultTariffs, Keys: memKeys{},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err := svc.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer svc.Close()
		ctx := eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_a"})
		create := func(c eqvps.CreateSandbox) *eqvps.Sandbox {
			sb, err := svc.Create(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			return sb
		}
		reason := func(sb *eqvps.Sandbox) eqvps.Reason {
			synctest.Wait()
			got, err := svc.Get(ctx, sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			return got.Reason
		}

		idle := create(eqvps.CreateSandbox{IdleTimeout: 100 * time.Second})
		busy := create(eqvps.CreateSandbox{IdleTimeout: 100 * time.Second, TTL: 1000 * time.Second})
		host.machine(busy.ID).release = make(chan struct{})
		g, err := svc.Use(ctx, busy.ID)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() {
			_, err := g.Exec(ctx, eqvps.ExecRequest{Command: "work"}, nil)
			result <- err
		}()

		time.Sleep(90 * time.Second)
		if r := reason(idle); r != "" {
			t.Errorf("ended after 90 s of 100: %q", r)
		}
		// Looking at a sandbox does not keep it alive.
		time.Sleep(12 * time.Second)
		if r := reason(idle); r != eqvps.ReasonIdle {
			t.Errorf("after 102 s idle: %q", r)
		}
		if r := reason(busy); r != "" {
			t.Errorf("a sandbox that works was ended: %q", r)
		}
		time.Sleep(900 * time.Second)
		if r := reason(busy); r != eqvps.ReasonTTL {
			t.Errorf("after its ttl: %q", r)
		}
		wantCode(t, <-result, eqvps.CodeSandboxEnded)
		if n := host.count(); n != 0 {
			t.Errorf("%d machines left", n)
		}
	})
}

func TestTokens(t *testing.T) {
	r := newRig(t)
	tok, secret, err := r.CreateToken(r.ctx, "ci", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ctx := r.as(secret)
	if list, err := r.ListTokens(ctx); err != nil || len(list) != 2 {
		t.Errorf("tokens: %v, %v", list, err)
	}
	if err := r.RevokeToken(ctx, tok.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Authenticate(context.Background(), secret)
	wantCode(t, err, eqvps.CodeUnauthenticated)
	_, err = r.Authenticate(context.Background(), secret+"x")
	wantCode(t, err, eqvps.CodeUnauthenticated)
	wantCode(t, r.RevokeToken(r.ctx, "tok_nonsense"), eqvps.CodeTokenNotFound)
	_, _, err = r.CreateToken(r.ctx, "a\x1b[2Jb", time.Hour)
	wantCode(t, err, eqvps.CodeInvalidValue)
}

func TestAdminTokenIsKeptWhileItWorks(t *testing.T) {
	r := newRig(t)
	first, fresh, err := r.AdminToken(context.Background(), "")
	if err != nil || !fresh {
		t.Fatal(first, fresh, err)
	}
	again, fresh, err := r.AdminToken(context.Background(), first)
	if err != nil || fresh || again != first {
		t.Errorf("a valid token was replaced: %v %v", fresh, err)
	}
	if _, fresh, err := r.AdminToken(context.Background(), "eqvps_lost"); err != nil || !fresh {
		t.Errorf("a useless token was kept: %v %v", fresh, err)
	}
}
