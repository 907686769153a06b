package httpapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps/httpapi"
)

// from makes one request that comes from an address.
func from(h http.Handler, remote, method, path, token, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	r.RemoteAddr = remote
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestFailedTokensAreBounded: by address, with a hint that is true, and never
// for those who have a valid one.
func TestFailedTokensAreBounded(t *testing.T) {
	f, now := newFake(), epoch
	h := httpapi.New(httpapi.Config{Sandboxes: f, Tokens: f, Now: func() time.Time { return now },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	try := func(remote, token string) *httptest.ResponseRecorder {
		return from(h, remote, "GET", api+"/whoami", token, "")
	}
	for i := range 20 {
		if w := try("192.0.2.1:1000", "wrong"); w.Code != 401 {
			t.Fatalf("failure %d: %d", i, w.Code)
		}
	}
	w := try("192.0.2.1:2000", "wrong")
	if w.Code != 429 || w.Header().Get("Retry-After") != "3" || !strings.Contains(w.Body.String(), `"error":"rate_limited"`) {
		t.Errorf("too many: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := try("192.0.2.1:1000", ""); w.Code != 429 {
		t.Errorf("without a token: %d", w.Code)
	}
	if w := try("192.0.2.1:1000", secret); w.Code != 200 {
		t.Errorf("with a valid token: %d", w.Code)
	}
	if w := try("192.0.2.2:1000", "wrong"); w.Code != 401 {
		t.Errorf("from another address: %d", w.Code)
	}
	now = now.Add(3 * time.Second)
	if w := try("192.0.2.1:1000", "wrong"); w.Code != 401 {
		t.Errorf("after the wait: %d", w.Code)
	}
	// One network of IPv6 is one address; the local socket has none.
	for range 20 {
		try("[2001:db8::1]:1", "wrong")
		try("@", "wrong")
	}
	if w := try("[2001:db8::2]:1", "wrong"); w.Code != 429 {
		t.Errorf("a neighbour in IPv6: %d", w.Code)
	}
	if w := try("@", "wrong"); w.Code != 401 {
		t.Errorf("the local socket: %d", w.Code)
	}
}

// TestAudit: what may change something, what takes content out and what was
// refused is written down, without what it was about.
func TestAudit(t *testing.T) {
	f := newFake()
	var out bytes.Buffer
	h := httpapi.New(httpapi.Config{Sandboxes: f, Tokens: f, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Audit: slog.New(slog.NewJSONHandler(&out, nil))})
	id := f.sandbox(t)
	for _, c := range []struct {
		method, path, token, body string
		operation                 string // "": not written down
		status                    int
	}{
		{"GET", "/sandboxes", secret, "", "", 200},
		{"GET", "/sandboxes/" + id, secret, "", "", 200},
		{"POST", "/sandboxes", secret, `{"env":{"KEY":"` + canary + `"}}`, "createSandbox", 201},
		{"POST", "/sandboxes", secret, `{"tariff":"` + canary + `"}`, "createSandbox", 422},
		{"POST", "/sandboxes/" + id + "/exec", secret, `{"command":"echo ` + canary + `"}`, "exec", 200},
		{"PUT", "/sandboxes/" + id + "/files/raw?path=/" + canary, secret, canary, "uploadFile", 200},
		{"GET", "/sandboxes/" + id + "/files/raw?path=/" + canary, secret, "", "downloadFile", 200},
		{"GET", "/sandboxes/" + id + "/files/stat?path=/" + canary, secret, "", "", 200},
		{"GET", "/whoami", canary, "", "whoAmI", 401},
		{"DELETE", "/sandboxes/" + id, secret, "", "deleteSandbox", 200},
	} {
		out.Reset()
		w := from(h, "192.0.2.1:1", c.method, api+c.path, c.token, c.body)
		if w.Code != c.status {
			t.Fatalf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
		if strings.Contains(out.String(), canary) {
			t.Errorf("%s %s: the line tells what it should not: %s", c.method, c.path, out.String())
		}
		if c.operation == "" {
			if out.Len() > 0 {
				t.Errorf("%s %s is written down: %s", c.method, c.path, out.String())
			}
			continue
		}
		var line struct {
			Operation, Account, Token, Remote, Method, Path string
			RequestID                                       string `json:"request_id"`
			Status                                          int
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%s %s: %v: %q", c.method, c.path, err, out.String())
		}
		if line.Operation != c.operation || line.Status != c.status || line.Remote != "192.0.2.1:1" || line.Method != c.method ||
			line.RequestID != w.Header().Get("X-Request-Id") || (line.Account == "acc_1") != (c.status != 401) {
			t.Errorf("%s %s: %+v", c.method, c.path, line)
		}
	}
}
