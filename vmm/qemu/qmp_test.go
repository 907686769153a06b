package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// serveControl stands in for the control socket of a monitor.
func serveControl(t *testing.T, serve func(conn net.Conn)) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f, err := listen(dir, controlSocket)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		serve(conn)
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	return dir
}

const greeting = `{"QMP": {"version": {}, "capabilities": []}}` + "\n"

// TestHostileMonitor talks to monitors that a guest took over.
func TestHostileMonitor(t *testing.T) {
	write := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			fmt.Fprint(conn, text)
			bufio.NewReader(conn).ReadString(0) // until the client hangs up
		}
	}
	endless := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			for _, err := fmt.Fprint(conn, greeting); err == nil; {
				_, err = fmt.Fprint(conn, text)
			}
		}
	}
	for name, test := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"says nothing":      {write(""), "deadline exceeded"},
		"greets only":       {write(greeting), "deadline exceeded"},
		"sends events only": {endless(`{"event": "RTC_CHANGE"}` + "\n"), "deadline exceeded"},
		"answers others":    {endless(`{"return": {}, "id": "1-1"}` + "\n"), "deadline exceeded"},
		"never ends a line": {endless(strings.Repeat("x", 4096)), "more than 1048576 bytes"},
		"sends no JSON":     {write("hello\n"), "no QMP"},
		"sends other JSON":  {write("[1]\n"), "no QMP"},
		"hangs up":          {func(net.Conn) {}, errHungUp.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			dir := serveControl(t, test.serve)
			// Short where silence is the answer, long where it is not.
			patience := time.Minute
			if test.want == "deadline exceeded" {
				patience = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := converse(ctx, dir)
			if err == nil {
				defer c.close()
				_, err = c.do(capabilities())
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestLateReply: an answer to the last client's command is not taken for ours.
func TestLateReply(t *testing.T) {
	dir := serveControl(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		line, _ := in.ReadString('\n')
		id := line[strings.Index(line, `"id":`):]
		fmt.Fprint(conn, greeting, `{"return": "late", "id": "0-0"}`+"\n", `{"return": "ours", `+id)
		in.ReadString(0)
	})
	c, err := converse(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if reply, err := c.do(&command{Execute: "query-status"}); err != nil || string(reply) != `"ours"` {
		t.Errorf("got %s, %v", reply, err)
	}
}

// TestDialWaitsInVain: behind two clients that wait, a third one gives up when
// its context ends.
func TestDialWaitsInVain(t *testing.T) {
	dir := t.TempDir()
	l, err := listen(dir, guestSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for range 10 {
		conn, err := dial(ctx, dir, guestSocket)
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			return
		}
		defer conn.Close()
	}
	t.Error("ten clients were connected, and nobody accepted any")
}
