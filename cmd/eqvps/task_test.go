package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps/wire"
)

func TestTaskCommands(t *testing.T) {
	t.Setenv("FROM_HERE", "v=1")
	ended := testNow.Add(-time.Minute)
	running := wire.Task{TaskID: "task_1", State: "running", Command: "make\x1b[2J", StartedAt: testNow.Add(-3 * time.Minute), RunningSeconds: 180}
	failed := wire.Task{TaskID: "task_2", State: "failed", Command: "false", ExitCode: new(1), StartedAt: ended, EndedAt: &ended, RunningSeconds: 1, StdoutTotal: 7}
	tasks := "/sandboxes/" + testID + "/tasks"
	for name, c := range map[string]struct {
		args    []string
		stdin   string
		want    outcomeOf
		request string // the last one
	}{
		"start": {
			args:    []string{"task", "start", testID, "--cwd", "/tmp", "-e", "FROM_HERE", "-i", "--timeout", "600", "--", "make", "all"},
			stdin:   "in",
			want:    outcomeOf{Stdout: "task_1\n"},
			request: "POST /sandboxes/" + testID + `/exec {"argv":["make","all"],"cwd":"/tmp","env":{"FROM_HERE":"v=1"},"stdin_base64":"aW4=","timeout":600,"async":true}`,
		},
		"start of one argument is a shell's, as long as the sandbox lives": {
			args:    []string{"task", "start", testID, "--", "a | b"},
			want:    outcomeOf{Stdout: "task_1\n"},
			request: "POST /sandboxes/" + testID + `/exec {"command":"a | b","async":true}`,
		},
		"start of nothing":       {args: []string{"task", "start", testID, "--"}, want: outcomeOf{2, "", "eqvps: there is no command after --\n"}},
		"start without time":     {args: []string{"task", "start", "--timeout", "0", testID, "--", "x"}, want: outcomeOf{2, "", "eqvps: --timeout must be at least 1 second\n"}},
		"start with a bad place": {args: []string{"task", "start", "--cwd", "tmp", testID, "--", "x"}, want: outcomeOf{2, "", "eqvps: The path \"tmp\" is relative; use an absolute path such as /root/task.py.\n"}},
		"list": {
			args: []string{"task", "list", testID},
			want: outcomeOf{Stdout: "" +
				"ID      STATE    EXIT CODE  STARTED    RAN    COMMAND\n" +
				"task_2  failed   1          60 s ago   1 s    false\n" +
				"task_1  running  -          3 min ago  3 min  make\\x1b[2J\n"},
			request: "GET " + tasks,
		},
		"logs of what runs": {
			args:    []string{"task", "logs", testID, "task_1"},
			want:    outcomeOf{0, "a\xff\n", "eqvps: 5 bytes of its output are gone already: only the end is kept\ne\n"},
			request: "GET " + tasks + "/task_1?encoding=base64&stderr_offset=0&stdout_offset=0",
		},
		"logs of what has ended": {
			args:    []string{"task", "logs", "-f", testID, "task_2"},
			want:    outcomeOf{0, "\x1b[1mx\n", "eqvps: the task is failed (exit code 1)\n"},
			request: "GET " + tasks + "/task_2?encoding=base64&stderr_offset=0&stdout_offset=0",
		},
		"kill": {
			args: []string{"task", "kill", testID, "task_2", "task_3"},
			want: outcomeOf{1, "task_2 is failed after 1.0 s\n", "eqvps: Nothing here. Look elsewhere.\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newAPI(t)
			f.answers["POST /sandboxes/"+testID+"/exec"] = running
			f.answers["GET "+tasks] = wire.TaskList{Data: []wire.Task{failed, running}}
			f.answers["GET "+tasks+"/task_1"] = wire.TaskOutput{Task: running, StdoutBase64: []byte("a\xff\n"), StderrBase64: []byte("e\n"), StdoutNextOffset: 8, StderrNextOffset: 2, StdoutSkipped: 5}
			f.answers["GET "+tasks+"/task_2"] = wire.TaskOutput{Task: failed, StdoutBase64: []byte("\x1b[1mx\n"), StdoutNextOffset: 7}
			f.answers["DELETE "+tasks+"/task_2"] = failed
			got := invoke(t, c.stdin, c.args...)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if c.request != "" && (len(f.asked) == 0 || f.asked[len(f.asked)-1] != c.request) {
				t.Errorf("asked %q, want %q", f.asked, c.request)
			}
		})
	}
}

// TestFollowingOutlastsTheServer: a task's output is followed across a restart
// of the server, without a gap or a repeat, but not for ever, and not past a
// refusal.
func TestFollowingOutlastsTheServer(t *testing.T) {
	running := wire.Task{TaskID: "task_1", State: "running"}
	done := wire.Task{TaskID: "task_1", State: "done", ExitCode: new(0), StdoutTotal: 4}
	first := wire.TaskOutput{Task: running, StdoutBase64: []byte("a\n"), StdoutNextOffset: 2}
	last := wire.TaskOutput{Task: done, StdoutBase64: []byte("b\n"), StdoutNextOffset: 4}
	const away = "eqvps: the server does not answer; trying again for 60 s\n"
	for name, c := range map[string]struct {
		answers []any // of the server, one after another; an error is a status; nil: the connection is cut
		ages    bool  // an hour passes between any two looks at the clock
		want    outcomeOf
	}{
		"restart":  {answers: []any{first, 503, nil, last}, want: outcomeOf{0, "a\nb\n", away + "eqvps: the task is done (exit code 0)\n"}},
		"twice":    {answers: []any{first, 503, first, 502, last}, want: outcomeOf{0, "a\na\nb\n", away + away + "eqvps: the task is done (exit code 0)\n"}},
		"refused":  {answers: []any{first, 504, 410}, want: outcomeOf{1, "a\n", away + "eqvps: No.\n"}},
		"too long": {answers: []any{first, 503}, ages: true, want: outcomeOf{1, "a\n", "eqvps: No.\n"}},
		"never":    {answers: []any{503}, want: outcomeOf{1, "", "eqvps: No.\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			left := c.answers
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if len(left) == 0 {
					t.Error("asked once more")
					return
				}
				answer := left[0]
				left = left[1:]
				switch answer := answer.(type) {
				case nil:
					panic(http.ErrAbortHandler)
				case int:
					w.WriteHeader(answer)
					_ = json.NewEncoder(w).Encode(wire.Error{Code: "internal", Message: "No."})
				default:
					_ = json.NewEncoder(w).Encode(answer)
				}
			}))
			t.Cleanup(s.Close)
			t.Setenv(envBaseURL, s.URL)
			t.Setenv(envAPIKey, "key")
			now := testNow
			var out, errout bytes.Buffer
			a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errout, now: func() time.Time {
				if c.ages {
					now = now.Add(time.Hour)
				}
				return now
			}}
			code := a.run(t.Context(), []string{"task", "logs", "-f", testID, "task_1"})
			if diff := cmp.Diff(c.want, outcomeOf{code, out.String(), errout.String()}); diff != "" {
				t.Error(diff)
			}
		})
	}
}
