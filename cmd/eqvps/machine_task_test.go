package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

func startTask(t *testing.T, c *client.Client, id string, req wire.ExecRequest) string {
	t.Helper()
	task, err := c.StartTask(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	if task.State != "running" && task.ExitCode == nil {
		t.Errorf("started: %+v", task)
	}
	return task.TaskID
}

// follower reads a task's output as a client does: from one offset to the next.
type follower struct {
	id, task    string
	at          client.ReadTask
	out, errout strings.Builder
}

// read reads once. Whatever happens, no byte may be missing or come twice.
func (f *follower) read(t *testing.T, c *client.Client) *wire.TaskOutput {
	t.Helper()
	o, err := c.ReadTask(t.Context(), f.id, f.task, f.at)
	if err != nil {
		t.Fatal(err)
	}
	if o.StdoutSkipped != 0 || o.StdoutNextOffset != f.at.Stdout+int64(len(o.Stdout)) || o.StderrNextOffset != f.at.Stderr+int64(len(o.Stderr)) {
		t.Fatalf("asked for %+v, got %d and %d bytes, then %d and %d", f.at, len(o.Stdout), len(o.Stderr), o.StdoutNextOffset, o.StderrNextOffset)
	}
	f.out.WriteString(o.Stdout)
	f.errout.WriteString(o.Stderr)
	f.at.Stdout, f.at.Stderr = o.StdoutNextOffset, o.StderrNextOffset
	return o
}

// until reads on until cond holds.
func (f *follower) until(t *testing.T, c *client.Client, what string, cond func(*wire.TaskOutput) bool) *wire.TaskOutput {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		o := f.read(t, c)
		if cond(o) {
			return o
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s: %+v", what, o)
		}
	}
}

// end reads to the end of a task.
func (f *follower) end(t *testing.T, c *client.Client) *wire.TaskOutput {
	t.Helper()
	return f.until(t, c, "the task has ended", func(o *wire.TaskOutput) bool {
		return o.ExitCode != nil && o.StdoutNextOffset == o.StdoutTotal && o.StderrNextOffset == o.StderrTotal
	})
}

