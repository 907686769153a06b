package client_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

func dial(t *testing.T, base string) *client.Client {
	t.Helper()
	c, err := client.New(base, "eqvps_x")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// server answers everything the same way.
func server(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return dial(t, s.URL)
}

// TestCutStream: a stream that ends without an exit is never taken for a
// success, wherever it was cut.
func TestCutStream(t *testing.T) {
	whole := `{"type":"stdout","text":"hi\n"}` + "\n" + `{"type":"news","text":"?"}` + "\n" +
		`{"type":"exit","exit_code":0,"signal":null,"timed_out":false,"oom":false,"duration_ms":1}` + "\n"
	for cut := range len(whole) + 1 {
		c := server(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			io.WriteString(w, whole[:cut])
			if cut%2 == 0 {
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler) // a broken connection; else a clean end
			}
		})
		var got strings.Builder
		st, err := c.ExecStream(t.Context(), "sb_1", wire.ExecRequest{Command: "x"}, func(_ eqvps.Stream, p []byte) error {
			got.Write(p)
			return nil
		})
		if last := len(whole) - 1; cut >= last {
			if err != nil || st.Duration != time.Millisecond || got.String() != "hi\n" {
				t.Fatalf("whole stream: %+v %q %v", st, got.String(), err)
			}
			continue
		}
		if err == nil {
			t.Fatalf("a stream cut at byte %d of %d passed for whole", cut, len(whole))
		}
		if !strings.HasPrefix("hi\n", got.String()) {
			t.Fatalf("cut at %d it gave %q", cut, got.String())
		}
	}
}

func TestStreamEvents(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"error event", `{"type":"error","error":"sandbox_ended","message":"It ended.","fix":"F.","request_id":"req_1"}`, "It ended. F."},
		{"not JSON", "<html>\n", "connection ended"},
		{"exit without a status", `{"type":"exit"}`, "connection ended"},
	} {
		cl := server(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, c.body) })
		_, err := cl.RunStream(t.Context(), "sb_1", wire.RunRequest{}, func(eqvps.Stream, []byte) error { return nil })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		var e *client.Error
		if c.name == "error event" && (!errors.As(err, &e) || e.Status != 410 || e.RequestID != "req_1") {
			t.Errorf("%s: %#v", c.name, err)
		}
	}
}

func TestErrors(t *testing.T) {
	c := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(503)
		io.WriteString(w, `{"error":"capacity","message":"Full.","fix":"Wait.","next":"GET /sandboxes/tariffs","request_id":"req_1"}`)
	})
	_, err := c.Create(t.Context(), wire.CreateSandbox{})
	var e *client.Error
	if !errors.As(err, &e) || *e != (client.Error{Status: 503, Code: eqvps.CodeCapacity, Message: "Full.", Fix: "Wait.",
		Next: "GET /sandboxes/tariffs", RequestID: "req_1", RetryAfter: 7 * time.Second}) {
		t.Errorf("error is %#v", err)
	}
	if eqvps.ErrorCode(err) != eqvps.CodeCapacity {
		t.Errorf("the domain's code is %q", eqvps.ErrorCode(err))
	}
}

// TestWrongServer: whatever else may answer there, the sentence says so.
func TestWrongServer(t *testing.T) {
	for status, body := range map[int]string{404: "<html>nope</html>", 200: "<html>hello</html>", 500: `{"detail":"x"}`, 502: ""} {
		c := server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); io.WriteString(w, body) })
		if _, err := c.WhoAmI(t.Context()); err == nil || !strings.Contains(err.Error(), "is not an EQVPS server") {
			t.Errorf("%d %q: %v", status, body, err)
		}
	}
}

func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // now nobody listens there
	for _, base := range []string{"http://" + l.Addr().String(), "unix://" + filepath.Join(t.TempDir(), "none.sock")} {
		_, err := dial(t, base).WhoAmI(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no server answers at "+base+"; start one with `eqvps serve`") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", base, err)
		}
	}
	for _, base := range []string{"", "localhost:8080", "ftp://x", "unix://relative", "http://"} {
		if _, err := client.New(base, ""); err == nil {
			t.Errorf("the address %q was taken", base)
		}
	}
}
