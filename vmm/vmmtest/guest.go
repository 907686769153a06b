package vmmtest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eqvps/eqvps/vmm"
)

// guest is one session with the test guest.
type guest struct {
	t     testing.TB
	conn  net.Conn
	lines chan string // closed when the connection ends; holds what comes while a line is sent
}

var nonce atomic.Uint64

// dialGuest connects and synchronizes: the guest may swallow the first bytes
// of a session, or still send those of the last one, so a ping with a number of
// its own is repeated until its answer comes, and what comes before is dropped.
func dialGuest(t testing.TB, m vmm.Machine) *guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := m.DialGuest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	g := &guest{t: t, conn: conn, lines: make(chan string, 1000)}
	stop := t.Context().Done()
	go func() {
		defer close(g.lines)
		for in := bufio.NewScanner(conn); in.Scan(); {
			select {
			case g.lines <- in.Text():
			case <-stop:
				return
			}
		}
	}()
	conn.SetWriteDeadline(time.Now().Add(patience))
	mark := fmt.Sprintf("sync-%d", nonce.Add(1))
	ticker := time.NewTicker(15 * time.Millisecond)
	defer ticker.Stop()
	for {
		g.send("ping " + mark)
		for again := false; !again; {
			select {
			case line, ok := <-g.lines:
				if !ok {
					t.Fatal("the guest channel closed before the guest answered")
				}
				if strings.HasSuffix(line, "pong "+mark) {
					g.drain(mark)
					return g
				}
			case <-ticker.C:
				again = true
			case <-ctx.Done():
				text, err := m.Console(t.Context())
				t.Fatalf("the guest does not answer; console (%v):\n%s", err, text)
			}
		}
	}
}

// drain drops the answers to repeated pings: those to earlier repetitions are
// followed by the one to a last ping of another name.
func (g *guest) drain(mark string) {
	g.t.Helper()
	g.send("ping end-" + mark)
	for line := range g.lines {
		if line == "pong end-"+mark {
			return
		}
	}
	g.t.Fatal("the guest channel closed")
}

func (g *guest) send(line string) {
	g.t.Helper()
	if _, err := fmt.Fprintln(g.conn, line); err != nil {
		g.t.Fatalf("send %q to the guest: %v", line, err)
	}
}

func (g *guest) ask(line string) string {
	g.t.Helper()
	g.send(line)
	select {
	case answer, ok := <-g.lines:
		if !ok {
			g.t.Fatalf("the guest channel closed before %q was answered", line)
		}
		return answer
	case <-time.After(patience):
		g.t.Fatalf("the guest does not answer %q", line)
	}
	panic("not reached")
}

func (g *guest) expect(line, want string) {
	g.t.Helper()
	if got := g.ask(line); got != want {
		g.t.Errorf("%q answers %q, want %q", line, got, want)
	}
}

// Ask opens the guest channel of a machine that runs the program testguest,
// gives one command and returns the answer.
func Ask(t testing.TB, m vmm.Machine, command string) string {
	t.Helper()
	g := dialGuest(t, m)
	defer g.conn.Close()
	return g.ask(command)
}