func TestTasks(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	var tasks []string
	for _, w := range []struct {
		req            wire.ExecRequest
		state          string
		code           int
		stdout, stderr string
		timedOut       bool
	}{
		{req: wire.ExecRequest{Command: "pwd; echo $A; echo e >&2", Cwd: "/tmp", Env: map[string]string{"A": "1"}}, state: "done", stdout: "/tmp\n1\n", stderr: "e\n"},
		{req: wire.ExecRequest{Argv: []string{"sh", "-c", "cat; exit 7"}, Stdin: "in"}, state: "failed", code: 7, stdout: "in"},
		{req: wire.ExecRequest{Command: "echo begun; setsid sleep 77 & sleep 77", Options: wire.Options{Timeout: 1}}, state: "timeout", code: 124, stdout: "begun\n", timedOut: true},
	} {
		f := &follower{id: id, task: startTask(t, c, id, w.req)}
		tasks = append([]string{f.task}, tasks...)
		o := f.end(t, c)
		if o.State != w.state || *o.ExitCode != w.code || f.out.String() != w.stdout || f.errout.String() != w.stderr || o.TimedOut != w.timedOut {
			t.Errorf("%+v: %s, exit code %d, %q, %q", w.req, o.State, *o.ExitCode, f.out.String(), f.errout.String())
		}
	}

	code, err := c.RunTask(t.Context(), id, wire.RunRequest{Language: "python", Code: "print(2 + 2)"})
	if err != nil {
		t.Fatal(err)
	}
	tasks = append([]string{code.TaskID}, tasks...)
	program := &follower{id: id, task: code.TaskID}
	if program.end(t, c); program.out.String() != "4\n" {
		t.Errorf("the program prints %q", program.out.String())
	}

	// A kill takes the whole tree; what was printed stays.
	f := &follower{id: id, task: startTask(t, c, id, wire.ExecRequest{Command: "setsid sleep 88 & echo up; sleep 88"})}
	tasks = append([]string{f.task}, tasks...)
	f.until(t, c, "it is up", func(*wire.TaskOutput) bool { return f.out.String() == "up\n" })
	for range 2 {
		k, err := c.KillTask(t.Context(), id, f.task)
		if err != nil {
			t.Fatal(err)
		}
		if k.State != "killed" || k.ExitCode == nil || *k.ExitCode != 137 {
			t.Errorf("killed: %+v", k)
		}
	}
	if got := shell(t, c, id, "pgrep -fc '[s]leep (77|88)' || true"); got != "0" {
		t.Errorf("%s processes of tasks that were killed live on", got)
	}
	whole := &follower{id: id, task: f.task}
	if whole.end(t, c); whole.out.String() != "up\n" {
		t.Errorf("after the kill its output is %q", whole.out.String())
	}

	list, err := c.ListTasks(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, task := range list.Data {
		got = append(got, task.TaskID)
	}
	if strings.Join(got, " ") != strings.Join(tasks, " ") {
		t.Errorf("listed are %v, want %v", got, tasks)
	}
	_, err = c.ReadTask(t.Context(), id, "task_00000000000000000000", client.ReadTask{})
	if eqvps.ErrorCode(err) != eqvps.CodeTaskNotFound {
		t.Errorf("an unknown task: %v", err)
	}
	_, err = c.StartTask(t.Context(), id, wire.ExecRequest{Command: "true", Options: wire.Options{Timeout: 100_000}})
	if eqvps.ErrorCode(err) != eqvps.CodeInvalidTimeout {
		t.Errorf("longer than the sandbox lives: %v", err)
	}
}

// TestTaskPrintsALot: of a long stream the last 8 MiB are kept; on a full disk
// nothing but old output is lost.
func TestTaskPrintsALot(t *testing.T) {
	_, c := startServer(t)
	const tail = "\n1600000\n"
	for _, full := range []bool{false, true} {
		id := newSandbox(t, c)
		if full {
			shell(t, c, id, "fallocate -l 100G /var/tmp/x 2>/dev/null; dd if=/dev/zero of=/var/tmp/y bs=4k 2>/dev/null; ! head -c 100000 /dev/zero 2>/dev/null >/var/tmp/z")
		}
		task := startTask(t, c, id, wire.ExecRequest{Command: "seq 1 1600000"})
		f := &follower{id: id, task: task}
		none := 0
		f.at.MaxBytes = &none
		deadline := time.Now().Add(30 * time.Second)
		var o *wire.TaskOutput
		for o == nil || o.ExitCode == nil {
			var err error
			if o, err = c.ReadTask(t.Context(), id, task, f.at); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("it does not end: %+v", o)
			}
			time.Sleep(100 * time.Millisecond)
		}
		const total = 11_688_896
		if o.State != "done" || o.StdoutTotal != total || o.StdoutDropped == 0 {
			t.Errorf("disk full: %v: %+v", full, o)
		}
		if kept := total - o.StdoutDropped; !full && (kept < eqvps.TaskRetainBytes || kept > eqvps.TaskRetainBytes+64<<10) {
			t.Errorf("%d bytes are kept", kept)
		}
		last, err := c.ReadTask(t.Context(), id, task, client.ReadTask{Stdout: total - int64(len(tail))})
		if err != nil || last.Stdout != tail {
			t.Errorf("disk full: %v: the end is %q, %v", full, last.Stdout, err)
		}
		// It is the disk that holds the output, not the agent.
		rss, err := strconv.Atoi(shell(t, c, id, "awk '/^VmRSS:/ { print $2 }' /proc/1/status"))
		if err != nil || rss > 40<<10 {
			t.Errorf("disk full: %v: the agent takes %d KiB, %v", full, rss, err)
		}
		t.Logf("disk full: %v: %d bytes kept, the agent takes %d KiB", full, total-o.StdoutDropped, rss)
		old, err := c.ReadTask(t.Context(), id, task, client.ReadTask{})
		if err != nil || old.StdoutSkipped != o.StdoutDropped {
			t.Errorf("from the start: %d skipped of %d dropped, %v", old.StdoutSkipped, o.StdoutDropped, err)
		}
	}
}

// Kind of fault: a background command cannot be found again, or its output has
// gaps.
//
// TestTaskOutlivesAKilledServer: who reads a task's output does not notice,
// but for the time it takes, that the server was killed in between.
func TestTaskOutlivesAKilledServer(t *testing.T) {
	server, addr := spawnServer(t)
	c := adminClient(t, addr)
	// Shorter than the task takes: it is the task that keeps it alive.
	idle := int64(10)
	sb, err := c.Create(t.Context(), wire.CreateSandbox{IdleTimeout: &idle})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{id: sb.ID, task: startTask(t, c, sb.ID, wire.ExecRequest{
		Command: fmt.Sprintf("exec 3<> <(:); for ((i = 1; i <= %d; i++)); do echo line $i; read -t %.3f -u 3; done; echo last >&2; exit 4", taskLines, lineMillis/1000.0),
	})}
	f.until(t, c, "it has printed", func(*wire.TaskOutput) bool { return strings.Count(f.out.String(), "\n") >= 20 })
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()

	_, c = startServer(t)
	t.Cleanup(func() {
		if _, err := c.Delete(context.Background(), sb.ID); err != nil {
			t.Error(err)
		}
	})
	o := f.read(t, c)
	if o.State != "running" {
		t.Errorf("after the restart: %+v", o)
	}
	// Nobody reads for longer than the idle timeout; listing is no activity.
	for {
		list, err := c.ListTasks(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if list.Data[0].State != "running" {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	o = f.end(t, c)
	if o.State != "failed" || *o.ExitCode != 4 || f.errout.String() != "last\n" {
		t.Errorf("it is %s, exit code %d, %q", o.State, *o.ExitCode, f.errout.String())
	}
	var want strings.Builder
	for i := range taskLines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if f.out.String() != want.String() {
		t.Errorf("the lines are not %d without gap or repeat:\n%s", taskLines, f.out.String())
	}
}
