package control_test

import (
	"context"
	"io"
	"log/slog"
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
