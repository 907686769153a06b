package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/httpapi"
)

// zeros is an endless source that costs nothing.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestUploadLimit: the limit holds with and without a declared size, and the
// memory does not grow with the file.
func TestUploadLimit(t *testing.T) {
	f := newFake()
	c, id := dial(t, f.server(t)), ""
	id = f.sandbox(t)
	fi, err := c.Upload(t.Context(), id, "/dev/null", 0, io.LimitReader(zeros{}, 200<<20), -1)
	if err != nil || fi.Size != 200<<20 {
		t.Fatalf("upload: %+v, %v", fi, err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapSys > 100<<20 {
		t.Errorf("the heap took %d MiB for a stream", m.HeapSys>>20)
	}
	_, err = c.Upload(t.Context(), id, "/dev/big", 0, io.LimitReader(zeros{}, eqvps.MaxFileBytes+1), eqvps.MaxFileBytes+1)
	if eqvps.ErrorCode(err) != eqvps.CodeTooLarge || !strings.Contains(err.Error(), "2000000000") {
		t.Errorf("declared size: %v", err)
	}
	if _, err := f.Stat(t.Context(), "/dev/big"); err == nil {
		t.Error("a file over the limit is there")
	}
}

// TestMalformedChunk: what a client sends wrong is its own fault.
func TestMalformedChunk(t *testing.T) {
	f := newFake()
	base, id := f.server(t), f.sandbox(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT %s/sandboxes/%s/files/raw?path=/chunk HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", api, id, secret)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if e := checkError(t, resp, string(body)); e.Code != "invalid_request" {
		t.Errorf("answer: %s", body)
	}
	if _, err := f.Stat(t.Context(), "/chunk"); err == nil {
		t.Error("a file of a malformed body is there")
	}
}

// TestCutUpload: a connection that breaks half-way leaves nothing.
func TestCutUpload(t *testing.T) {
	f := newFake()
	base, id := f.server(t), ""
	id = f.sandbox(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT %s/sandboxes/%s/files/raw?path=/cut HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\nhalf", api, id, secret)
	// The server answers nothing before the end; half-closing shows it one.
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	conn.Close()
	if e := checkError(t, resp, string(body)); e.Code != "invalid_request" || !strings.Contains(e.Message, "ended early") {
		t.Errorf("answer: %s", body)
	}
	if _, err := f.Stat(t.Context(), "/cut"); err == nil {
		t.Error("half a file is there")
	}
}

// pipes is a listener without a network, so that time can be a test's own.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// inBubble runs a test in which time passes only when everyone waits. It gives
// a raw connection to a server.
func inBubble(t *testing.T, f func(t *testing.T, f *fake, id string, conn net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		fk := newFake()
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		log := slog.New(slog.DiscardHandler)
		s := httpapi.NewServer(httpapi.New(httpapi.Config{Sandboxes: fk, Tokens: fk, Logger: log}), log)
		go s.Serve(l)
		here, there := net.Pipe()
		l.conns <- there
		f(t, fk, fk.sandbox(t), here)
		here.Close()
		s.Close()
	})
}

func answer(t *testing.T, conn net.Conn) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestStalledBody(t *testing.T) {
	for _, path := range []string{"/exec", "/files/raw?path=/stalled"} {
		inBubble(t, func(t *testing.T, f *fake, id string, conn net.Conn) {
			start := time.Now()
			method := map[bool]string{true: "POST", false: "PUT"}[path == "/exec"]
			fmt.Fprintf(conn, "%s %s/sandboxes/%s%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", method, api, id, path, secret)
			resp, body := answer(t, conn)
			if e := checkError(t, resp, body); e.Code != "invalid_request" || !strings.Contains(e.Message, "stopped coming") {
				t.Errorf("answer: %s", body)
			}
			if took := time.Since(start); took != httpapi.StallTimeout {
				t.Errorf("it was cut after %v, want %v", took, httpapi.StallTimeout)
			}
			if _, err := f.Stat(t.Context(), "/stalled"); err == nil {
				t.Error("a stalled upload left a file")
			}
		})
	}
}

// TestSlowUpload: what is slow, but moves, may take as long as it takes.
func TestSlowUpload(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake, id string, conn net.Conn) {
		fmt.Fprintf(conn, "PUT %s/sandboxes/%s/files/raw?path=/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n", api, id, secret)
		for range 100 {
			time.Sleep(httpapi.StallTimeout - time.Second)
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if resp, body := answer(t, conn); resp.StatusCode != 200 || !strings.Contains(body, `"size":100`) {
			t.Errorf("answer: %s", body)
		}
	})
}

// TestDripFeed: a JSON body, which is small, may not be spun out for ever.
func TestDripFeed(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fake, id string, conn net.Conn) {
		start := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			fmt.Fprintf(conn, "POST %s/sandboxes/%s/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n", api, id, secret)
			for {
				if _, err := conn.Write([]byte(" ")); err != nil {
					return
				}
				time.Sleep(20 * time.Second)
			}
		}()
		resp, body := answer(t, conn)
		if resp.StatusCode != 400 || time.Since(start) != httpapi.BodyTimeout {
			t.Errorf("after %v: %s", time.Since(start), body)
		}
		conn.Close()
		<-done
	})
}

