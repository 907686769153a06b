package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// newPersistent creates a persistent sandbox. The test calls deleteAtEnd on the
// server that is there in the end.
func newPersistent(t *testing.T, c *client.Client, req wire.CreateSandbox) string {
	t.Helper()
	req.Mode = string(eqvps.Persistent)
	sb, err := c.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// deleteAtEnd deletes a sandbox when the test ends.
func deleteAtEnd(t *testing.T, c *client.Client, id string) {
	t.Cleanup(func() {
		if _, err := c.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
}

// kinds are the events of a sandbox, in order.
func kinds(t *testing.T, c *client.Client, id string) (out []string) {
	t.Helper()
	list, err := c.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Data {
		out = append(out, e.Kind)
	}
	return out
}

// stateful holds 100 MiB that only it knows, a file that is open and has no
// name any more, and a listening socket, and answers with the sum of all.
const stateful = `
import hashlib, os, socket, random
r = random.Random(4711)
state = bytearray(r.randbytes(1 << 20) * 100)
f = open("/root/held", "w+b"); f.write(b"held open"); f.flush(); os.unlink("/root/held")
s = socket.create_server(("127.0.0.1", 7000))
print(hashlib.sha256(state).hexdigest(), flush=True)
n = 0
while True:
    c, _ = s.accept()
    n += 1
    f.seek(0)
    c.sendall(("%s %s %d %s" % (hashlib.sha256(state).hexdigest(), f.read().decode(), n, os.environ["CANARY"][:6])).encode())
    c.close()
`

const ask = `python3 -c 'import socket
c = socket.create_connection(("127.0.0.1", 7000), 20)
print(c.makefile().read())'`

// TestPausedSandboxOutlivesServerAndMachine: what runs in a persistent sandbox
// goes on where it was after a pause, a stop of the server, the end of every
// process of it, and a start; and its memory lies nowhere in clear meanwhile.
func TestPausedSandboxOutlivesServerAndMachine(t *testing.T) {
	server, addr := spawnServer(t)
	c := adminClient(t, addr)
	canary := "canary" + strconv.FormatInt(time.Now().UnixNano(), 36) + "xyzzy"
	id := newPersistent(t, c, wire.CreateSandbox{Env: map[string]string{"CANARY": canary}})
	if _, err := c.Upload(t.Context(), id, "/root/stateful.py", 0o644, strings.NewReader(stateful), int64(len(stateful))); err != nil {
		t.Fatal(err)
	}
	f := &follower{id: id, task: startTask(t, c, id, wire.ExecRequest{Command: "python3 /root/stateful.py"})}
	f.until(t, c, "it listens", func(*wire.TaskOutput) bool { return strings.Count(f.out.String(), "\n") == 1 })
	sum := strings.TrimSpace(f.out.String())
	if got, want := shell(t, c, id, ask), sum+" held open 1 canary"; got != want {
		t.Fatalf("before the pause it says %q, want %q", got, want)
	}
	before := shell(t, c, id, "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname; head -c 16 /dev/urandom | base64")

	if _, err := c.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "true"})
	if eqvps.ErrorCode(err) != eqvps.CodePaused {
		t.Errorf("exec while it is paused: %v", err)
	}
	if pids := monitors(machineData); len(pids) > 1 { // one stands by
		t.Errorf("%d monitors run", len(pids))
	}
	for _, where := range findCanary(t, canary, machineData) {
		t.Errorf("the value of a variable lies in clear in %s", where)
	}
	stopServer(t, server)
	if pids := monitors(machineData); len(pids) > 0 {
		for _, pid := range pids { // a machine on standby is gone with its server
			t.Errorf("monitor %d runs without a server", pid)
		}
	}

	_, c = startServer(t)
	deleteAtEnd(t, c, id)
	began := time.Now()
	if _, err := c.Resume(t.Context(), id, false); err != nil {
		t.Fatal(err)
	}
	now := shell(t, c, id, "date +%s%N")
	ended := time.Now()
	if ns, err := strconv.ParseInt(now, 10, 64); err != nil || time.Unix(0, ns).Before(began.Add(-time.Second)) || time.Unix(0, ns).After(ended.Add(time.Second)) {
		t.Errorf("its clock says %s, it is %d", now, ended.UnixNano())
	}
	if got, want := shell(t, c, id, ask), sum+" held open 2 canary"; got != want {
		t.Errorf("after the resume it says %q, want %q", got, want)
	}
	after := shell(t, c, id, "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname; head -c 16 /dev/urandom | base64")
	b, a := strings.Fields(before), strings.Fields(after)
	if !slices.Equal(b[:3], a[:3]) || b[3] == a[3] {
		t.Errorf("boot id, machine id, host name and random bytes were %q and are %q", b, a)
	}
	if got := shell(t, c, id, "getent hosts localhost >/dev/null && ip -4 route get 198.51.100.1 >/dev/null 2>&1; cat /sys/class/net/eth0/operstate"); got != "up" && got != "unknown" {
		t.Errorf("its network is %q", got)
	}
	if o := f.read(t, c); o.State != "running" {
		t.Errorf("its task is %s", o.State)
	}
	want := []string{"created", "started", "paused", "resumed"}
	if got := kinds(t, c, id); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

// TestPersistentSandboxAfterCrash: a sandbox whose machine was lost with its
// server comes back from its disk, and says so.
func TestPersistentSandboxAfterCrash(t *testing.T) {
	server, addr := spawnServer(t)
	c := adminClient(t, addr)
	id := newPersistent(t, c, wire.CreateSandbox{Env: map[string]string{"KEPT": "still here"}})
	shell(t, c, id, "echo synced > /root/file && sync; (sleep 600 &)")
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()
	for _, pid := range monitors(machineData) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}

	_, c = startServer(t)
	deleteAtEnd(t, c, id)
	if got := shell(t, c, id, "cat /root/file; echo $KEPT; pgrep -fc '[s]leep 600' || true"); got != "synced\nstill here\n0" {
		t.Errorf("after the crash it says %q", got)
	}
	list, err := c.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	last := list.Data[len(list.Data)-1]
	if last.Kind != "rebooted" || last.Reason == nil || *last.Reason != "host_lost" || last.Detail == "" {
		t.Errorf("the last event is %+v", last)
	}

	// What came from a disk can be paused like any other.
	shell(t, c, id, "mkfifo /tmp/f; (while read l < /tmp/f; do echo got $l > /root/said; done) > /dev/null 2>&1 & echo started")
	if _, err := c.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resume(t.Context(), id, false); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, c, id, "echo hello > /tmp/f; for i in $(seq 200); do [ -s /root/said ] && break; sleep 0.05; done; cat /root/said"); got != "got hello" {
		t.Errorf("a process of before the pause says %q", got)
	}

	// Its kernel dies: it comes back from its disk again.
	_, _ = c.Exec(t.Context(), id, wire.ExecRequest{Command: "sync; echo b > /proc/sysrq-trigger"})
	for deadline := time.Now().Add(60 * time.Second); ; {
		r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "cat /root/said"})
		if err == nil && r.Stdout == "got hello\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not come back: %+v, %v", r, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestIdlePersistentSandboxSleeps: it is paused, and the next use wakes it.
func TestIdlePersistentSandboxSleeps(t *testing.T) {
	_, c := startServer(t)
	idle := int64(10)
	id := newPersistent(t, c, wire.CreateSandbox{IdleTimeout: &idle})
	deleteAtEnd(t, c, id)
	shell(t, c, id, "echo $$ > /run/state")
	waitFor(t, 60*time.Second, "it is paused", func() bool {
		sb, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return sb.State == "paused" && sb.PauseReason != nil && *sb.PauseReason == "idle"
	})
	if got := shell(t, c, id, "cat /run/state"); got == "" {
		t.Error("what was in its memory is gone")
	}
	if got, want := kinds(t, c, id), []string{"created", "started", "paused", "resumed"}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

// waitFor polls until a condition holds.
func waitFor(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !cond(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in %s it was not so that %s", within, what)
		}
	}
}
