package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// alive is what holds of every sandbox that can be used.
func alive(t *testing.T, c *client.Client, id string) {
	t.Helper()
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "echo ok"})
	if err != nil || r.ExitCode != 0 || r.Stdout != "ok\n" {
		t.Errorf("it is not alive: %+v, %v", r, err)
	}
}

// request makes a request past the client, which would not send it.
func request(t *testing.T, s *Server, method, path, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+wire.Prefix+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminSecret(t))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp, b.String()
}

// Kind of fault: output beyond a buffer blocks the command, or is thrown away.
func TestLongOutputNeitherBlocksNorGetsLost(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "seq 1 700000; seq 1 700000 >&2; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	const whole = 4_788_895
	const sum = "52ecaed6c269043703c6bfff09b6848da63a3bcbf5d168d980bb85990f480fa7"
	if r.ExitCode != 3 || r.TimedOut || !r.Truncated || r.StdoutBytes != whole || r.StderrBytes != whole {
		t.Errorf("code %d, timed out %v, truncated %v, %d and %d bytes", r.ExitCode, r.TimedOut, r.Truncated, r.StdoutBytes, r.StderrBytes)
	}
	// Neither stream has used up the other's allowance.
	for _, s := range []string{r.Stdout, r.Stderr} {
		if !strings.HasPrefix(s, "1\n2\n") || !strings.HasSuffix(s, "\n700000\n") || len(s) < eqvps.MaxOutputBytes {
			t.Errorf("%d bytes are kept; head or tail is missing: %.20q … %q", len(s), s, s[max(0, len(s)-20):])
		}
	}
	// As a stream both are whole.
	streams := map[eqvps.Stream]hash.Hash{eqvps.Stdout: sha256.New(), eqvps.Stderr: sha256.New()}
	var mu sync.Mutex
	st, err := c.ExecStream(t.Context(), id, wire.ExecRequest{Command: "seq 1 700000; seq 1 700000 >&2; exit 3"}, func(s eqvps.Stream, p []byte) error {
		mu.Lock()
		defer mu.Unlock()
		streams[s].Write(p)
		return nil
	})
	if err != nil || st.Code != 3 {
		t.Errorf("streamed: %+v, %v", st, err)
	}
	for s, h := range streams {
		if got := hex.EncodeToString(h.Sum(nil)); got != sum {
			t.Errorf("%v has SHA-256 %s", s, got)
		}
	}
}

// Kind of fault: a process left in the background holds the output pipe, and
// with it the answer and the calls that follow.
func TestChildLeftBehindHoldsNobodyUp(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "sleep 41.25 & echo up", Options: wire.Options{Timeout: 20}})
	if err != nil || r.Stdout != "up\n" || r.ExitCode != 0 || r.TimedOut {
		t.Errorf("%+v, %v", r, err)
	}
	// Not 0: the answer did not wait for the child. Not killed with its parent either.
	if got := shell(t, c, id, "pgrep -fc '[4]1.25'"); got != "1" {
		t.Errorf("%s children are there, want 1", got)
	}
}

// Kind of fault: a timeout comes only when the command is over, or is not the
// one that was asked for.
func TestTimeoutIsTheOneAskedFor(t *testing.T) {
	s, c := startServer(t)
	id := newSandbox(t, c)
	for _, command := range []string{"echo begun; sleep 25", "echo begun; setsid -w sleep 25", "echo begun; trap '' TERM INT; while :; do sleep 25; done"} {
		r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: command, Options: wire.Options{Timeout: 4}})
		if err != nil {
			t.Fatal(err)
		}
		if !r.TimedOut || r.ExitCode != 124 || r.Stdout != "begun\n" || r.DurationMS < 4000 || r.DurationMS > 20_000 || !strings.Contains(r.Hint, "async") {
			t.Errorf("%s: %+v", command, r)
		}
	}
	if got := shell(t, c, id, "pgrep -fc '[s]leep 25' || true"); got != "0" {
		t.Errorf("%s processes of commands that were killed live on", got)
	}
	var wg sync.WaitGroup
	for _, timeout := range lateTimeouts {
		wg.Go(func() {
			begun := time.Now()
			r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "sleep 70", Options: wire.Options{Timeout: timeout}})
			if timeout == 0 {
				timeout = wire.Seconds(eqvps.DefaultExecTimeout / time.Second)
			}
			took := time.Since(begun)
			if err != nil || !r.TimedOut || took < time.Duration(timeout)*time.Second || took > 65*time.Second || r.DurationMS > 1000*int64(timeout)+5000 {
				t.Errorf("timeout %v: %+v, %v after %s", timeout, r, err, took)
			}
		})
	}
	wg.Wait()
	for _, timeout := range []string{"600", "56", "0", "-1", `"abc"`, "null", "1e400", `"4"`} {
		resp, body := request(t, s, "POST", "/sandboxes/"+id+"/exec", `{"command": "true", "timeout": `+timeout+`}`)
		if resp.StatusCode != 400 || !strings.Contains(body, "background task") && timeout != "1e400" {
			t.Errorf("timeout %s: %s\n%s", timeout, resp.Status, body)
		}
	}
}

// Kind of fault: nobody reaps what commands leave behind, until no process can
// be started any more.
func TestOrphansAreReaped(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	work := make(chan int, orphans)
	for i := range orphans {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range work {
				// The child ends after its parent, and grandchildren with it.
				r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: fmt.Sprintf("(sleep 0.3; true | true) & exit %d", i%100)})
				if err != nil || r.ExitCode != i%100 {
					t.Errorf("command %d: %+v, %v", i, r, err)
				}
			}
		})
	}
	wg.Wait()
	const zombies = "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | grep -c ^Z || true"
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		got := shell(t, c, id, zombies)
		if got == "0" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s zombies stay", got)
		}
	}
	alive(t, c, id)
}
