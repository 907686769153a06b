package node_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/node"
)

var testKey = bytes.Repeat([]byte{42}, 32)

// persistent is what a persistent test machine is made of.
func persistent(id string) eqvps.StartMachine {
	return eqvps.StartMachine{
		ID: id, Tariff: testTariff, Persistent: true, Key: testKey,
		Env: eqvps.Env{"GREETING": "hello"},
	}
}

func startPersistent(t *testing.T, n *node.Node, id string) eqvps.Machine {
	t.Helper()
	m, err := n.Start(t.Context(), persistent(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() { // nothing outlives a test, whatever it found
			_ = n.Destroy(context.Background(), id)
		}
	})
	t.Cleanup(func() { m.Close() })
	return m
}

func pause(t *testing.T, n *node.Node, id string) {
	t.Helper()
	began := time.Now()
	if err := n.Pause(t.Context(), id, testKey); err != nil {
		t.Fatal(err)
	}
	t.Log(id, "paused in", time.Since(began))
	if !n.Paused(id) {
		t.Fatal("it is not paused")
	}
}

func resume(t *testing.T, n *node.Node, id string) eqvps.Machine {
	t.Helper()
	began := time.Now()
	m, err := n.Resume(t.Context(), persistent(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(id, "resumed in", time.Since(began))
	t.Cleanup(func() { m.Close() })
	if n.Paused(id) {
		t.Error("a machine that runs is paused too")
	}
	return m
}

func reboot(t *testing.T, n *node.Node, id string) eqvps.Machine {
	t.Helper()
	began := time.Now()
	m, err := n.Reboot(t.Context(), persistent(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(id, "rebooted in", time.Since(began))
	t.Cleanup(func() { m.Close() })
	return m
}

// state holds memory, an open file whose name is gone, a listening socket and
// randomness of its own, and tells of them when it is asked.
const stateProgram = `
import hashlib, os, random, socket, tempfile, time
data = bytearray(os.urandom(1 << 20)) * 30
kept = tempfile.TemporaryFile()
kept.write(b"kept open"); kept.flush()
s = socket.socket(); s.bind(("127.0.0.1", 4000)); s.listen()
last = 0.0
while True:
    c, _ = s.accept()
    kept.seek(0)
    now = time.time()
    line = "%s %s %s %d" % (hashlib.sha256(data).hexdigest(), kept.read().decode(), os.environ["GREETING"], now >= last)
    last = now
    c.sendall(line.encode() + b"\n"); c.close()
`

const askState = `python3 -c 'import socket; s = socket.create_connection(("127.0.0.1", 4000)); print(s.makefile().read(), end="")'`

func startState(t *testing.T, m eqvps.Machine) (answer string) {
	t.Helper()
	if _, err := m.Upload(t.Context(), eqvps.UploadRequest{Path: "/root/state.py", Content: strings.NewReader(stateProgram), Size: int64(len(stateProgram))}); err != nil {
		t.Fatal(err)
	}
	req := eqvps.StartTask{ExecRequest: eqvps.ExecRequest{Command: "echo begun; exec python3 /root/state.py"}}
	if err := req.Validate(time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := m.StartTask(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return run(t, m, "until "+askState+" 2>/dev/null; do sleep 0.1; done")
}

// TestPauseAndResume: a machine that was paused goes on where it was, over the
// end of everything that ran on the host, with the right time, new randomness
// and a network; twice, and again after a reboot.
func TestPauseAndResume(t *testing.T) {
	dir := dataDir(t)
	var pauses [][2]time.Time // while the guest was suspended
	var full bool             // the host's disk is
	step := func(label string) error {
		if label == "pause.state" && full {
			return unix.ENOSPC
		}
		if label == "pause.folder" { // the guest is suspended, its machine runs
			begin := time.Now()
			time.Sleep(200 * time.Millisecond) // in which nothing should happen
			pauses = append(pauses, [2]time.Time{begin, time.Now()})
		}
		return nil
	}
	n := newNode(t, dir, step)
	m := startPersistent(t, n, "sb_a")
	answer := startState(t, m)
	if want := "kept open hello 1"; !strings.HasSuffix(answer, want) {
		t.Fatalf("the program says %q", answer)
	}
	identity := "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname"
	same := run(t, m, identity)
	const random = "head -c 16 /dev/urandom | xxd -p"
	seen := map[string]bool{run(t, m, random): true}
	// Processes that left the commands' cgroups stand still all the same.
	run(t, m, `echo $$ >/sys/fs/cgroup/cgroup.procs
		python3 -c 'import time
while True:
    with open("/root/stray", "a") as f: print(time.time(), file=f)
    time.sleep(0.005)' >/dev/null 2>&1 &
		mkdir /sys/fs/cgroup/own; (echo $BASHPID >/sys/fs/cgroup/own/cgroup.procs; exec sleep 10000) >/dev/null 2>&1 &`)

	for _, build := range []string{"", "2"} {
		old := m
		pause(t, n, "sb_a")
		select {
		case <-old.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the machine that was paused still runs")
		}
		closeNode(t, n)
		noSecret(t, filepath.Join(dir, "machines", "sb_a"), "kept open")
		n = newNodeOf(t, dir, step, build) // whose templates are others
		if _, err := n.Adopt(t.Context(), "sb_a"); err == nil {
			t.Error("a paused machine is adopted")
		}
		if build == "" {
			damaged(t, n, filepath.Join(dir, "machines", "sb_a", "paused"))
		}
		m = resume(t, n, "sb_a")
		if got := run(t, m, askState); got != answer {
			t.Errorf("the program says %q, before it was %q", got, answer)
		}
		if got := run(t, m, identity); got != same {
			t.Errorf("identity: %q, before it was %q", got, same)
		}
		if r := run(t, m, random); seen[r] {
			t.Error("randomness is repeated")
		} else {
			seen[r] = true
		}
		checkClock(t, m)
		sends(t, m)
		tasks, err := m.ListTasks(t.Context())
		if err != nil || len(tasks) != 1 || tasks[0].State != eqvps.TaskRunning {
			t.Errorf("the tasks: %+v, %v", tasks, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "machines", "sb_a", "resuming")); err == nil {
			t.Error("memory that was used is kept")
		}
	}
	for _, line := range strings.Fields(run(t, m, "cat /root/stray")) {
		at, err := time.ParseDuration(line + "s")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pauses {
			// The clocks differ by what a message takes.
			if at := time.Unix(0, int64(at)); at.After(p[0].Add(50*time.Millisecond)) && at.Before(p[1].Add(-50*time.Millisecond)) {
				t.Fatalf("a process ran at %v, while the machine was suspended from %v to %v", at, p[0], p[1])
			}
		}
	}
	if got := run(t, m, `pgrep -x sleep | wc -l`); got != "1" {
		t.Errorf("%s processes are in a cgroup of their own", got)
	}

	run(t, m, "echo on disk >/root/file; sync")
	m = reboot(t, n, "sb_a")
	if got := run(t, m, "cat /root/file; echo $GREETING; pgrep -x python3 | wc -l; cat /etc/machine-id"); got != "on disk\nhello\n0\n"+strings.Fields(same)[0] {
		t.Errorf("after a reboot: %q", got)
	}
	answer = startState(t, m)
	pause(t, n, "sb_a")
	closeNode(t, n)
	n = newNode(t, dir, step)
	m = resume(t, n, "sb_a")
	if got := run(t, m, askState); got != answer {
		t.Errorf("the program says %q, before it was %q", got, answer)
	}
	full = true
	if err := n.Pause(t.Context(), "sb_a", testKey); eqvps.ErrorCode(err) != eqvps.CodeCapacity || n.Paused("sb_a") {
		t.Errorf("on a full disk: %v, paused: %v", err, n.Paused("sb_a"))
	}
	full = false
	if got := run(t, m, askState+"; echo $GREETING"); got != answer+"\nhello" {
		t.Errorf("after a pause that failed the program says %q, before it was %q", got, answer)
	}
	// A paused machine whose memory is not wanted starts from its disk.
	run(t, m, "echo more >>/root/file; sync")
	pause(t, n, "sb_a")
	m = reboot(t, n, "sb_a")
	if got := run(t, m, "cat /root/file"); got != "on disk\nmore" || n.Paused("sb_a") {
		t.Errorf("after a reboot: %q, paused: %v", got, n.Paused("sb_a"))
	}
	m.Close()
	// A disk that cannot be mounted.
	f, err := os.OpenFile(filepath.Join(dir, "machines", "sb_a", "upper.ext4"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(make([]byte, 1<<20), 0)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reboot(t.Context(), persistent("sb_a")); eqvps.ErrorCode(err) != eqvps.CodeStartFailed || !strings.Contains(err.Error(), "mount /upper") {
		t.Errorf("with a damaged disk: %v", err)
	}
	destroyed(t, n, dir, "sb_a")
	closeNode(t, n)
}

// damaged holds that what cannot be resumed gives an error, runs nothing and
// stays.
func damaged(t *testing.T, n *node.Node, paused string) {
	t.Helper()
	try := func(what string, m eqvps.StartMachine) {
		t.Helper()
		if _, err := n.Resume(t.Context(), m); eqvps.ErrorCode(err) != eqvps.CodeStartFailed {
			t.Errorf("%s: the error is %v", what, err)
		}
		if pids := monitors(filepath.Dir(filepath.Dir(filepath.Dir(paused)))); !n.Paused(m.ID) || len(pids) > 0 {
			t.Errorf("%s: paused: %v, monitors: %v", what, n.Paused(m.ID), pids)
		}
	}
	m := persistent("sb_a")
	m.Key = bytes.Repeat([]byte{1}, 32)
	try("a wrong key", m)
	m.Key = nil
	try("no key", m)
	for _, change := range []struct{ file, old, new string }{
		{"memory", "", ""}, {"state", "", ""}, {"paused.json", `"version":"`, `"version":"x`}, {"paused.json", `"build":"`, `"build":"x`},
	} {
		path := filepath.Join(paused, change.file)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		broken := bytes.Replace(whole, []byte(change.old), []byte(change.new), 1)
		if change.old == "" {
			broken = bytes.Clone(whole)
			broken[len(broken)-1] ^= 1
		}
		if bytes.Equal(broken, whole) {
			t.Fatal("nothing is changed")
		}
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		try("a damaged "+change.file, persistent("sb_a"))
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// sends holds that what the guest sends comes out of its machine.
func sends(t *testing.T, m eqvps.Machine) {
	t.Helper()
	before, err := m.EgressBytes()
	if err != nil {
		t.Fatal(err)
	}
	run(t, m, "head -c 1000 /dev/zero >/dev/udp/192.0.2.1/9")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if after, err := m.EgressBytes(); err != nil || after >= before+1000 {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is sent")
		}
	}
}

func checkClock(t *testing.T, m eqvps.Machine) {
	t.Helper()
	before := time.Now()
	at, err := time.ParseDuration(run(t, m, "date +%s.%N") + "s")
	if err != nil {
		t.Fatal(err)
	}
	guest := time.Unix(0, int64(at))
	if guest.Before(before.Add(-time.Second)) || guest.After(time.Now().Add(time.Second)) {
		t.Errorf("the guest's time is %v, it is %v", guest, time.Now())
	}
}

// noSecret fails if text lies in clear in a file of a folder; the disk of a
// machine is not looked at.
func noSecret(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "upper.ext4" {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) {
			t.Errorf("%s holds %q in clear", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// destroyed destroys a machine and fails if anything is left of it.
func destroyed(t *testing.T, n *node.Node, dir, id string) {
	t.Helper()
	if err := n.Destroy(context.Background(), id); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "machines", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/eqvps/*/" + id, "/sys/fs/cgroup/*/eqvps/*/" + id} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 && strings.Contains(strings.Join(left, " "), n.Owner()) {
			t.Errorf("left: %v", left)
		}
	}
	if pids := monitors(dir); len(pids) > 0 {
		t.Errorf("monitors are left: %v", pids)
	}
}

// monitors are the processes whose folder lies in a data folder.
func monitors(dir string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte("="+dir+"/machines/")) {
			pids = append(pids, strings.Split(f, "/")[2])
		}
	}
	return pids
}
