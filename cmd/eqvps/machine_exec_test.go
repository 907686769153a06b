package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// until waits for a command that succeeds once a condition holds.
func until(t *testing.T, c *client.Client, id, condition string) {
	t.Helper()
	shell(t, c, id, "for i in {1..1000}; do if "+condition+"; then exit 0; fi; sleep 0.02; done; exit 1")
}

// TestOutputIsThereAtOnce: what a command prints can be read while it waits for
// the one who reads it, in both forms of a stream.
func TestOutputIsThereAtOnce(t *testing.T) {
	s, c := startServer(t)
	id := newSandbox(t, c)
	const command = "for i in 1 2 3; do echo line $i; until [ -e /tmp/go$i ]; do sleep 0.01; done; rm /tmp/go$i; done; echo end"
	goOn := func(i int) error {
		_, err := c.Upload(t.Context(), id, fmt.Sprintf("/tmp/go%d", i), 0, strings.NewReader(""), 0)
		return err
	}
	var got string
	st, err := c.ExecStream(t.Context(), id, wire.ExecRequest{Command: command}, func(_ eqvps.Stream, p []byte) error {
		got += string(p)
		if n := strings.Count(got, "line"); n > 0 && strings.HasSuffix(got, "\n") && !strings.HasSuffix(got, "end\n") {
			return goOn(n)
		}
		return nil
	})
	if err != nil || st.Code != 0 || got != "line 1\nline 2\nline 3\nend\n" {
		t.Errorf("%q, %+v, %v", got, st, err)
	}

	resp := stream(t, t.Context(), s, id, command, "text/event-stream")
	var kinds, data []string
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kinds = append(kinds, kind)
		}
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, d)
			if n := len(data); n <= 3 {
				if err := goOn(n); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if strings.Join(kinds, " ") != "stdout stdout stdout stdout exit" || data[3] != `{"type":"stdout","text":"end\n"}` {
		t.Errorf("server-sent events: %v %v", kinds, data)
	}
}

// stream starts a streaming command past the client.
func stream(t *testing.T, ctx context.Context, s *Server, id, command, accept string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.Addr()+wire.Prefix+"/sandboxes/"+id+"/exec/stream",
		strings.NewReader(fmt.Sprintf(`{"command":%q,"timeout":55}`, command)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminSecret(t))
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != accept {
		t.Fatalf("%s, %s", resp.Status, ct)
	}
	return resp
}

// TestClientGone: a command ends with its client, tree and all, unless it was
// asked to stay; then it works on to its end, or to its timeout.
func TestClientGone(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	leave := func(req wire.ExecRequest, started string, streamed bool) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			if streamed {
				_, err := c.ExecStream(ctx, id, req, func(eqvps.Stream, []byte) error { return nil })
				done <- err
				return
			}
			_, err := c.Exec(ctx, id, req)
			done <- err
		}()
		until(t, c, id, "[ -e "+started+" ]")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	for _, streamed := range []bool{false, true} {
		name := fmt.Sprintf("/tmp/%v", streamed)
		stay := wire.Options{OnDisconnect: wire.DisconnectContinue, Timeout: 50}
		leave(wire.ExecRequest{Options: stay, Command: fmt.Sprintf(
			"touch %[1]s-a; until [ -e %[1]s-go ]; do echo more; sleep 0.02; done; seq 100000; touch %[1]s-end", name)}, name+"-a", streamed)
		stay.Timeout = 5
		leave(wire.ExecRequest{Options: stay, Command: fmt.Sprintf("touch %s-b; setsid sleep 71 & sleep 72", name)}, name+"-b", streamed)
		// The server has seen all three go when the last one's command is gone.
		leave(wire.ExecRequest{Options: wire.Options{Timeout: 50}, Command: fmt.Sprintf("(setsid setsid sleep 61 &); touch %s-c; sleep 62", name)}, name+"-c", streamed)
		until(t, c, id, "! pgrep -f '^sleep 6[12]'")
		if got := shell(t, c, id, "pgrep -fc 'until .*more' || true"); got == "0" {
			t.Errorf("streamed %v: the command that was to stay has gone", streamed)
		}
		shell(t, c, id, "touch "+name+"-go")
		until(t, c, id, "[ -e "+name+"-end ]")
		until(t, c, id, "! pgrep -f '^sleep 7[12]'")
	}
}

