package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/channel"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// lying is a client whose guest answers as h does.
func lying(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	host, port := net.Pipe()
	ep := &channel.Endpoint{
		Port: port, Version: Version, Go: func([]byte) error { return nil },
		Serve: func(c net.Conn) {
			mux, err := channel.MuxGuest(c)
			if err != nil {
				panic(err)
			}
			_ = http.Serve(mux, h)
			_ = mux.Close()
		},
	}
	go ep.Run()
	c, err := Connect(t.Context(), func(context.Context) (net.Conn, error) { return host, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); port.Close() })
	return c
}

// Whatever an agent answers, a call ends, with CodeUnreachable.
func TestLyingAgent(t *testing.T) {
	say := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	entryHeader := func(entry string, size int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(wire.HeaderEntry, entry)
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, _ = io.WriteString(w, body)
		}
	}
	list := func(names ...string) http.HandlerFunc {
		var l wire.Listing
		for _, n := range names {
			l.Entries = append(l.Entries, wire.Entry{Name: []byte(n), Type: "file"})
		}
		return func(w http.ResponseWriter, r *http.Request) { _ = writeJSON(w, l) }
	}
	ping := func(c *Client) error { _, err := c.Ping(context.Background()); return err }
	exec := func(c *Client) error {
		_, err := c.Exec(context.Background(), eqvps.ExecRequest{Command: "x"}, func(eqvps.Stream, []byte) error { return nil })
		return err
	}
	stat := func(c *Client) error { _, err := c.Stat(context.Background(), "/x"); return err }
	ls := func(c *Client) error { _, _, err := c.ListFiles(context.Background(), "/x", "b", 2); return err }
	down := func(c *Client) error {
		_, r, err := c.Download(context.Background(), eqvps.DownloadRequest{Path: "/x"})
		if err == nil {
			r.Close()
		}
		return err
	}
	up := func(c *Client) error {
		_, err := c.Upload(context.Background(), eqvps.UploadRequest{Path: "/x", Content: strings.NewReader("x"), Size: 1})
		return err
	}
	tail := func(c *Client) error {
		_, r, err := c.Download(context.Background(), eqvps.DownloadRequest{Path: "/x", Offset: 1})
		if err == nil {
			r.Close()
		}
		return err
	}
	part := func(c *Client) error {
		_, err := c.UploadPart(context.Background(), eqvps.UploadPart{
			UploadRequest: eqvps.UploadRequest{Path: "/x", Content: strings.NewReader("x"), Size: 1}, Upload: "u", Total: 2, Keep: time.Minute,
		})
		return err
	}
	rm := func(c *Client) error { _, err := c.Remove(context.Background(), "/x", true); return err }
	mv := func(c *Client) error {
		_, err := c.Move(context.Background(), eqvps.Move{From: "/x", To: "/y"})
		return err
	}
	mkdir := func(c *Client) error { _, err := c.MakeDir(context.Background(), "/x", 0); return err }
	for name, test := range map[string]struct {
		agent http.HandlerFunc
		call  func(*Client) error
	}{
		"list: nothing, and more": {say(200, `{"Entries":[],"More":true}`), ls},
		"range: the whole":        {entryHeader(`{"Type":"file","Size":3}`, 3, "xxx"), tail},
		"part: too much":          {say(200, `{"Received":3}`), part},
		"part: negative":          {say(200, `{"Received":-1}`), part},
		"part: another file":      {say(200, `{"Received":2,"Done":{"Type":"file","Size":9}}`), part},
		"remove: junk":            {say(200, "junk"), rm},
		"remove: negative":        {say(200, `{"Entries":-1}`), rm},
		"remove: endless":         {endless, rm},
		"move: odd type":          {say(200, `{"Type":"portal"}`), mv},
		"mkdir: empty":            {say(200, ""), mkdir},
		"ping: junk":              {say(200, "junk"), ping},
		"ping: endless":           {endless, ping},
		"ping: 500":               {say(500, "<html>"), ping},
		"ping: a code of ours":    {say(402, `{"Code":"insufficient_balance","Message":"pay me"}`), ping},
		"ping: redirect":          {say(302, ""), ping},
		"ping: huge header":       {func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, ping},
		"exec: empty":             {say(200, ""), exec},
		"exec: junk":              {say(200, "junk and more junk"), exec},
		"exec: endless failure":   {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500); endless(w, r) }, exec},
		"stat: junk":              {say(200, "[]"), stat},
		"stat: odd type":          {say(200, `{"Type":"portal"}`), stat},
		"stat: negative size":     {say(200, `{"Type":"file","Size":-1}`), stat},
		"list: too many":          {list("c", "d", "e"), ls},
		"list: not after":         {list("b"), ls},
		"list: not sorted":        {list("d", "c"), ls},
		"list: path":              {list("c/../../etc"), ls},
		"list: long name":         {list("c" + strings.Repeat("x", 255)), ls},
		"download: no entry":      {say(200, "x"), down},
		"download: a folder":      {entryHeader(`{"Type":"dir","Size":1}`, 1, "x"), down},
		"download: another size":  {entryHeader(`{"Type":"file","Size":2}`, 1, "x"), down},
		"upload: junk":            {say(200, "junk"), up},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.call(lying(t, test.agent))
			if eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
				t.Errorf("the error is %v, want %s", err, eqvps.CodeUnreachable)
			}
			if msg := eqvps.AsError(err).Message; msg != eqvps.CodeUnreachable.Kind().Message {
				t.Errorf("people read %q", msg)
			}
		})
	}
}

