package guest_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// start starts a task that must be valid.
func start(t *testing.T, c *guest.Client, req eqvps.ExecRequest) *eqvps.Task {
	t.Helper()
	r := eqvps.StartTask{ExecRequest: req}
	if err := r.Validate(time.Hour); err != nil {
		t.Fatal(err)
	}
	task, err := c.StartTask(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func read(t *testing.T, c *guest.Client, id string, r eqvps.ReadTask) *eqvps.TaskOutput {
	t.Helper()
	out, err := c.ReadTask(t.Context(), id, r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// finished waits for a task's end and returns it with the whole of its output.
func finished(t *testing.T, c *guest.Client, id string) *eqvps.TaskOutput {
	t.Helper()
	wait(t, "the task has ended", func() bool { return read(t, c, id, eqvps.ReadTask{}).Task.Ended() })
	return read(t, c, id, eqvps.ReadTask{Max: eqvps.MaxTaskReadBytes})
}

func TestTaskStates(t *testing.T) {
	c := newMachine(t).renew(t, map[string]string{"SECRET": "s3"})
	for name, test := range map[string]struct {
		req      eqvps.ExecRequest
		state    eqvps.TaskState
		status   eqvps.ExitStatus
		out, err string
	}{
		"done":       {eqvps.ExecRequest{Command: "echo $SECRET; pwd; echo e >&2", Cwd: "/usr"}, eqvps.TaskDone, eqvps.ExitStatus{}, "s3\n/usr\n", "e\n"},
		"failed":     {eqvps.ExecRequest{Command: "echo x; exit 3"}, eqvps.TaskFailed, eqvps.ExitStatus{Code: 3}, "x\n", ""},
		"signal":     {eqvps.ExecRequest{Command: "kill -9 $$"}, eqvps.TaskFailed, eqvps.ExitStatus{Code: 137, Signal: "SIGKILL"}, "", ""},
		"timeout":    {eqvps.ExecRequest{Command: "echo begun; sleep 1000", Timeout: time.Second}, eqvps.TaskTimeout, eqvps.ExitStatus{Code: 124, TimedOut: true}, "begun\n", ""},
		"stdin":      {eqvps.ExecRequest{Argv: []string{"cat"}, Stdin: []byte("in\x00")}, eqvps.TaskDone, eqvps.ExitStatus{}, "in\x00", ""},
		"not found":  {eqvps.ExecRequest{Argv: []string{"no-such-program"}}, eqvps.TaskFailed, eqvps.ExitStatus{Code: 127}, "", "eqvps: no-such-program: command not found\n"},
		"leaves one": {eqvps.ExecRequest{Command: "sleep 1000 & echo up"}, eqvps.TaskDone, eqvps.ExitStatus{}, "up\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := start(t, c, test.req)
			if !eqvps.ValidTaskID(begun.ID) || begun.StartedAt.IsZero() {
				t.Errorf("at the start: %+v", begun)
			}
			got := finished(t, c, begun.ID)
			status := got.Task.ExitStatus
			status.Duration = 0
			if got.Task.State != test.state || status != test.status || string(got.Stdout.Data) != test.out || string(got.Stderr.Data) != test.err {
				t.Errorf("%s, %+v, %q, %q; want %+v", got.Task.State, status, got.Stdout.Data, got.Stderr.Data, test)
			}
			if got.Task.EndedAt.Before(got.Task.StartedAt) || got.Task.Duration < 0 {
				t.Errorf("times: %+v", got.Task)
			}
		})
	}
}

// A task belongs to no session: killed hosts come back to it, and to all it
// has printed meanwhile.
func TestTaskOutlivesItsSession(t *testing.T) {
	m := newMachine(t)
	gate := t.TempDir() + "/gate"
	id := start(t, m.connect(t), eqvps.ExecRequest{Command: "echo 1; until [ -e " + gate + " ]; do sleep 0.01; done; echo 2"}).ID
	c := m.connect(t) // the first session is over
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(finished(t, c, id).Stdout.Data); got != "1\n2\n" {
		t.Errorf("it printed %q", got)
	}
}

func TestKillTask(t *testing.T) {
	c := newMachine(t).connect(t)
	id := start(t, c, eqvps.ExecRequest{Command: "setsid sleep 1000 & echo $!; sleep 1000"}).ID
	var pid string
	wait(t, "it has printed", func() bool {
		pid = string(read(t, c, id, eqvps.ReadTask{Max: 100}).Stdout.Data)
		return pid != ""
	})
	for range 2 { // the second one changes nothing
		got, err := c.KillTask(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != eqvps.TaskKilled || got.Code != 137 || got.Signal != "SIGKILL" || got.EndedAt.IsZero() {
			t.Errorf("killed: %+v", got)
		}
	}
	wait(t, "the detached child is dead", func() bool { return !alive(pid) })
	if got := string(finished(t, c, id).Stdout.Data); got != pid {
		t.Errorf("what it printed before is %q, want %q", got, pid)
	}
	over := start(t, c, eqvps.ExecRequest{Command: "exit 4"}).ID
	finished(t, c, over)
	if got, err := c.KillTask(t.Context(), over); err != nil || got.State != eqvps.TaskFailed || got.Code != 4 {
		t.Errorf("killing one that has ended: %+v, %v", got, err)
	}
	_, err := c.KillTask(t.Context(), "task_00000000000000000000")
	if eqvps.ErrorCode(err) != eqvps.CodeTaskNotFound {
		t.Errorf("killing an unknown one: %v", err)
	}
}

// Starting an id again, as a host does that got no answer, starts nothing.
func TestStartTaskTwice(t *testing.T) {
	c := newMachine(t).connect(t)
	file := t.TempDir() + "/count"
	req := eqvps.StartTask{ExecRequest: eqvps.ExecRequest{Command: "echo >> " + file}}
	if err := req.Validate(time.Hour); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := c.StartTask(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	finished(t, c, req.ID)
	if b, err := os.ReadFile(file); err != nil || string(b) != "\n" {
		t.Errorf("it ran %d times, %v", len(b), err)
	}
	list, err := c.ListTasks(t.Context())
	if err != nil || len(list) != 1 {
		t.Errorf("%d tasks, %v", len(list), err)
	}
}

// Input beyond a pipe's lies on the disk: a task that never reads it costs the
// agent no memory, and one that does gets it whole.
func TestTaskInput(t *testing.T) {
	c := newMachine(t).connect(t)
	for _, size := range []int{64 << 10, 64<<10 + 1, eqvps.MaxStdinBytes} {
		id := start(t, c, eqvps.ExecRequest{Command: "wc -c; ls /proc/self/fd | wc -l", Stdin: make([]byte, size)}).ID
		if got, want := string(finished(t, c, id).Stdout.Data), fmt.Sprintf("%d\n4\n", size); got != want {
			t.Errorf("%d bytes: %q, want %q", size, got, want)
		}
	}
}

// Of a long stream the end is kept; a reader is told what it has missed.
func TestTaskOutputIsBounded(t *testing.T) {
	c := newMachine(t).connect(t)
	const lines = 1_300_000 // 9.3 MB
	whole := new(strings.Builder)
	for i := range lines {
		fmt.Fprintln(whole, i+1)
	}
	id := start(t, c, eqvps.ExecRequest{Command: fmt.Sprintf("seq 1 %d; echo small >&2", lines)}).ID
	var got strings.Builder
	var at, skipped int64
	for ended := false; ; {
		out := read(t, c, id, eqvps.ReadTask{Stdout: at, Max: eqvps.MaxTaskReadBytes})
		if out.Stdout.Offset != at+out.Stdout.Skipped {
			t.Fatalf("asked for %d, got %+v", at, out.Stdout.Offset)
		}
		if out.Stdout.Skipped > 0 {
			skipped += out.Stdout.Skipped
			got.Reset()
		}
		got.Write(out.Stdout.Data)
		at = out.Stdout.Next()
		if ended && at == out.Task.Stdout.Total {
			break
		}
		ended = out.Task.Ended()
	}
	if at != int64(whole.Len()) || !strings.HasSuffix(whole.String(), got.String()) {
		t.Errorf("%d bytes of %d were read; the last %d are not the last of the output", at, whole.Len(), got.Len())
	}
	out := read(t, c, id, eqvps.ReadTask{Max: eqvps.MaxTaskReadBytes})
	kept := out.Task.Stdout.Total - out.Task.Stdout.Dropped
	if kept < eqvps.TaskRetainBytes || kept > eqvps.TaskRetainBytes+64<<10 || out.Stdout.Skipped != out.Task.Stdout.Dropped || out.Stdout.Offset != out.Task.Stdout.Dropped {
		t.Errorf("%d bytes are kept; from the start: %d skipped, at %d", kept, out.Stdout.Skipped, out.Stdout.Offset)
	}
	if string(out.Stderr.Data) != "small\n" {
		t.Errorf("the other stream has %q", out.Stderr.Data)
	}
	beyond := read(t, c, id, eqvps.ReadTask{Stdout: 1 << 60, Stderr: 7, Max: 10})
	if beyond.Stdout.Next() != beyond.Task.Stdout.Total || len(beyond.Stdout.Data) > 0 || beyond.Stderr.Next() != 6 {
		t.Errorf("beyond the end: %+v", beyond)
	}
}

func TestTaskLimits(t *testing.T) {
	c := newMachine(t).connect(t)
	activity := func() eqvps.TaskActivity {
		a, err := c.TaskActivity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := activity(); a.Running != 0 || !a.LastEnd.IsZero() {
		t.Errorf("before the first: %+v", a)
	}
	var ids []string
	for range eqvps.MaxRunningTasks {
		ids = append(ids, start(t, c, eqvps.ExecRequest{Argv: []string{"sleep", "1000"}}).ID)
	}
	req := eqvps.StartTask{ExecRequest: eqvps.ExecRequest{Command: "true"}}
	if err := req.Validate(time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartTask(t.Context(), req); eqvps.ErrorCode(err) != eqvps.CodeTaskLimit {
		t.Errorf("one too many: %v", err)
	}
	if a := activity(); a.Running != eqvps.MaxRunningTasks || !a.LastEnd.IsZero() {
		t.Errorf("while they run: %+v", a)
	}
	for _, id := range ids {
		if _, err := c.KillTask(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if a := activity(); a.Running != 0 || time.Since(a.LastEnd) > time.Minute || time.Since(a.LastEnd) < 0 {
		t.Errorf("afterwards: %+v", a)
	}
	// The oldest are forgotten.
	var want []string
	for range eqvps.MaxTasks {
		id := start(t, c, eqvps.ExecRequest{Argv: []string{"true"}}).ID
		finished(t, c, id)
		want = append([]string{id}, want...)
	}
	list, err := c.ListTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, task := range list {
		got = append(got, task.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := c.ReadTask(t.Context(), ids[0], eqvps.ReadTask{}); eqvps.ErrorCode(err) != eqvps.CodeTaskNotFound {
		t.Errorf("reading a forgotten one: %v", err)
	}
}
