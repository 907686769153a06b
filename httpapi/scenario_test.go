package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

const api = wire.Prefix

// TestScenarios walks through what callers send, well-meant and not: what they
// get, and what must not be in it. ID stands for a running sandbox, OLD for one
// that ended.
func TestScenarios(t *testing.T) {
	f := newFake()
	base := f.server(t)
	id, old := f.sandbox(t), f.sandbox(t)
	if _, err := f.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 2<<20)
	for _, c := range []struct {
		name   string
		method string
		path   string
		body   string
		header []string
		status int
		want   []string
		not    []string
	}{
		{name: "health", method: "GET", path: "/healthz", header: []string{"Authorization", ""}, status: 200, want: []string{`"status":"ok"`, `"version"`}},
		{name: "tariffs need no token", method: "GET", path: api + "/sandboxes/tariffs", header: []string{"Authorization", ""}, status: 200,
			want: []string{`"name":"small"`, `"price_per_hour_usd":0.033`, `"hourly_microusd":33000`, `"minimum_seconds":60`, `"vcpus":0.5`}},
		{name: "pricing", method: "GET", path: api + "/pricing", header: []string{"Authorization", ""}, status: 200, want: []string{`"name":"max"`}},
		{name: "no token", method: "GET", path: api + "/whoami", header: []string{"Authorization", ""}, status: 401, want: []string{`"error":"unauthenticated"`}},
		{name: "wrong token", method: "GET", path: api + "/whoami", header: []string{"Authorization", "Bearer " + canary}, status: 401, want: []string{"unauthenticated"}, not: []string{canary}},
		{name: "wrong scheme", method: "GET", path: api + "/whoami", header: []string{"Authorization", "Basic " + secret}, status: 401},
		{name: "no token goes before a bad body", method: "POST", path: api + "/sandboxes", body: "{", header: []string{"Authorization", ""}, status: 401},
		{name: "whoami", method: "GET", path: api + "/whoami", status: 200, want: []string{`"account_id":"acc_1"`, `"token_name":"test"`, `"admin":true`, `"expires_at":"2026-07-28T11:00:00Z"`}},

		{name: "unknown address", method: "GET", path: "/nope", status: 404, want: []string{`"error":"not_found"`}},
		{name: "unknown below the prefix", method: "GET", path: api + "/nope", status: 404, want: []string{`"error":"not_found"`}},
		{name: "double slash", method: "GET", path: api + "//sandboxes", status: 404, want: []string{`"error":"not_found"`}},
		{name: "dot segments", method: "GET", path: api + "/x/%2e%2e/sandboxes", status: 404, want: []string{`"error":"not_found"`}},
		{name: "wrong method", method: "PATCH", path: api + "/sandboxes", status: 405, want: []string{`"error":"method_not_allowed"`}},
		{name: "another site's page", method: "GET", path: api + "/whoami", header: []string{"Origin", "https://evil.example"}, status: 403, want: []string{"forbidden"}},
		{name: "a sandboxed page", method: "GET", path: api + "/whoami", header: []string{"Origin", "null"}, status: 403},

		{name: "create", method: "POST", path: api + "/sandboxes", body: `{"tariff":"small","env":{"KEY":"` + canary + `"}}`, status: 201,
			want: []string{`"env_keys":["KEY"]`, `"state":"running"`, `"reason":null`, `"mode":"ephemeral"`, `"idle_timeout":300`, `"ttl":86400`, `"created_at":"2026-07-28T10:00:00Z"`, `"ended_at":null`}, not: []string{canary}},
		{name: "create with nothing", method: "POST", path: api + "/sandboxes", status: 201},
		{name: "create with charset", method: "POST", path: api + "/sandboxes", body: `{}`, header: []string{"Content-Type", "application/json; charset=utf-8"}, status: 201},
		{name: "unknown tariff", method: "POST", path: api + "/sandboxes", body: `{"tariff":"huge"}`, status: 422, want: []string{`"error":"unknown_tariff"`, "small"}},
		{name: "unknown mode", method: "POST", path: api + "/sandboxes", body: `{"mode":"eternal"}`, status: 422, want: []string{`"error":"invalid_value"`, "persistent"}},
		{name: "idle 0", method: "POST", path: api + "/sandboxes", body: `{"idle_timeout":0}`, status: 422, want: []string{"idle_timeout must be 10"}},
		{name: "ttl negative", method: "POST", path: api + "/sandboxes", body: `{"ttl":-5}`, status: 422, want: []string{"ttl must be 10"}},
		{name: "ttl enormous", method: "POST", path: api + "/sandboxes", body: `{"ttl":9000000000000000000}`, status: 422, want: []string{"ttl must be"}},
		{name: "ttl fraction", method: "POST", path: api + "/sandboxes", body: `{"ttl":1.5}`, status: 400, want: []string{`ttl`, "whole number"}},
		{name: "ttl text", method: "POST", path: api + "/sandboxes", body: `{"ttl":"60"}`, status: 400, want: []string{`ttl`, "whole number, not text"}},
		{name: "unknown field", method: "POST", path: api + "/sandboxes", body: `{"tarif":"small"}`, status: 400, want: []string{`"error":"invalid_request"`, "tarif"}},
		{name: "env of wrong type", method: "POST", path: api + "/sandboxes", body: `{"env":["` + canary + `"]}`, status: 400, want: []string{"env"}, not: []string{canary}},
		{name: "env value of wrong type", method: "POST", path: api + "/sandboxes", body: `{"env":{"A":4711471147}}`, status: 400, want: []string{"env"}, not: []string{"4711471147"}},
		{name: "env name", method: "POST", path: api + "/sandboxes", body: `{"env":{"A-B":"` + canary + `"}}`, status: 422, want: []string{"A-B"}, not: []string{canary}},
		{name: "env too large", method: "POST", path: api + "/sandboxes", body: `{"env":{"A":"` + strings.Repeat(canary, 5000) + `"}}`, status: 413, not: []string{canary}},
		{name: "body too large", method: "POST", path: api + "/sandboxes", body: `{"tariff":"` + big + `"}`, status: 413, want: []string{`"error":"too_large"`, "1638400"}},
		{name: "broken JSON", method: "POST", path: api + "/sandboxes", body: `{"env":{"A":"` + canary, status: 400, want: []string{"invalid_request", "ends early"}, not: []string{canary}},
		{name: "bad JSON", method: "POST", path: api + "/sandboxes", body: `{"tariff" "small"}`, status: 400, want: []string{"byte 11"}},
		{name: "not an object", method: "POST", path: api + "/sandboxes", body: `[1]`, status: 400, want: []string{"must be a JSON object, not a list"}},
		{name: "two objects", method: "POST", path: api + "/sandboxes", body: `{} {}`, status: 400, want: []string{"Something follows"}},
		{name: "not UTF-8", method: "POST", path: api + "/sandboxes", body: "{\"image\":\"\xff\"}", status: 400, want: []string{"not UTF-8"}},
		{name: "form", method: "POST", path: api + "/sandboxes", body: `a=b`, header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415, want: []string{"unsupported_media_type"}},
		{name: "latin1", method: "POST", path: api + "/sandboxes", body: `{}`, header: []string{"Content-Type", "application/json; charset=latin1"}, status: 415},

		{name: "list", method: "GET", path: api + "/sandboxes?limit=1000", status: 200, want: []string{id, `"has_more":false`}, not: []string{old}},
		{name: "list ended", method: "GET", path: api + "/sandboxes?state=deleted", status: 200, want: []string{old}, not: []string{id}},
		{name: "list all", method: "GET", path: api + "/sandboxes?state=all", status: 200, want: []string{old, id}},
		{name: "list page", method: "GET", path: api + "/sandboxes?state=all&limit=1", status: 200, want: []string{`"has_more":true`}},
		{name: "list state", method: "GET", path: api + "/sandboxes?state=paused", status: 400, want: []string{"state", "active"}},
		{name: "list limit 0", method: "GET", path: api + "/sandboxes?limit=0", status: 400, want: []string{"limit"}},
		{name: "list limit text", method: "GET", path: api + "/sandboxes?limit=abc", status: 400, want: []string{"limit"}},
		{name: "list unknown parameter", method: "GET", path: api + "/sandboxes?stat=all", status: 400, want: []string{"stat"}},
		{name: "get", method: "GET", path: api + "/sandboxes/ID", status: 200, want: []string{`"id":"ID"`, `"billed_microusd"`, `"price_per_hour_usd":0.033`}},
		{name: "get another account's", method: "GET", path: api + "/sandboxes/" + foreign, status: 404, want: []string{"sandbox_not_found"}},
		{name: "get ended", method: "GET", path: api + "/sandboxes/OLD", status: 200, want: []string{`"state":"deleted"`, `"reason":"deleted"`, `"running_seconds":61`, `"billed_microusd":559`, `"billed_usd":0.000559`}},
		{name: "delete ended", method: "DELETE", path: api + "/sandboxes/OLD", status: 200, want: []string{`"billed_microusd":559`}},
		{name: "delete unknown", method: "DELETE", path: api + "/sandboxes/" + absent, status: 404},
		{name: "usage", method: "GET", path: api + "/sandboxes/ID/usage", status: 200, want: []string{`"running_seconds":61`, `"cpu_seconds":1.5`, `"egress_bytes":42`, `"billed_usd":0.000559`, `"estimated_total_usd":0.000559`, `"billed_microusd":559`}},
		{name: "ping", method: "GET", path: api + "/sandboxes/ID/ping", status: 200, want: []string{`"ok":true`, `"duration_ms"`}},
		{name: "ping ended", method: "GET", path: api + "/sandboxes/OLD/ping", status: 410, want: []string{"sandbox_ended"}},

		{name: "exec", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo hi <&>"}`, status: 200,
			want: []string{`"exit_code":0`, `"signal":null`, `"stdout":"hi <&>\n"`, `"stderr":""`, `"stdout_bytes":7`, `"timed_out":false`, `"oom":false`, `"truncated":false`, `"duration_ms":5`}, not: []string{"base64", "hint"}},
		{name: "exec argv", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"argv":["echo","hi"]}`, status: 200, want: []string{`"stdout":"hi\n"`}},
		{name: "exec fails", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"fail"}`, status: 200, want: []string{`"exit_code":3`, `"stderr":"no\n"`}},
		{name: "exec timed out", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"late","timeout":4}`, status: 200, want: []string{`"exit_code":124`, `"timed_out":true`, `"stdout":"begun\n"`, "background task", `"duration_ms":4000`}},
		{name: "exec out of memory", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"oom"}`, status: 200, want: []string{`"exit_code":137`, `"signal":"SIGKILL"`, `"oom":true`, "memory"}},
		{name: "exec not UTF-8", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"split"}`, status: 200, want: []string{"aäbc\uFFFDd\uFFFD", `"stdout_base64":"YcOkYmP/ZOKC"`}, not: []string{"stderr_base64"}},
		{name: "exec as bytes", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo hi","encoding":"base64"}`, status: 200, want: []string{`"stdout_base64":"aGkK"`}},
		{name: "exec floods", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"flood"}`, status: 200, want: []string{`"truncated":true`, `"stdout_bytes":2621443`, `bytes dropped`, `xxend"`}},
		{name: "exec stdin", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cat","stdin":"text"}`, status: 200, want: []string{`"stdout":"text"`}},
		{name: "exec stdin bytes", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cat","stdin_base64":"/w=="}`, status: 200, want: []string{`"stdout_base64":"/w=="`}},
		{name: "exec stdin twice", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cat","stdin":"a","stdin_base64":"/w=="}`, status: 400, want: []string{"stdin_base64"}},
		{name: "exec bad base64", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cat","stdin_base64":"***"}`, status: 400, want: []string{"stdin_base64", "base64"}},
		{name: "exec env and cwd", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"env","cwd":"/tmp","env":{"B":"` + canary + `","A":""}}`, status: 200, want: []string{`"stdout":"A B"`}, not: []string{canary}},
		{name: "exec relative cwd", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cwd","cwd":"tmp"}`, status: 400, want: []string{"invalid_path"}},
		{name: "exec nothing", method: "POST", path: api + "/sandboxes/ID/exec", body: `{}`, status: 400, want: []string{"command is empty"}},
		{name: "exec no body", method: "POST", path: api + "/sandboxes/ID/exec", status: 400, want: []string{"body is empty"}},
		{name: "exec both", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"a","argv":["a"]}`, status: 400, want: []string{"either command or argv"}},
		{name: "exec command as list", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":["a"]}`, status: 400, want: []string{"command", "must be text, not a list"}},
		{name: "exec half a surrogate", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo \udcff"}`, status: 400, want: []string{"surrogate"}},
		{name: "exec a whole pair", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo \\ud800 \ud83d\uDE00"}`, status: 200, want: []string{"\U0001F600", `\\ud800`}},
		{name: "exec encoding", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo","encoding":"latin1"}`, status: 422, want: []string{"encoding"}},
		{name: "exec outlives its client", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo hi","on_disconnect":"continue"}`, status: 200, want: []string{`"stdout":"hi\n"`}},
		{name: "exec on_disconnect", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo hi","on_disconnect":"detach"}`, status: 422, want: []string{"invalid_value", "kill or continue"}},
		{name: "run on_disconnect", method: "POST", path: api + "/sandboxes/ID/run/stream", body: `{"language":"bash","code":"x","on_disconnect":"no"}`, status: 422, want: []string{"invalid_value", "kill or continue"}},
		{name: "a task has no connection", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"echo hi","async":true,"on_disconnect":"kill"}`, status: 422, want: []string{"invalid_value", "on_disconnect"}},
		{name: "NUL in the command", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"a\u0000b"}`, status: 400, want: []string{"invalid_request", "NUL"}},
		{name: "no command", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":""}`, status: 400, want: []string{"invalid_request", "empty"}},
		{name: "no code", method: "POST", path: api + "/sandboxes/ID/run", body: `{"language":"bash","code":""}`, status: 400, want: []string{"invalid_request", "empty"}},
		{name: "the largest command", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cwd` + strings.Repeat(" ", eqvps.MaxCommandBytes-3) + `"}`, status: 200},
		{name: "a byte more", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"cwd` + strings.Repeat(" ", eqvps.MaxCommandBytes-2) + `"}`, status: 413, want: []string{"too_large", "2097152"}},
		{name: "exec default timeout", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"timeout"}`, status: 200, want: []string{`"stdout":"30s"`}},
		{name: "exec own timeout", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"timeout","timeout":1.25}`, status: 200, want: []string{`"stdout":"1.25s"`}},
		{name: "exec in an ended one", method: "POST", path: api + "/sandboxes/OLD/exec", body: `{"command":"echo"}`, status: 410, want: []string{"sandbox_ended", "(deleted)"}},
		{name: "exec in an unknown one", method: "POST", path: api + "/sandboxes/x/exec", body: `{"command":"echo"}`, status: 404},
		{name: "exec loses the sandbox", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"break"}`, status: 503, want: []string{"sandbox_unreachable"}, not: []string{"EOF", "retry_after"}},
		{name: "panic", method: "POST", path: api + "/sandboxes/ID/exec", body: `{"command":"panic"}`, status: 500, want: []string{`"error":"internal"`}, not: []string{"kaboom", "goroutine", canary}},

		{name: "run", method: "POST", path: api + "/sandboxes/ID/run", body: `{"language":"python","code":"echo hi"}`, status: 200, want: []string{`"stdout":"hi\n"`}},
		{name: "run language", method: "POST", path: api + "/sandboxes/ID/run", body: `{"language":"cobol","code":"1"}`, status: 422, want: []string{"cobol", "python"}},
		{name: "run no code", method: "POST", path: api + "/sandboxes/ID/run", body: `{"language":"python"}`, status: 400, want: []string{"code is empty"}},

		{name: "put text", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path":"/d/a.txt","content":"hé","mode":"0755"}`, status: 200, want: []string{`"path":"/d/a.txt"`, `"size":3`, `"mode":"0755"`}},
		{name: "get it", method: "GET", path: api + "/sandboxes/ID/files?path=/d/a.txt", status: 200, want: []string{`"content_base64":"aMOp"`, `"size":3`, `"mode":"0755"`}},
		{name: "put an empty file", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path":"/d/empty","content_base64":""}`, status: 200, want: []string{`"size":0`, `"mode":"0644"`}},
		{name: "get the empty file", method: "GET", path: api + "/sandboxes/ID/files?path=/d/empty", status: 200, want: []string{`"content_base64":""`}},
		{name: "put without content", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path":"/d/x"}`, status: 400, want: []string{"content_base64"}},
		{name: "put both", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path":"/d/x","content":"","content_base64":""}`, status: 400},
		{name: "put mode", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path":"/d/x","content":"","mode":"rwx"}`, status: 422, want: []string{"octal"}},
		{name: "put relative", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path":"x","content":""}`, status: 400, want: []string{"invalid_path"}},
		{name: "put bytes in the name", method: "PUT", path: api + "/sandboxes/ID/files", body: `{"path_base64":"L2IvYf8=","content":"x"}`, status: 200, want: []string{`"name_base64":"Yf8="`, `"path_base64":"L2IvYf8="`, "a\uFFFD"}},
		{name: "get bytes in the name", method: "GET", path: api + "/sandboxes/ID/files?path=/b/a%ff", status: 200, want: []string{`"content_base64":"eA=="`}},
		{name: "stat", method: "GET", path: api + "/sandboxes/ID/files/stat?path=/d/a.txt", status: 200, want: []string{`"type":"file"`, `"name":"a.txt"`, `"target":null`, `"modified_at":"2026-07-28T10:00:00Z"`}},
		{name: "stat nothing", method: "GET", path: api + "/sandboxes/ID/files/stat?path=/nope", status: 404, want: []string{"file_not_found"}},
		{name: "stat no path", method: "GET", path: api + "/sandboxes/ID/files/stat", status: 400, want: []string{"path"}},
		{name: "stat NUL", method: "GET", path: api + "/sandboxes/ID/files/stat?path=/a%00", status: 400, want: []string{"invalid_path", "NUL"}},
		{name: "list files", method: "GET", path: api + "/sandboxes/ID/files/list?path=/d&limit=1", status: 200, want: []string{`"name":"a.txt"`, `"has_more":true`, `"next_after":"YS50eHQ"`}, not: []string{"empty"}},
		{name: "list files on", method: "GET", path: api + "/sandboxes/ID/files/list?path=/d&after=YS50eHQ", status: 200, want: []string{`"name":"empty"`, `"has_more":false`, `"next_after":null`}, not: []string{"a.txt"}},
		{name: "list files cursor", method: "GET", path: api + "/sandboxes/ID/files/list?path=/d&after=***", status: 400, want: []string{"next_after"}},
		{name: "get /proc", method: "GET", path: api + "/sandboxes/ID/files?path=/proc/version", status: 200, want: []string{`"content_base64":"TGludXg="`, `"size":5`}},
		{name: "get a large one", method: "GET", path: api + "/sandboxes/ID/files?path=/huge", status: 413, want: []string{"too_large", "files/raw"}},
		{name: "raw put", method: "PUT", path: api + "/sandboxes/ID/files/raw?path=/r/%ff&mode=0600", body: "\x00\xff", status: 200, want: []string{`"size":2`, `"mode":"0600"`}},
		{name: "raw put empty", method: "PUT", path: api + "/sandboxes/ID/files/raw?path=/r/empty", status: 200, want: []string{`"size":0`}},
		{name: "raw get", method: "GET", path: api + "/sandboxes/ID/files/raw?path=/r/%ff", status: 200, want: []string{"\x00\xff"}},
		{name: "raw get /proc", method: "GET", path: api + "/sandboxes/ID/files/raw?path=/proc/version", status: 200, want: []string{"Linux"}},
		{name: "raw get breaks at once", method: "GET", path: api + "/sandboxes/ID/files/raw?path=/broken", status: 503, want: []string{"sandbox_unreachable"}},
		{name: "raw put of an ended one", method: "PUT", path: api + "/sandboxes/OLD/files/raw?path=/x", body: strings.Repeat("x", 8<<20), status: 410, want: []string{"sandbox_ended"}},
		{name: "raw get of a bad escape", method: "GET", path: api + "/sandboxes/ID/files/stat?path=%zz", status: 400},
		{name: "raw get nothing", method: "GET", path: api + "/sandboxes/ID/files/raw?path=/nope", status: 404, want: []string{"file_not_found"}},

		{name: "token", method: "POST", path: api + "/tokens", body: `{"name":"ci","expires_in":60}`, status: 201, want: []string{`"secret":"eqvps_`, `"name":"ci"`, `"expires_at":"2026-07-28T10:01:00Z"`, `"revoked_at":null`}},
		{name: "token list", method: "GET", path: api + "/tokens", status: 200, want: []string{`"name":"ci"`}, not: []string{"secret", "eqvps_", "hash"}},
		{name: "token without name", method: "POST", path: api + "/tokens", body: `{}`, status: 422, want: []string{"name"}},
		{name: "token of no life", method: "POST", path: api + "/tokens", body: `{"name":"ci","expires_in":0}`, status: 422, want: []string{"lives"}},
		{name: "token unknown", method: "DELETE", path: api + "/tokens/tok_1", status: 404, want: []string{"token_not_found"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := strings.NewReplacer("ID", id, "OLD", old)
			resp, body := send(t, c.method, base+r.Replace(c.path), c.body, c.header...)
			if resp.StatusCode != c.status {
				t.Fatalf("status is %d, want %d: %s", resp.StatusCode, c.status, body)
			}
			for _, want := range c.want {
				if !strings.Contains(body, r.Replace(want)) && !strings.Contains(unescaped(body), want) {
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
	if strings.Contains(f.logged(), canary) && !strings.Contains(f.logged(), "kaboom "+canary) {
		t.Error("the log holds a secret")
	}
	if n := strings.Count(f.logged(), canary) - strings.Count(f.logged(), "kaboom "+canary); n != 0 {
		t.Errorf("the log holds a secret %d times", n)
	}
}

// unescaped is a JSON answer's message as people read it.
func unescaped(body string) string {
	var e wire.Error
	if json.Unmarshal([]byte(body), &e) != nil {
		return ""
	}
	return e.Message
}

// checkError holds every error against the one shape.
func checkError(t *testing.T, resp *http.Response, body string) wire.Error {
	t.Helper()
	var e wire.Error
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		t.Fatalf("error has another shape: %v: %s", err, body)
	}
	kind := eqvps.Code(e.Code).Kind()
	switch {
	case string(kind.Code) != e.Code:
		t.Errorf("code %q is not in the table", e.Code)
	case kind.Status != resp.StatusCode:
		t.Errorf("code %q came with the status %d", e.Code, resp.StatusCode)
	case e.Message == "" || e.Fix != kind.Fix || e.Next != kind.Next:
		t.Errorf("error says %+v, the table %+v", e, kind)
	case e.RequestID == "" || e.RequestID != resp.Header.Get(wire.HeaderRequestID):
		t.Errorf("request id is %q in the body, %q in the header", e.RequestID, resp.Header.Get(wire.HeaderRequestID))
	case resp.Header.Get("Content-Type") != "application/json":
		t.Errorf("content type is %q", resp.Header.Get("Content-Type"))
	case resp.StatusCode == 401 && resp.Header.Get("WWW-Authenticate") != "Bearer":
		t.Error("WWW-Authenticate is missing")
	case e.RetryAfter > 0 && resp.Header.Get("Retry-After") != fmt.Sprint(e.RetryAfter):
		t.Errorf("Retry-After is %q, retry_after %d", resp.Header.Get("Retry-After"), e.RetryAfter)
	}
	return e
}

// TestBadTimeouts: whatever is no timeout gets the one error that names the
// background task, on every call that takes one.
func TestBadTimeouts(t *testing.T) {
	f := newFake()
	base, id := f.server(t), ""
	id = f.sandbox(t)
	for _, call := range []string{"exec", "run", "exec/stream", "run/stream"} {
		for _, v := range []string{"0", "-1", `"abc"`, `"30"`, "600", "55.001", "0.5", "1e99", "1e999", "-0", "null", "[]", "{}", "true"} {
			body := `{"command":"echo hi","timeout":` + v + `}`
			if strings.HasPrefix(call, "run") {
				body = `{"language":"python","code":"echo hi","timeout":` + v + `}`
			}
			resp, text := send(t, "POST", base+api+"/sandboxes/"+id+"/"+call, body)
			e := checkError(t, resp, text)
			if e.Code != "invalid_timeout" || !strings.Contains(e.Message+e.Fix, "background task") {
				t.Errorf("%s with timeout %s: %s", call, v, text)
			}
		}
	}
}

// TestErrorTable walks every code through the skin.
func TestErrorTable(t *testing.T) {
	f := newFake()
	base := f.server(t)
	for _, k := range eqvps.ErrorTable {
		t.Run(string(k.Code), func(t *testing.T) {
			f.err = &eqvps.Error{Code: k.Code, Cause: fmt.Errorf("cause of %s in /var/lib/eqvps", k.Code)}
			resp, body := send(t, "GET", base+api+"/sandboxes/"+absent, "")
			e := checkError(t, resp, body)
			if e.Code != string(k.Code) || e.Message != k.Message {
				t.Errorf("code %q says %q, want %q", e.Code, e.Message, k.Message)
			}
			if strings.Contains(body, "cause of") {
				t.Errorf("answer shows the cause: %s", body)
			}
			if log := f.logged(); !strings.Contains(log, "cause of "+string(k.Code)) || !strings.Contains(log, e.RequestID) {
				t.Error("the log lacks the cause or the request id")
			}
		})
	}
	f.err = fmt.Errorf("open /var/lib/eqvps: no such file")
	resp, body := send(t, "GET", base+api+"/sandboxes/"+absent, "")
	if e := checkError(t, resp, body); e.Code != "internal" || strings.Contains(body, "/var") {
		t.Errorf("an error without a code is told as %s", body)
	}
	f.err = &eqvps.Error{Code: "made_up", Message: "secret"}
	resp, body = send(t, "GET", base+api+"/sandboxes/"+absent, "")
	if e := checkError(t, resp, body); e.Code != "internal" || strings.Contains(body, "secret") {
		t.Errorf("an unknown code is told as %s", body)
	}
	f.err = &eqvps.Error{Code: eqvps.CodeCapacity, RetryAfter: 1500e6}
	resp, body = send(t, "POST", base+api+"/sandboxes", "{}")
	if e := checkError(t, resp, body); e.RetryAfter != 2 || resp.Header.Get("Retry-After") != "2" {
		t.Errorf("capacity is told as %s", body)
	}
}

func TestHeaders(t *testing.T) {
	f := newFake()
	base := f.server(t)
	resp, _ := send(t, "GET", base+api+"/sandboxes", "", wire.HeaderRequestID, "mine")
	for name, want := range map[string]string{
		wire.HeaderTokenExpiresAt: "2026-07-28T11:00:00Z", "X-Content-Type-Options": "nosniff",
		"Cache-Control": "no-store", "Access-Control-Allow-Origin": "",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := resp.Header.Get(wire.HeaderRequestID); !strings.HasPrefix(got, "req_") {
		t.Errorf("the request id %q is not ours", got)
	}
	resp, _ = send(t, "PUT", base+api+"/sandboxes", "")
	if got := strings.Join(resp.Header["Allow"], " "); got != "GET POST" {
		t.Errorf("Allow is %q", got)
	}
	// The page of the server itself may call it.
	if resp, body := send(t, "GET", base+api+"/whoami", "", "Origin", base); resp.StatusCode != 200 {
		t.Errorf("own page: %s", body)
	}
}