// What follows a command's result is not read, and what an agent prints without
// end ends with the time it has: neither holds anybody up, and others that use
// the session do not notice.
func TestAgentThatGoesOn(t *testing.T) {
	stdout := wire.Frame(wire.FrameStdout, make([]byte, wire.MaxFrame))
	calls := make(chan http.HandlerFunc, 1)
	c := lying(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == wire.PathPing {
			_, _ = w.Write(wire.Pong{Version: Version}.Encode())
			return
		}
		(<-calls)(w, r)
	})
	c.execGrace = 100 * time.Millisecond
	again := func(frame []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(frame); err != nil {
					return
				}
			}
		}
	}
	for name, test := range map[string]struct {
		agent http.HandlerFunc
		code  eqvps.Code
		cause error
	}{
		"output without end": {again(stdout), eqvps.CodeUnreachable, errOverdue},
		"empty frames":       {again(wire.Frame(wire.FrameStderr, nil)), eqvps.CodeUnreachable, errOverdue},
		"after the result": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(wire.Frame(wire.FrameResult, wire.Result{Code: 3}.Encode()))
			again(stdout)(w, r)
		}, "", nil},
		"a declared length that is huge": {again([]byte{wire.FrameStdout, 255, 255, 255, 255}), eqvps.CodeUnreachable, nil},
		"a frame that never ends": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(stdout[:len(stdout)-1])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, eqvps.CodeUnreachable, errOverdue},
		"headers without end": {func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := io.WriteString(conn, "X: y\r\n"); err != nil {
					return
				}
			}
		}, eqvps.CodeUnreachable, nil},
	} {
		calls <- test.agent
		var st eqvps.ExitStatus
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			st, err = c.Exec(t.Context(), eqvps.ExecRequest{Command: "x", Timeout: time.Millisecond}, func(eqvps.Stream, []byte) error { return nil })
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it holds the call up", name)
			<-done
		}
		if eqvps.ErrorCode(err) != test.code || test.cause != nil && !errors.Is(err, test.cause) || err == nil && st.Code != 3 {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
		if _, err := c.Ping(t.Context()); err != nil {
			t.Fatalf("%s: the session is over: %v", name, err)
		}
	}
}

func endless(w http.ResponseWriter, r *http.Request) {
	for {
		if _, err := w.Write(make([]byte, 64<<10)); err != nil {
			return
		}
	}
}

