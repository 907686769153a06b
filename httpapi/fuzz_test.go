package httpapi_test

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/httpapi"
	"github.com/eqvps/eqvps/wire"
)

// FuzzExecBody: no body, whatever is in it, is our fault.
func FuzzExecBody(f *testing.F) {
	for _, s := range []string{
		`{"command":"echo hi"}`, `{"argv":["a","b"],"env":{"A":"1"},"cwd":"/","stdin":"x","timeout":1.5,"async":false,"encoding":"base64"}`,
		`{"stdin_base64":"////","command":"cat"}`, `{"command":"\ud83d\ude00"}`, `{"command":"\ud83d"}`, `{"timeout":1e400}`, `[`, `null`, `""`, "\xff",
		`{"command":null,"argv":null}`, strings.Repeat("[", 20000), `{"command":"\`, `{"command":"\u`, `{"env":{"":""}}`, `{"COMMAND":"echo"}`,
	} {
		f.Add(s)
	}
	fk := newFake()
	h := httpapi.New(httpapi.Config{Sandboxes: fk, Tokens: fk, Logger: slog.New(slog.DiscardHandler)})
	id := fk.sandbox(f)
	f.Fuzz(func(t *testing.T, body string) {
		var req wire.ExecRequest
		if json.Unmarshal([]byte(body), &req) == nil {
			switch verb, _, _ := strings.Cut(req.Command, " "); verb {
			case "panic", "break", "wait", "sleep":
				return // the fake's own troubles
			}
		}
		r := httptest.NewRequest("POST", wire.Prefix+"/sandboxes/"+id+"/exec", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		if w.Code != 200 {
			var e wire.Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || string(eqvps.Code(e.Code).Kind().Code) != e.Code {
				t.Fatalf("%d: %s", w.Code, w.Body)
			}
		}
	})
}

// BenchmarkExec is what the skin adds to a command.
func BenchmarkExec(b *testing.B) {
	fk := newFake()
	h := httpapi.New(httpapi.Config{Sandboxes: fk, Tokens: fk, Logger: slog.New(slog.DiscardHandler)})
	url := wire.Prefix + "/sandboxes/" + fk.sandbox(b) + "/exec"
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", url, strings.NewReader(`{"command":"echo hi","timeout":30}`))
		r.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 200 {
			b.Fatal(w.Body)
		}
	}
}