// TestLongCommand: no limit of the transport cuts a command that prints
// nothing, and the connection lives on.
func TestLongCommand(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake, id string, conn net.Conn) {
		go func() {
			time.Sleep(10 * time.Minute)
			close(f.hold)
		}()
		for range 2 {
			body := `{"command":"wait"}`
			fmt.Fprintf(conn, "POST %s/sandboxes/%s/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", api, id, secret, len(body), body)
			if resp, body := answer(t, conn); resp.StatusCode != 200 || !strings.Contains(body, "second") {
				t.Errorf("answer: %s", body)
			}
		}
	})
}

// TestReaderStalls: a client that takes nothing holds a command up for a while,
// then it is ended.
func TestReaderStalls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake, id string, conn net.Conn) {
		start := time.Now()
		body := `{"command":"flood"}`
		fmt.Fprintf(conn, "POST %s/sandboxes/%s/exec/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", api, id, secret, len(body), body)
		time.Sleep(httpapi.WriteStall + time.Second)
		n, err := io.Copy(io.Discard, conn)
		if err != nil || n > 64<<10 {
			t.Errorf("read %d bytes, %v", n, err)
		}
		if took := time.Since(start); took > httpapi.WriteStall+time.Second {
			t.Errorf("it was cut after %v", took)
		}
	})
}

// TestHeaderStalls: a connection that never says what it wants is closed.
func TestHeaderStalls(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fake, _ string, conn net.Conn) {
		start := time.Now()
		fmt.Fprint(conn, "GET / HTTP/1.1\r\n")
		io.Copy(io.Discard, conn)
		if took := time.Since(start); took > httpapi.HeaderTimeout {
			t.Errorf("it was closed after %v", took)
		}
	})
}

func TestBodyTooLargeIsReadOut(t *testing.T) {
	f := newFake()
	base, id := f.server(t), ""
	id = f.sandbox(t)
	// A client that sends everything before it reads anything, like many do.
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 20 << 20
	fmt.Fprintf(conn, "POST %s/sandboxes/%s/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", api, id, secret, size)
	if _, err := io.CopyN(conn, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	resp, body := answer(t, conn)
	if e := checkError(t, resp, body); e.Code != "too_large" {
		t.Errorf("answer: %s", body)
	}
}

func TestHosts(t *testing.T) {
	f := newFake()
	h := httpapi.New(httpapi.Config{Sandboxes: f, Tokens: f, Logger: slog.New(slog.DiscardHandler), Hosts: []string{"localhost", "127.0.0.1", "::1"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httpapi.NewServer(h, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	defer func() { s.Close(); <-done }()
	for host, want := range map[string]int{
		"localhost": 200, "127.0.0.1:8080": 200, "[::1]": 200, "[::1]:80": 200, "evil.example": 403, "evil.example:80": 403,
	} {
		req, err := http.NewRequest("GET", "http://"+l.Addr().String()+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("host %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
}