// An agent that does not answer, or does not end a command, is unreachable in
// bounded time.
func TestSilentAgent(t *testing.T) {
	quit := make(chan struct{})
	defer close(quit)
	c := lying(t, func(w http.ResponseWriter, r *http.Request) { <-quit })
	c.replyTimeout, c.execGrace = 50*time.Millisecond, 50*time.Millisecond
	if _, err := c.Ping(context.Background()); eqvps.ErrorCode(err) != eqvps.CodeUnreachable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ping: %v", err)
	}
	_, err := c.Exec(context.Background(), eqvps.ExecRequest{Command: "x", Timeout: time.Millisecond}, nil)
	if eqvps.ErrorCode(err) != eqvps.CodeUnreachable || !errors.Is(err, errOverdue) {
		t.Errorf("exec: %v", err)
	}
}

// A host that is slow to take output is not the agent's fault.
func TestStopwatchStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, rung := time.Now(), make(chan time.Duration, 1)
		w := newStopwatch(10*time.Second, func() { rung <- time.Since(begun) })
		for range 3 {
			time.Sleep(3 * time.Second)
			w.stop()
			time.Sleep(time.Hour)
			w.start()
		}
		if got, want := <-rung, 3*time.Hour+10*time.Second; got != want {
			t.Errorf("it rings after %v, want %v", got, want)
		}
	})
}

func TestForeignVersion(t *testing.T) {
	for _, version := range []int{0, oldest - 1, Version + 1} {
		host, port := net.Pipe()
		ep := &channel.Endpoint{Port: port, Version: version}
		go ep.Run()
		_, err := Connect(t.Context(), func(context.Context) (net.Conn, error) { return host, nil })
		if eqvps.ErrorCode(err) != eqvps.CodeUnreachable || !strings.Contains(err.Error(), "version") {
			t.Errorf("version %d: %v", version, err)
		}
		port.Close()
	}
}

// Whether a guest may have gone on decides whether its memory may be used again:
// only where that is certain, Renew does not say so.
func TestIdentitySent(t *testing.T) {
	for name, test := range map[string]struct {
		goes func(port net.Conn) func([]byte) error
		sent bool
	}{
		"it goes without an answer": {func(port net.Conn) func([]byte) error {
			return func([]byte) error { return port.Close() }
		}, true},
		"it refuses": {func(net.Conn) func([]byte) error {
			return func([]byte) error { return errors.New("no") }
		}, false},
	} {
		host, port := net.Pipe()
		ep := &channel.Endpoint{Port: port, Version: Version, AtGate: true, Go: test.goes(port), Serve: func(net.Conn) {}}
		go ep.Run()
		_, err := Renew(t.Context(), func(context.Context) (net.Conn, error) { return host, nil }, Identity{Hostname: "sb"})
		if err == nil || errors.Is(err, ErrIdentitySent) != test.sent {
			t.Errorf("%s: %v", name, err)
		}
		port.Close()
	}
	host, port := net.Pipe()
	port.Close()
	_, err := Renew(t.Context(), func(context.Context) (net.Conn, error) { return host, nil }, Identity{Hostname: "sb"})
	if err == nil || errors.Is(err, ErrIdentitySent) {
		t.Errorf("nobody answers: %v", err)
	}
}

// An agent that says it goes to its gate, and never does, holds nobody up.
func TestNeverAtGate(t *testing.T) {
	say := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "{}") }
	for name, leave := range map[string]func(*Client, DialFunc) error{
		"park":    func(c *Client, dial DialFunc) error { return c.Park(t.Context(), dial) },
		"suspend": func(c *Client, dial DialFunc) error { return c.Suspend(t.Context(), dial) },
	} {
		c := lying(t, say)
		c.replyTimeout = 50 * time.Millisecond
		err := leave(c, func(context.Context) (net.Conn, error) {
			host, port := net.Pipe()
			t.Cleanup(func() { port.Close() })
			go (&channel.Endpoint{Port: port, Version: Version}).Run()
			return host, nil
		})
		if eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
			t.Errorf("%s: %v", name, err)
		}
	}
}
