package guest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

func TestPing(t *testing.T) {
	c := newMachine(t).connect(t)
	p, err := c.Ping(t.Context())
	if err != nil || p.Version != guest.Version || p.Uptime <= 0 || time.Since(p.Clock).Abs() > time.Minute {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestSetClock(t *testing.T) {
	m := newMachine(t)
	to := time.Unix(1_900_000_000, 123)
	if err := m.connect(t).SetClock(t.Context(), to); err != nil || !m.clock.Equal(to) {
		t.Errorf("the clock is set to %v, %v", m.clock, err)
	}
}

func TestRenew(t *testing.T) {
	m := newMachine(t)
	env := map[string]string{"A": "1", "B": "\xff=x"}
	before := time.Now()
	for range 2 {
		c, err := guest.Renew(t.Context(), m.dial, guest.Identity{Hostname: "sb-77", Env: env})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	a, b := m.renewed[0], m.renewed[1]
	if len(a.Entropy) != guest.EntropyBytes || bytes.Equal(a.Entropy, b.Entropy) || a.MachineID == b.MachineID || len(a.MachineID) != 32 {
		t.Errorf("identities share something: %x %s, %x %s", a.Entropy, a.MachineID, b.Entropy, b.MachineID)
	}
	if at := time.Unix(0, a.UnixNano); at.Before(before) || time.Since(at) > time.Minute {
		t.Errorf("the time is %v", at)
	}
	if diff := cmp.Diff([][]byte{[]byte("A=1"), []byte("B=\xff=x")}, a.Env); diff != "" || a.Hostname != "sb-77" {
		t.Error(a.Hostname, diff)
	}
	// A session after a restart of the server finds the variables in place.
	if got := sh(t, m.connect(t), "echo $A"); got.Out != "1\n" {
		t.Errorf("after a reconnect the variable is %q", got.Out)
	}
}

func TestIdentityIsChecked(t *testing.T) {
	m := newMachine(t)
	for _, id := range []guest.Identity{
		{}, {Hostname: "sb_1"}, {Hostname: strings.Repeat("x", 64)},
		{Hostname: "a", MachineID: "xyz"}, {Hostname: "a", Env: map[string]string{"1A": ""}},
	} {
		if _, err := guest.Renew(t.Context(), m.dial, id); err == nil {
			t.Errorf("%+v is accepted", id)
		}
	}
	if m.conn != nil || len(m.renewed) > 0 {
		t.Error("a bad identity reaches the guest")
	}
}

// A template takes nobody's word before it has an identity, forgets whom it
// served, and what it had left running is dead.
func TestPrepare(t *testing.T) {
	m := newMachine(t)
	c := m.renew(t, map[string]string{"OLD": "secret"})
	pid := sh(t, c, "sleep 1000 & echo $!").Out
	if err := c.Prepare(t.Context(), m.dial, []string{"true", "echo $OLD"}); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if alive(pid) {
		t.Error("a process lives on in the template")
	}
	if _, err := guest.Connect(t.Context(), m.dial); !errors.Is(err, guest.ErrAtGate) {
		t.Errorf("without an identity the error is %v", err)
	}
	if got := sh(t, m.renew(t, map[string]string{"NEW": "n"}), "echo $OLD$NEW"); got.Out != "n\n" {
		t.Errorf("the clone's variables: %+v", got)
	}
	sh(t, m.connect(t), "true") // the gate is behind us
}

func TestPrepareTellsWhatFailed(t *testing.T) {
	m := newMachine(t)
	err := m.connect(t).Prepare(t.Context(), m.dial, []string{"echo words; exit 3"})
	if err == nil || !strings.Contains(err.Error(), "words") || !strings.Contains(err.Error(), "exit 3") {
		t.Errorf("the error is %v", err)
	}
}

// Hosts that come one after another, some without a goodbye, in the middle of
// anything: the guest serves the last one.
func TestReconnect(t *testing.T) {
	m := newMachine(t)
	for i := range 20 {
		c, err := guest.Connect(t.Context(), m.dial)
		if err != nil {
			t.Fatal(i, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var once sync.Once
		printed := make(chan struct{})
		go c.Exec(ctx, eqvps.ExecRequest{Command: "seq 1 1000000"}, func(eqvps.Stream, []byte) error {
			once.Do(func() { close(printed) })
			return nil
		})
		<-printed
		if i%2 == 0 {
			c.Close()
		}
		t.Cleanup(func() { cancel(); c.Close() })
	}
	if got := sh(t, m.connect(t), "echo fine"); got.Out != "fine\n" {
		t.Errorf("%+v", got)
	}
}

func TestClosedClient(t *testing.T) {
	c := newMachine(t).connect(t)
	c.Close()
	<-c.Done()
	if _, err := c.Ping(t.Context()); eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
		t.Errorf("the error is %v", err)
	}
	if _, err := try(c, t.Context(), eqvps.ExecRequest{Command: "true"}); eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
		t.Errorf("the error is %v", err)
	}
}

func TestShutdownAndSync(t *testing.T) {
	c := newMachine(t).connect(t)
	if err := c.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
