package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// line is a port as a guest sees it: it stays while hosts come and go, and
// what one host has left behind is still there for the next.
type line struct {
	mu      sync.Mutex
	changed sync.Cond
	conn    net.Conn // the guest's end towards the host of now; nil: none
	silent  bool     // do not tell the guest when a host goes
}

func newLine() *line {
	l := &line{}
	l.changed.L = &l.mu
	return l
}

// dial puts a new host at the other end.
func (l *line) dial(context.Context) (net.Conn, error) {
	host, guest := net.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
	}
	l.conn = guest
	l.changed.Broadcast()
	return host, nil
}

func (l *line) current() net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.conn == nil {
		l.changed.Wait()
	}
	return l.conn
}

func (l *line) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == c {
		l.conn = nil
	}
}

func (l *line) Read(p []byte) (int, error) {
	for {
		c := l.current()
		n, err := c.Read(p)
		if err == nil || n > 0 {
			return n, nil
		}
		l.drop(c)
		if !l.silent {
			return 0, ErrHostGone
		}
	}
}

func (l *line) Write(p []byte) (int, error) {
	for {
		c := l.current()
		n, err := c.Write(p)
		if err == nil {
			return n, nil
		}
		l.drop(c)
	}
}

// echo serves sessions that send back what they get.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// start runs an endpoint on l.
func start(l *line, ep *Endpoint) *Endpoint {
	ep.Port = l
	if ep.Version == 0 {
		ep.Version = 7
	}
	if ep.Go == nil {
		ep.Go = func([]byte) error { return nil }
	}
	if ep.Serve == nil {
		ep.Serve = echo
	}
	go ep.Run()
	return ep
}

// open begins a session.
func open(t *testing.T, l *line, hello string) *Conn {
	t.Helper()
	c, err := tryOpen(t, l, hello)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tryOpen(t *testing.T, l *line, hello string) (*Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	nc, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	hs, err := Knock(ctx, nc, 7)
	if err != nil {
		return nil, err
	}
	return hs.Go(ctx, []byte(hello))
}

// mux makes a frame of the multiplexer, the only thing a Conn carries.
func mux(body string) []byte {
	b := make([]byte, muxHeaderSize, muxHeaderSize+len(body))
	b[8], b[9], b[10], b[11] = byte(len(body)>>24), byte(len(body)>>16), byte(len(body)>>8), byte(len(body))
	return append(b, body...)
}

// roundTrip fails the test unless the session echoes.
func roundTrip(t *testing.T, c *Conn, body string) {
	t.Helper()
	want := mux(body)
	go func() {
		_, _ = c.Write(want[:muxHeaderSize])
		_, _ = c.Write(want[muxHeaderSize:])
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Fatalf("the session echoes %.80q, want %.80q", got, want)
	}
}

var errRefused = errors.New("not today")
