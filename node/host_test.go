package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
)

// A machine that was killed says why: for want of memory, or not.
func TestCause(t *testing.T) {
	dir := dataDir(t)
	n := newNode(t, dir, nil)
	defer closeNode(t, n)
	for id, want := range map[string]eqvps.Reason{"sb_oom": eqvps.ReasonOOM, "sb_killed": eqvps.ReasonError} {
		m, err := n.Start(t.Context(), eqvps.StartMachine{ID: id, Tariff: testTariff})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if want == eqvps.ReasonOOM {
			limitMemory(t, n.Owner(), id)
			_, _ = m.Exec(t.Context(), eqvps.ExecRequest{Command: `python3 -c 'b"x" * (250 << 20)'`, Timeout: time.Minute}, func(eqvps.Stream, []byte) error { return nil })
		} else {
			pid, err := n.MonitorPID(id)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-m.Done():
		case <-time.After(time.Minute):
			t.Fatal("the machine does not die")
		}
		if got := m.Cause(); got != want {
			t.Errorf("%s died of %q, want %q", id, got, want)
		}
		if err := n.Destroy(context.Background(), id); err != nil {
			t.Error(err)
		}
	}
}

// limitMemory leaves a machine 20 MiB more than it has.
func limitMemory(t *testing.T, owner, id string) {
	t.Helper()
	dir, usage, limit := filepath.Join("/sys/fs/cgroup/memory/eqvps", owner, id), "memory.usage_in_bytes", "memory.limit_in_bytes"
	if _, err := os.Stat(dir); err != nil {
		dir, usage, limit = filepath.Join("/sys/fs/cgroup/eqvps", owner, id), "memory.current", "memory.max"
	}
	b, err := os.ReadFile(filepath.Join(dir, usage))
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, limit), fmt.Append(nil, used+20<<20), 0); err != nil {
		t.Fatal(err)
	}
}

// When the host's clock is set, running guests follow.
func TestClockStep(t *testing.T) {
	dir := dataDir(t)
	n := newNode(t, dir, nil)
	defer closeNode(t, n)
	m, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_a", Tariff: testTariff})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	run(t, m, "date -s @1000000000")
	// To the time it has, which is a step all the same.
	now := unix.NsecToTimespec(time.Now().UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); run(t, m, "test $(date +%s) -gt 1100000000; echo $?") != "0"; {
		if time.Now().After(deadline) {
			t.Fatal("the guest was not told")
		}
		time.Sleep(20 * time.Millisecond)
	}
	checkClock(t, m)
	if err := n.Destroy(t.Context(), "sb_a"); err != nil {
		t.Error(err)
	}
}
