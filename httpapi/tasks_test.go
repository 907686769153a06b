package httpapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps/wire"
)

// startTask starts one over REST and returns its address.
func startTask(t *testing.T, base, id, command string) string {
	t.Helper()
	resp, body := send(t, "POST", base+api+"/sandboxes/"+id+"/exec", `{"command":"`+command+`","async":true}`)
	var task wire.Task
	if err := json.Unmarshal([]byte(body), &task); err != nil || resp.StatusCode != 202 {
		t.Fatalf("%s: %s", resp.Status, body)
	}
	return base + api + "/sandboxes/" + id + "/tasks/" + task.TaskID
}

// TestTaskScenarios walks through the calls on tasks as callers make them.
func TestTaskScenarios(t *testing.T) {
	f := newFake()
	base := f.server(t)
	id, old := f.sandbox(t), f.sandbox(t)
	if _, err := f.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	sleep, failed, flood, split := startTask(t, base, id, "sleep"), startTask(t, base, id, "fail"), startTask(t, base, id, "flood"), startTask(t, base, id, "split")
	sandbox := base + api + "/sandboxes/" + id
	unknown := sandbox + "/tasks/task_00000000000000000000"
	for _, c := range []struct {
		name, method, url, body string
		status                  int
		want, not               []string
	}{
		{"start", "POST", sandbox + "/exec", `{"command":"sleep","async":true,"timeout":600,"cwd":"/tmp","env":{"A":"` + canary + `"}}`, 202,
			[]string{`"task_id":"task_`, `"state":"running"`, `"exit_code":null`, `"signal":null`, `"command":"sleep"`, `"started_at":"2026-07-28T10:00:00Z"`, `"ended_at":null`, `"running_seconds":1.5`}, []string{canary, `"stdout"`}},
		{"start argv", "POST", sandbox + "/exec", `{"argv":["echo","a b"],"async":true}`, 202, []string{`"state":"done"`, `"command":"echo a b"`, `"exit_code":0`, `"stdout_total":4`}, nil},
		{"start code", "POST", sandbox + "/run", `{"language":"python","code":"echo hi","async":true}`, 202, []string{`"state":"done"`, `"command":"python3 -"`}, nil},
		{"start too long", "POST", sandbox + "/exec", `{"command":"echo","async":true,"timeout":3601}`, 400, []string{"invalid_timeout", "another 3600 seconds"}, nil},
		{"start too short", "POST", sandbox + "/exec", `{"command":"echo","async":true,"timeout":0.5}`, 400, []string{"invalid_timeout", "at least 1 second"}, nil},
		{"start nothing", "POST", sandbox + "/exec", `{"async":true}`, 400, []string{"command is empty"}, nil},
		{"start with an encoding", "POST", sandbox + "/exec", `{"command":"echo","async":true,"encoding":"base64"}`, 422, []string{"invalid_value", "when its output is read"}, nil},
		{"start as a stream", "POST", sandbox + "/exec/stream", `{"command":"echo","async":true}`, 422, []string{"no stream"}, nil},
		{"start one too many", "POST", sandbox + "/exec", `{"command":"crowded","async":true}`, 429, []string{"task_limit_reached"}, []string{"retry_after"}},
		{"start in an ended one", "POST", base + api + "/sandboxes/" + old + "/exec", `{"command":"echo","async":true}`, 410, []string{"sandbox_ended"}, nil},
		{"not in the background", "POST", sandbox + "/exec", `{"command":"echo hi","async":false}`, 200, []string{`"stdout":"hi\n"`}, nil},

		{"read", "GET", sleep, "", 200, []string{`"state":"running"`, `"stdout":"asleep\n"`, `"stderr":""`, `"stdout_next_offset":7`, `"stdout_total":7`, `"stdout_dropped":0`, `"stdout_skipped":0`, `"exit_code":null`}, []string{"base64"}},
		{"read on", "GET", sleep + "?stdout_offset=2&stderr_offset=0&max_bytes=4", "", 200, []string{`"stdout":"leep"`, `"stdout_next_offset":6`}, nil},
		{"read the state only", "GET", sleep + "?stdout_offset=3&max_bytes=0", "", 200, []string{`"stdout":""`, `"stdout_next_offset":3`, `"stdout_total":7`}, nil},
		{"read beyond the end", "GET", sleep + "?stdout_offset=9000000000000000000", "", 200, []string{`"stdout":""`, `"stdout_next_offset":7`}, nil},
		{"read as bytes", "GET", sleep + "?encoding=base64&stdout_offset=5", "", 200, []string{`"stdout":"p\n"`, `"stdout_base64":"cAo="`}, nil},
		{"read one that failed", "GET", failed, "", 200, []string{`"state":"failed"`, `"exit_code":3`, `"stderr":"no\n"`, `"stderr_next_offset":3`, `"ended_at":"2026`}, nil},
		{"read what is gone", "GET", flood + "?stdout_offset=5&max_bytes=10", "", 200, []string{`"stdout":"xxxxxxxxxx"`, `"stdout_skipped":1048571`, `"stdout_next_offset":1048586`, `"stdout_dropped":1048576`}, nil},
		{"read what is no text", "GET", split, "", 200, []string{"aäbc\uFFFDd\uFFFD", `"stdout_base64":"YcOkYmP/ZOKC"`, `"stdout_next_offset":9`}, []string{"stderr_base64"}},
		{"read cut in a character", "GET", split + "?max_bytes=2", "", 200, []string{`"stdout":"a"`, `"stdout_next_offset":1`}, []string{"base64"}},
		{"negative offset", "GET", sleep + "?stdout_offset=-1", "", 400, []string{"invalid_request", "stdout_offset"}, nil},
		{"offset of another kind", "GET", sleep + "?stderr_offset=1e3", "", 400, []string{"stderr_offset"}, nil},
		{"enormous offset", "GET", sleep + "?stderr_offset=99999999999999999999", "", 400, []string{"stderr_offset"}, nil},
		{"too much at once", "GET", sleep + "?max_bytes=1048577", "", 400, []string{"max_bytes"}, nil},
		{"negative size", "GET", sleep + "?max_bytes=-1", "", 400, []string{"max_bytes"}, nil},
		{"unknown parameter", "GET", sleep + "?offset=1", "", 400, []string{"offset"}, nil},
		{"read an unknown one", "GET", unknown, "", 404, []string{"task_not_found"}, nil},
		{"read in an unknown sandbox", "GET", strings.Replace(sleep, id, foreign, 1), "", 404, []string{"sandbox_not_found"}, nil},
		{"kill an unknown one", "DELETE", unknown, "", 404, []string{"task_not_found"}, nil},
		{"kill", "DELETE", sleep, "", 200, []string{`"state":"killed"`, `"exit_code":137`, `"signal":"SIGKILL"`, `"running_seconds":2`, `"stdout_total":7`}, nil},
		{"kill again", "DELETE", sleep, "", 200, []string{`"state":"killed"`}, nil},
		{"kill one that has ended", "DELETE", failed, "", 200, []string{`"state":"failed"`, `"exit_code":3`}, nil},
		{"list", "GET", sandbox + "/tasks", "", 200, []string{`{"data":[{`, `"command":"split"`, `"state":"killed"`}, []string{`"stdout"`}},
		{"list in an ended one", "GET", base + api + "/sandboxes/" + old + "/tasks", "", 410, []string{"sandbox_ended"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := send(t, c.method, c.url, c.body)
			if resp.StatusCode != c.status {
				t.Fatalf("status is %d, want %d: %s", resp.StatusCode, c.status, body)
			}
			for _, want := range c.want {
				if !strings.Contains(body, want) && !strings.Contains(unescaped(body), want) {
					t.Errorf("answer lacks %q: %.500s", want, body)
				}
			}
			for _, not := range c.not {
				if strings.Contains(body, not) {
					t.Errorf("answer has %q: %.500s", not, body)
				}
			}
			if c.status >= 400 {
				checkError(t, resp, body)
			}
		})
	}
}

// TestTaskTextIsCutBetweenCharacters: half a character waits while more can
// come, and is told as what it is at the end.
func TestTaskTextIsCutBetweenCharacters(t *testing.T) {
	f := newFake()
	base := f.server(t)
	task := startTask(t, base, f.sandbox(t), "steps")
	var got []string
	for next := "0"; len(got) < 10; {
		_, body := send(t, "GET", task+"?stdout_offset="+next, "")
		var out wire.TaskOutput
		if err := json.Unmarshal([]byte(body), &out); err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(out.StdoutNextOffset)
		next = string(b)
		got = append(got, out.State+" "+out.Stdout+" "+next)
		if out.State != "running" {
			break
		}
	}
	want := []string{"running 1\n 2", "running 2 3", "running ä3\uFFFD 7", "done 4\n\uFFFD 11"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