// TestExecIsExact: what is easily got wrong about one command.
func TestExecIsExact(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	all := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(all)
	sum := fmt.Sprintf("%x  -\n", sha256.Sum256(all))
	long := "echo $((20 + 22)); exit 9 #"
	long += strings.Repeat("x", eqvps.MaxCommandBytes-len(long))
	for what, w := range map[string]struct {
		req            wire.ExecRequest
		stdout, stderr string
		code           int
		signal         string
		timedOut       bool
	}{
		"signal":             {req: wire.ExecRequest{Command: "kill -SEGV $$"}, code: 139, signal: "SIGSEGV"},
		"killed, not by us":  {req: wire.ExecRequest{Command: "kill -KILL $$"}, code: 137, signal: "SIGKILL"},
		"signal of a child":  {req: wire.ExecRequest{Command: "exec 2>/dev/null; (kill -USR1 $BASHPID); exit $?"}, code: 138},
		"code 300":           {req: wire.ExecRequest{Command: "exit 300"}, code: 44},
		"code -1":            {req: wire.ExecRequest{Command: "exit -1"}, code: 255},
		"124 by itself":      {req: wire.ExecRequest{Command: "exit 124"}, code: 124},
		"no input":           {req: wire.ExecRequest{Command: "cat; echo end"}, stdout: "end\n"},
		"input":              {req: wire.ExecRequest{Argv: []string{"sha256sum"}, StdinBase64: all}, stdout: sum},
		"input nobody reads": {req: wire.ExecRequest{Command: "exit 3", StdinBase64: all}, code: 3},
		"input half read":    {req: wire.ExecRequest{Command: "head -c 5 >/dev/null; sleep 0.1; echo ok", StdinBase64: all}, stdout: "ok\n"},
		"longest command":    {req: wire.ExecRequest{Command: long}, stdout: "42\n", code: 9},
		"longest argument":   {req: wire.ExecRequest{Argv: []string{"printf", "%s", strings.Repeat("y", 100_000)}}, stdout: strings.Repeat("y", 100_000)},
		"children of children die": {
			req:    wire.ExecRequest{Command: "echo up; (setsid bash -c '(setsid sleep 81 &) ; sleep 82' &); nohup sleep 83 >/dev/null 2>&1 & disown; sleep 84", Options: wire.Options{Timeout: 2}},
			stdout: "up\n", code: 124, timedOut: true,
		},
		"a child holds the pipe": {req: wire.ExecRequest{Command: "echo a; (sleep 91; echo b) & echo c >&2; exit 5"}, stdout: "a\n", stderr: "c\n", code: 5},
	} {
		r, err := c.Exec(t.Context(), id, w.req)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		signal := ""
		if r.Signal != nil {
			signal = *r.Signal
		}
		if r.ExitCode != w.code || r.Stdout != w.stdout || r.Stderr != w.stderr || signal != w.signal || r.TimedOut != w.timedOut || r.OOM || r.Truncated {
			t.Errorf("%s: code %d, signal %q, timed out %v, oom %v, stdout %.80q, stderr %.80q", what, r.ExitCode, signal, r.TimedOut, r.OOM, r.Stdout, r.Stderr)
		}
	}
	if got := shell(t, c, id, "pgrep -fc '^sleep 8[1-4]' || true"); got != "0" {
		t.Errorf("%s processes outlive their command's timeout", got)
	}
	if got := shell(t, c, id, "pgrep -fc '^sleep 91'; pkill -f '^sleep 91'"); got != "1" {
		t.Errorf("%s processes were left behind by the command that left one", got)
	}
	for what, w := range map[string]struct {
		req  wire.ExecRequest
		code eqvps.Code
	}{
		"a byte more than the longest": {wire.ExecRequest{Command: long + "x"}, eqvps.CodeTooLarge},
		"more input than allowed":      {wire.ExecRequest{Command: "true", StdinBase64: append(all, 0)}, eqvps.CodeTooLarge},
		"NUL":                          {wire.ExecRequest{Command: "a\x00"}, eqvps.CodeInvalidRequest},
		"nothing":                      {wire.ExecRequest{}, eqvps.CodeInvalidRequest},
	} {
		if _, err := c.Exec(t.Context(), id, w.req); eqvps.ErrorCode(err) != w.code {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLongText: text of three bytes a character is cut between characters,
// wherever the bound falls; the other stream keeps all of its own.
func TestLongText(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	const characters = 700_000
	for shift := range 3 {
		r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: fmt.Sprintf(
			`python3 -c 'import sys; sys.stdout.write("x" * %d + "語" * %d); sys.stderr.write("é" * 500000)'`, shift, characters)})
		if err != nil {
			t.Fatal(err)
		}
		total := int64(shift + 3*characters)
		if !r.Truncated || r.StdoutBytes != total || r.StdoutBase64 != nil || strings.ContainsRune(r.Stdout, utf8.RuneError) {
			t.Errorf("shift %d: truncated %v, %d bytes, as bytes %d", shift, r.Truncated, r.StdoutBytes, len(r.StdoutBase64))
		}
		head, rest, _ := strings.Cut(r.Stdout, "\n[... ")
		note, tail, _ := strings.Cut(rest, " bytes dropped ...]\n")
		if dropped := total - int64(len(head)+len(tail)); note != fmt.Sprint(dropped) || strings.Trim(head, "x語") != "" || strings.Trim(tail, "語") != "" ||
			len(head)+len(tail) < eqvps.MaxOutputBytes-6 {
			t.Errorf("shift %d: a head of %d bytes, %q dropped, a tail of %d", shift, len(head), note, len(tail))
		}
		if r.Stderr != strings.Repeat("é", 500_000) {
			t.Errorf("shift %d: standard error has %d bytes", shift, len(r.Stderr))
		}
	}
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: `printf '\xe2\x82|\x00\xff'; printf é >&2`, Options: wire.Options{Encoding: "base64"}})
	if err != nil || string(r.StdoutBase64) != "\xe2\x82|\x00\xff" || r.Stdout != "\uFFFD|\x00\uFFFD" || string(r.StderrBase64) != "é" {
		t.Errorf("bytes: %q %q %q, %v", r.StdoutBase64, r.Stdout, r.StderrBase64, err)
	}
}

