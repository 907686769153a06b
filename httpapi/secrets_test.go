package httpapi_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

// TestSecretScenarios walks through the calls on secrets and variables. No
// answer and no line of the log may hold a value.
func TestSecretScenarios(t *testing.T) {
	f := newFake()
	base := f.server(t)
	id, old := f.sandbox(t), f.sandbox(t)
	if _, err := f.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	secrets, env := base+api+"/secrets", base+api+"/sandboxes/"+id+"/env"
	raw := base64.StdEncoding.EncodeToString([]byte("\xff" + canary))
	for _, c := range []struct {
		name, method, url, body string
		status                  int
		want                    []string
	}{
		{"none yet", "GET", secrets, "", 200, []string{`{"data":[]}`}},
		{"put", "PUT", secrets + "/A", `{"value":"` + canary + `"}`, 200, []string{`"name":"A"`, `"created_at":"2026-07-28T10:00:00Z"`, `"updated_at"`}},
		{"put bytes", "PUT", secrets + "/B", `{"value_base64":"` + raw + `"}`, 200, []string{`"name":"B"`}},
		{"put an empty one", "PUT", secrets + "/C", `{"value":""}`, 200, []string{`"name":"C"`}},
		{"put an empty one as bytes", "PUT", secrets + "/D", `{"value_base64":""}`, 200, []string{`"name":"D"`}},
		{"list", "GET", secrets, "", 200, []string{`"name":"A"`, `"name":"B"`, `"name":"C"`}},
		{"put nothing", "PUT", secrets + "/A", `{}`, 400, []string{"either value or value_base64"}},
		{"put both", "PUT", secrets + "/A", `{"value":"` + canary + `","value_base64":"` + raw + `"}`, 400, []string{"either value or value_base64"}},
		{"put a number", "PUT", secrets + "/A", `{"value":4711471147}`, 400, []string{"value", "must be text"}},
		{"put a list", "PUT", secrets + "/A", `{"value":["` + canary + `"]}`, 400, []string{"not a list"}},
		{"put bad base64", "PUT", secrets + "/A", `{"value_base64":"` + canary + `!"}`, 400, []string{"value_base64", "not valid base64"}},
		{"put a bare string", "PUT", secrets + "/A", `"` + canary + `"`, 400, []string{"JSON object"}},
		{"put half", "PUT", secrets + "/A", `{"value":"` + canary, 400, []string{"ends early"}},
		{"put another field", "PUT", secrets + "/A", `{"values":"` + canary + `"}`, 400, []string{"values"}},
		{"put NUL", "PUT", secrets + "/A", `{"value":"` + canary + `\u0000"}`, 422, []string{"NUL"}},
		{"put a bad name", "PUT", secrets + "/A-B", `{"value":"` + canary + `"}`, 422, []string{"A-B"}},
		{"put the largest", "PUT", secrets + "/L", `{"value":"` + strings.Repeat("\\u0001", eqvps.MaxEnvValueBytes) + `"}`, 200, nil},
		{"put more", "PUT", secrets + "/L", `{"value":"` + strings.Repeat("x", eqvps.MaxEnvValueBytes+1) + `"}`, 413, []string{"65537 bytes; at most 65536"}},
		{"put far too much", "PUT", secrets + "/L", `{"value":"` + strings.Repeat(canary, 40_000) + `"}`, 413, []string{"too_large"}},
		{"delete", "DELETE", secrets + "/A", "", 200, []string{`{"name":"A","deleted":true}`}},
		{"delete again", "DELETE", secrets + "/A", "", 404, []string{"secret_not_found"}},
		{"delete no name", "DELETE", secrets + "/A%20B", "", 404, []string{"secret_not_found"}},
		{"rotate", "POST", base + api + "/keys/rotate", "", 200, []string{`"resealed":2`, `"retired":1`}},

		{"variables", "GET", env, "", 200, []string{`{"env_keys":[]}`}},
		{"set", "PATCH", env, `{"env":{"B":"` + canary + `","A":""},"env_base64":{"RAW":"` + raw + `"}}`, 200, []string{`{"env_keys":["A","B","RAW"]}`}},
		{"set and remove", "PATCH", env, `{"env":{"B":"x","A":null,"ABSENT":null}}`, 200, []string{`{"env_keys":["B","RAW"]}`}},
		{"variables again", "GET", env, "", 200, []string{`{"env_keys":["B","RAW"]}`}},
		{"change nothing", "PATCH", env, `{}`, 400, []string{"no environment variable to set"}},
		{"a number", "PATCH", env, `{"env":{"A":4711471147}}`, 400, []string{"env", "must be text"}},
		{"a bad name", "PATCH", env, `{"env":{"A-B":"` + canary + `"}}`, 422, []string{"A-B"}},
		{"a pair in place of a name", "PATCH", env, `{"env":{"TOKEN=` + canary + `":"x"}}`, 422, []string{"TOKEN"}},
		{"a pair to remove", "PATCH", env, `{"env":{"TOKEN=` + canary + `":null}}`, 422, []string{"TOKEN"}},
		{"not wrapped", "PATCH", env, `{"B":"` + canary + `"}`, 400, []string{`no field \"B\"`}},
		{"bad base64 of one", "PATCH", env, `{"env":{"A":"x"},"env_base64":{"RAW":"` + canary + `!"}}`, 400, []string{"env_base64.RAW", "not valid base64"}},
		{"one in both", "PATCH", env, `{"env":{"A":"` + canary + `"},"env_base64":{"A":"` + raw + `"}}`, 400, []string{"either in env or in env_base64"}},
		{"one set and removed", "PATCH", env, `{"env":{"A":null},"env_base64":{"A":"` + raw + `"}}`, 400, []string{"both set and removed"}},
		{"in an unknown one", "PATCH", base + api + "/sandboxes/" + foreign + "/env", `{"env":{"A":"x"}}`, 404, []string{"sandbox_not_found"}},
		{"in an ended one", "PATCH", base + api + "/sandboxes/" + old + "/env", `{"env":{"A":"` + canary + `"}}`, 410, []string{"sandbox_ended"}},

		{"create with bytes", "POST", base + api + "/sandboxes", `{"env":{"A":"x"},"env_base64":{"B":"` + raw + `"}}`, 201, []string{`"env_keys":["A","B"]`}},
		{"create with secrets as text", "POST", base + api + "/sandboxes", `{"secrets":"*"}`, 400, []string{"secrets", "a list"}},
		{"create with a bad secret", "POST", base + api + "/sandboxes", `{"secrets":["A=` + canary + `"]}`, 422, []string{`no secret \"A\"`}},
		{"run with bytes", "POST", base + api + "/sandboxes/" + id + "/exec", `{"command":"env","env":{"X":"1"},"env_base64":{"Y":"` + raw + `"}}`, 200, []string{`"stdout":"X Y"`}},
		{"run with one in both", "POST", base + api + "/sandboxes/" + id + "/run", `{"language":"bash","code":"env","env":{"X":"1"},"env_base64":{"X":"` + raw + `"}}`, 400, []string{"either in env or in env_base64"}},
		{"bad base64 beside others", "POST", base + api + "/sandboxes/" + id + "/exec", `{"command":"env","stdin_base64":"!","env_base64":{"Y":"` + raw + `"}}`, 400, []string{"stdin_base64"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := send(t, c.method, c.url, c.body)
			if resp.StatusCode != c.status {
				t.Fatalf("status is %d, want %d: %.500s", resp.StatusCode, c.status, body)
			}
			for _, want := range c.want {
				if !strings.Contains(body, want) {
					t.Errorf("answer lacks %q: %.500s", want, body)
				}
			}
			for _, not := range []string{canary, raw, "4711471147"} {
				if strings.Contains(body, not) {
					t.Errorf("answer has %q: %.500s", not, body)
				}
			}
			if c.status >= 400 {
				checkError(t, resp, body)
			}
		})
	}
	for _, not := range []string{canary, raw, "4711471147"} {
		if strings.Contains(f.logged(), not) {
			t.Errorf("the log has %q", not)
		}
	}
	want := map[string]string{"B": "\xff" + canary, "C": "", "D": "", "L": strings.Repeat("\x01", eqvps.MaxEnvValueBytes)}
	if diff := cmp.Diff(want, f.values); diff != "" {
		t.Errorf("values as they arrived (-want +got):\n%s", diff)
	}
}
