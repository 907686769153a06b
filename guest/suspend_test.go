package guest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// frozen reports whether nothing of the commands runs.
func (m *machine) frozen() bool {
	b, _ := os.ReadFile(m.cgroups + "/cgroup.events")
	return strings.Contains(string(b), "frozen 1")
}

// A suspended machine stands still, keeps what it has, takes nobody's word
// before an identity, and goes on only after that is in force.
func TestSuspend(t *testing.T) {
	m := newMachine(t)
	frozenAtRenew := false
	m.onRenew = func() { frozenAtRenew = m.frozen() }
	c := m.renew(t, map[string]string{"KEPT": "value"})
	ticks := filepath.Join(t.TempDir(), "ticks")
	task := start(t, c, eqvps.ExecRequest{Command: "while echo >>" + ticks + "; do sleep 0.01; done"})
	size := func() int64 {
		fi, err := os.Stat(ticks)
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	wait(t, "the task runs", func() bool { return size() > 0 })
	foreground := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		_, err := c.Exec(context.Background(), eqvps.ExecRequest{Command: "echo begun; sleep 1000"}, func(eqvps.Stream, []byte) error {
			close(begun)
			return nil
		})
		foreground <- err
	}()
	<-begun

	for _, keep := range []bool{true, false} {
		if err := c.Suspend(t.Context(), m.dial); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if !m.frozen() {
			t.Error("processes run in a suspended machine")
		}
		if keep {
			if err := <-foreground; eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
				t.Errorf("the command in the foreground ends with %v", err)
			}
		}
		if _, err := guest.Connect(t.Context(), m.dial); !errors.Is(err, guest.ErrAtGate) {
			t.Errorf("without an identity the error is %v", err)
		}
		frozenAtRenew = false
		var err error
		c, err = guest.Renew(t.Context(), m.dial, guest.Identity{
			Hostname: "sb-1", KeepEnv: keep, Env: map[string]string{"NEW": "new"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if !frozenAtRenew {
			t.Error("processes ran before the identity was in force")
		}
		want := map[bool]string{true: "value\n", false: "new\n"}[keep]
		if got := sh(t, c, "echo $KEPT$NEW"); got.Out != want {
			t.Errorf("the variables are %q, want %q", got.Out, want)
		}
		before := size()
		wait(t, "the task goes on", func() bool { return size() > before })
		if out := read(t, c, task.ID, eqvps.ReadTask{}); out.Task.State != eqvps.TaskRunning {
			t.Errorf("the task: %+v", out)
		}
	}
	c.Close()
	sh(t, m.connect(t), "true") // the gate is behind us
}

// A guest whose identity cannot be put in force stays as it is.
func TestSuspendedUntilRenewed(t *testing.T) {
	m := newMachine(t)
	c := m.renew(t, nil)
	sh(t, c, "sleep 1000 & ")
	if err := c.Suspend(t.Context(), m.dial); err != nil {
		t.Fatal(err)
	}
	m.renewFails = errStop
	_, err := guest.Renew(t.Context(), m.dial, guest.Identity{Hostname: "sb-1"})
	if err == nil || errors.Is(err, guest.ErrIdentitySent) || !m.frozen() {
		t.Errorf("the error is %v, frozen: %v", err, m.frozen())
	}
	m.renewFails = nil
	sh(t, m.renew(t, nil), "true")
	if m.frozen() {
		t.Error("the machine is still frozen")
	}
}

// Processes that do not come to rest, or a host that goes in the middle: the
// machine runs on, and no later session is sent to the gate.
func TestSuspendGivenUp(t *testing.T) {
	m := newMachine(t)
	m.renew(t, nil)
	for range 20 {
		c := m.connect(t)
		sh(t, c, "sleep 1000 &")
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- c.Suspend(ctx, m.dial) }()
		wait(t, "something is frozen", func() bool {
			b, _ := os.ReadFile(m.cgroups + "/cgroup.freeze")
			return strings.HasPrefix(string(b), "1") || len(done) > 0
		})
		cancel()
		c.Close()
		<-done
		next := m.renew(t, nil)
		wait(t, "all goes on", func() bool { return !m.frozen() })
		next.Close()
		sh(t, m.connect(t), "true")
	}
}
