package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// attacks are what root in a sandbox can do to its own machine, its agent and
// its way to the host.
var attacks = []struct {
	name, command string
	ends          bool // the machine cannot survive it
	broken        bool // it may, but no shell can be started any more
	hangs         bool // it stays up and answers nobody
}{
	{name: "kills all processes", command: "kill -9 -1"},
	{name: "signals the agent", command: "for s in 1 2 3 6 9 15 17 18 19 20; do kill -$s 1; done"},
	{name: "makes the agent crash", command: "kill -SEGV 1; sleep 5"},
	{name: "writes into the agent", broken: true, command: `python3 -c '
import os
mem = open("/proc/1/mem", "wb", 0)
for line in open("/proc/1/maps"):
    if " rw" in line:
        a, b = (int(x, 16) for x in line.split()[0].split("-"))
        try: os.pwrite(mem.fileno(), os.urandom(min(b - a, 1 << 20)), a)
        except OSError: pass'; sleep 5`},
	{name: "forks without end", command: "bomb() { bomb | bomb & }; bomb; sleep 30"},
	{name: "leaves endless forks behind", broken: true, command: "bomb() { bomb | bomb & }; bomb"},
	{name: "fills the disk", command: "fallocate -l 100G /x; fallocate -l $(($(df --output=avail -B1 / | tail -1) - 1000000)) /y; cat /dev/zero > /z"},
	{name: "fills the memory with files", broken: true, command: "mount -t tmpfs -o size=100% x /mnt; cat /dev/zero > /mnt/x"},
	{name: "writes garbage to its port", command: "for p in /dev/vport*; do head -c 1000000 /dev/urandom > $p; done"},
	{name: "takes the port away", broken: true, command: "cd /sys/bus/virtio/drivers/virtio_console; for d in virtio*; do echo $d > unbind; done"},
	{name: "takes the port over", broken: true, command: `cd /sys/bus/virtio/drivers/virtio_console
setsid sh -c 'for d in virtio*; do echo $d > unbind; echo $d > bind; done; sleep 0.1; for p in /dev/vport*; do cat /dev/urandom > $p & cat $p > /dev/null & done' & sleep 3`},
	{name: "unmounts everything", broken: true, command: "umount -l /dev /sys /proc /tmp /"},
	{name: "removes the programs", broken: true, command: "rm -rf /bin /sbin /lib /lib64 /usr/bin /usr/sbin"},
	{name: "freezes the agent", hangs: true, command: "g=$(find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d | head -1); mkdir -p /sys/fs/cgroup/x; echo 1 > /sys/fs/cgroup/x/cgroup.procs; echo 1 > /sys/fs/cgroup/x/cgroup.freeze"},
	{name: "panics", ends: true, command: "echo c > /proc/sysrq-trigger"},
	{name: "panics and stays so", hangs: true, command: "echo 0 > /proc/sys/kernel/panic; echo c > /proc/sysrq-trigger"},
	{name: "reboots", ends: true, command: `python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x01234567)'`},
	{name: "halts", hangs: true, command: `python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0xcdef0123 - (1 << 32))'`},
	{name: "sets the clock back", command: "date -s 1970-01-01"},
	{name: "sets the clock forward", command: "date -s 2100-01-01"},
}

// TestHostileGuest: whatever root does in a sandbox, the server answers, others
// notice nothing, and the sandbox goes on or ends with a reason.
func TestHostileGuest(t *testing.T) {
	_, c := startServer(t)
	bystander := newSandbox(t, c)
	atOnce := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for _, a := range attacks {
		if a.hangs && !hangingGuests {
			continue
		}
		wg.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			began := time.Now()
			end := attack(t, c, a.command, a.ends || a.hangs, a.broken)
			if end == "" {
				t.Errorf("%s: it neither answers nor ends", a.name)
			}
			t.Logf("%s: %s after %s", a.name, end, time.Since(began).Round(time.Second))
			if r, err := c.Exec(t.Context(), bystander, wire.ExecRequest{Command: "echo ok"}); err != nil || r.Stdout != "ok\n" {
				t.Errorf("%s: another sandbox: %+v, %v", a.name, r, err)
			}
			if _, err := c.List(t.Context(), client.ListOptions{}); err != nil {
				t.Errorf("%s: the server: %v", a.name, err)
			}
		})
	}
	wg.Wait()
	for _, what := range leftoverMachines(machineData) {
		if !strings.Contains(what, bystander) && !strings.HasPrefix(what, "monitor ") {
			t.Errorf("left behind: %s", what)
		}
	}
	if n := len(monitors(machineData)); n != 1 {
		t.Errorf("%d monitors run for one sandbox", n)
	}
}

// attack has a sandbox of its own attacked and tells how that ended: "alive",
// the reason for which it has ended, or "" if it did neither in time.
func attack(t *testing.T, c *client.Client, command string, ends, broken bool) string {
	idle := int64(10)
	sb, err := c.Create(t.Context(), wire.CreateSandbox{IdleTimeout: &idle})
	if err != nil {
		return fmt.Sprintf("no sandbox: %v", err)
	}
	defer func() {
		if _, err := c.Delete(context.WithoutCancel(t.Context()), sb.ID); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}()
	_, err = c.Exec(t.Context(), sb.ID, wire.ExecRequest{Command: command, Options: wire.Options{Timeout: 10}})
	if !slices.Contains([]eqvps.Code{"", eqvps.CodeUnreachable, eqvps.CodeSandboxEnded}, eqvps.ErrorCode(err)) {
		t.Errorf("%s: %v", command, err)
	}
	// A sign of life is no activity: a machine that hangs ends by being idle, and
	// gets a minute more in which to answer whether it works.
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		got, err := c.Get(t.Context(), sb.ID)
		if err != nil {
			t.Errorf("%s: %v", command, err)
			continue
		}
		if got.Reason != nil {
			if got.EndedAt == nil || !slices.Contains([]string{"error", "oom", "idle"}, *got.Reason) {
				t.Errorf("%s: it ended as %+v", command, got)
			}
			return *got.Reason
		}
		if ends {
			continue
		}
		if _, err := c.Ping(t.Context(), sb.ID); err != nil {
			continue
		}
		if broken {
			return "alive"
		}
		if r, err := c.Exec(t.Context(), sb.ID, wire.ExecRequest{Command: "echo ok"}); err == nil && r.Stdout == "ok\n" {
			return "alive"
		}
	}
	return ""
}
