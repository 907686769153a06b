package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/node"
)

// quota is what the kernel holds a machine to: "" when it is not limited.
func quota(t *testing.T, owner, id string) string {
	t.Helper()
	for _, file := range []string{
		filepath.Join("/sys/fs/cgroup/cpu/eqvps", owner, id, "cpu.cfs_quota_us"),
		filepath.Join("/sys/fs/cgroup/eqvps", owner, id, "cpu.max"),
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		value, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		if value == "-1" || value == "max" {
			return ""
		}
		return value
	}
	t.Fatal("the machine has no cgroup")
	return ""
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("in a minute it was not so that " + what)
		}
	}
}

// TestShares: a machine that has used up its allowance is held to its share of
// processor, until it has rested; and a host that is promised away takes no
// more, also after a restart of the server.
func TestShares(t *testing.T) {
	dir := dataDir(t)
	tariff := testTariff
	tariff.MilliCPU = 100 // less than it gets on the busiest host
	few := func(c *node.Config) {
		c.Burst = 2 * time.Second
		c.Overcommit = node.Overcommit{CPU: 0.001, Memory: 1000, Disk: 1000}
	}
	n := newNodeWith(t, dir, few)
	_, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_a", Tariff: tariff})
	if got := eqvps.ErrorCode(err); got != eqvps.CodeCapacity {
		t.Errorf("on a host without room: %v", err)
	}
	closeNode(t, n)

	some := func(c *node.Config) {
		few(c)
		c.Overcommit.CPU = 0.199 / float64(node.HostCPUs()) // room for one
	}
	n = newNodeWith(t, dir, some)
	m, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_a", Tariff: tariff})
	if err != nil {
		t.Fatal(err)
	}
	busy := "while :; do :; done & echo $! > /run/busy"
	run(t, m, busy)
	waitFor(t, "it is limited", func() bool { return quota(t, n.Owner(), "sb_a") == "10000" })
	run(t, m, "kill $(cat /run/busy)")
	waitFor(t, "the limit is lifted", func() bool { return quota(t, n.Owner(), "sb_a") == "" })
	run(t, m, busy)
	waitFor(t, "it is limited again", func() bool { return quota(t, n.Owner(), "sb_a") == "10000" })
	m.Close()
	closeNode(t, n)

	n = newNodeWith(t, dir, some)
	defer closeNode(t, n)
	_, err = n.Start(t.Context(), eqvps.StartMachine{ID: "sb_b", Tariff: tariff})
	if got := eqvps.ErrorCode(err); got != eqvps.CodeCapacity {
		t.Errorf("beside a machine of before the restart: %v", err)
	}
	if m, err = n.Adopt(t.Context(), "sb_a"); err != nil {
		t.Fatal(err)
	}
	run(t, m, "kill $(cat /run/busy)")
	waitFor(t, "the limit of before is lifted", func() bool { return quota(t, n.Owner(), "sb_a") == "" })
	m.Close()
	if err := n.Destroy(context.Background(), "sb_a"); err != nil {
		t.Fatal(err)
	}
	m, err = n.Start(t.Context(), eqvps.StartMachine{ID: "sb_b", Tariff: tariff})
	if err != nil {
		t.Fatalf("in the place of one that is gone: %v", err)
	}
	m.Close()
	if err := n.Destroy(context.Background(), "sb_b"); err != nil {
		t.Fatal(err)
	}
}