// TestManyLines: a million lines, printed on both streams at once as fast as
// can be, come whole and in the order of their stream.
func TestManyLines(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	for command, lines := range map[string]int{
		"seq 500000 & seq 500000 >&2; wait": 500_000,
		`python3 -c 'import os
for i in range(1, 20001): os.write(1 + i % 2, b"%d\n" % ((i + 1) // 2))'`: 10_000,
	} {
		var want bytes.Buffer
		for i := range lines {
			fmt.Fprintln(&want, i+1)
		}
		var got [3]bytes.Buffer
		st, err := c.ExecStream(t.Context(), id, wire.ExecRequest{Command: command, Options: wire.Options{Timeout: 55}}, func(s eqvps.Stream, p []byte) error {
			got[s].Write(p)
			return nil
		})
		if err != nil || st.Code != 0 {
			t.Fatalf("%s: %+v, %v", command, st, err)
		}
		for _, s := range []eqvps.Stream{eqvps.Stdout, eqvps.Stderr} {
			if sha256.Sum256(got[s].Bytes()) != sha256.Sum256(want.Bytes()) {
				t.Errorf("%s: %s is not what was printed: %d bytes of %d", command, s, got[s].Len(), want.Len())
			}
		}
	}
}

// TestCommandsSideBySide: none is dropped, none gets another's output.
func TestCommandsSideBySide(t *testing.T) { sideBySide(t, 5, 200) }

// sideBySide runs commands at the same time in a number of sandboxes.
func sideBySide(t *testing.T, sandboxes, commands int) {
	_, c := startServer(t)
	ids := make([]string, sandboxes)
	for i := range ids {
		ids[i] = newSandbox(t, c)
	}
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range commands {
		wg.Go(func() {
			r, err := c.Exec(t.Context(), ids[i%sandboxes], wire.ExecRequest{
				Argv:    []string{"sh", "-c", `read -r n; seq $n $((n + 2000)); echo "err $n" >&2; exit $((n % 100))`},
				Stdin:   fmt.Sprintln(i),
				Options: wire.Options{Timeout: 55},
			})
			if err != nil {
				t.Errorf("command %d: %v", i, err)
				return
			}
			var want strings.Builder
			for k := i; k <= i+2000; k++ {
				fmt.Fprintln(&want, k)
			}
			if r.ExitCode != i%100 || r.Stdout != want.String() || r.Stderr != fmt.Sprintf("err %d\n", i) || r.Truncated {
				t.Errorf("command %d: code %d, timed out %v, %d of %d bytes, stderr %q", i, r.ExitCode, r.TimedOut, len(r.Stdout), want.Len(), r.Stderr)
			}
		})
	}
	wg.Wait()
	t.Logf("%d commands in %d sandboxes took %s", commands, sandboxes, time.Since(begun).Round(time.Millisecond))
}
