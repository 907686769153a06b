package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

func dial(t testing.TB, base string) *client.Client {
	t.Helper()
	c, err := client.New(base, secret)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open starts a streaming call and returns its lines.
func open(t *testing.T, ctx context.Context, url, body string) (*bufio.Scanner, io.Closer) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "application/x-ndjson" {
		t.Fatalf("status %d, content type %q", resp.StatusCode, ct)
	}
	return bufio.NewScanner(resp.Body), resp.Body
}

func event(t *testing.T, lines *bufio.Scanner) wire.Event {
	t.Helper()
	var e wire.Event
	if !lines.Scan() {
		t.Fatalf("the stream ended: %v", lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestStreamIsLive: the first line is there while the command still runs.
func TestStreamIsLive(t *testing.T) {
	f := newFake()
	base := f.server(t)
	lines, _ := open(t, t.Context(), base+api+"/sandboxes/"+f.sandbox(t)+"/exec/stream", `{"command":"wait"}`)
	if e := event(t, lines); e.Type != "stdout" || e.Text != "first\n" {
		t.Fatalf("first event is %+v", e)
	}
	close(f.hold)
	if e := event(t, lines); e.Text != "second\n" {
		t.Fatalf("second event is %+v", e)
	}
	if e := event(t, lines); e.Type != "exit" || e.ExitStatus == nil || e.ExitCode != 0 {
		t.Fatalf("last event is %+v", e)
	}
	if lines.Scan() {
		t.Errorf("something follows the exit: %s", lines.Text())
	}
}

// TestStreamText: characters are never cut, and bytes that are none stay bytes.
func TestStreamText(t *testing.T) {
	f := newFake()
	base := f.server(t)
	url := base + api + "/sandboxes/" + f.sandbox(t) + "/run/stream"
	for _, c := range []struct{ body, want string }{
		{`{"language":"python","code":"split"}`, `stdout "a" / stdout "äb" / stdout bytes "c\xff" / stdout "d" / stderr "e\n" / stdout bytes "\xe2\x82" / exit 0`},
		{`{"language":"python","code":"echo hi","encoding":"base64"}`, `stdout bytes "hi\n" / exit 0`},
		{`{"language":"python","code":"late","timeout":2}`, `stdout "begun\n" / exit 124 SIGKILL timed out`},
		{`{"language":"python","code":"break"}`, `stdout "half\n" / error sandbox_unreachable`},
	} {
		lines, _ := open(t, t.Context(), url, c.body)
		var got []string
		for lines.Scan() {
			var e wire.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			switch {
			case e.DataBase64 != nil:
				got = append(got, fmt.Sprintf("%s bytes %q", e.Type, e.DataBase64))
			case e.ExitStatus != nil:
				s := fmt.Sprintf("exit %d", e.ExitCode)
				if e.TimedOut {
					s += " " + *e.Signal + " timed out"
				}
				got = append(got, s)
			case e.Error != nil:
				got = append(got, "error "+e.Code)
			default:
				got = append(got, fmt.Sprintf("%s %q", e.Type, e.Text))
			}
		}
		if diff := cmp.Diff(c.want, strings.Join(got, " / ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.body, diff)
		}
	}
}

// TestServerSentEvents: the same events in the other form, to whoever names it.
func TestServerSentEvents(t *testing.T) {
	f := newFake()
	base := f.server(t)
	url := base + api + "/sandboxes/" + f.sandbox(t) + "/run/stream"
	for accept, sse := range map[string]bool{
		"text/event-stream": true,
		"application/json;q=0.2, Text/Event-Stream ; q=0.1":   true,
		"text/event-stream, application/x-ndjson":             true,
		"application/x-ndjson;q=0.5, text/event-stream;q=0.9": true,
		"text/event-stream, */*":                              true,
		"application/x-ndjson, text/event-stream":             false,
		"text/event-stream;q=0, */*":                          false,
		"text/event-stream;q=x":                               false,
		"text/*":                                              false,
		"*/*":                                                 false,
		"":                                                    false,
	} {
		resp, text := send(t, "POST", url, `{"language":"python","code":"split"}`, "Accept", accept)
		h := resp.Header
		if h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-store, no-transform" || h.Get("Vary") != "Accept" {
			t.Errorf("Accept %q: headers %v", accept, h)
		}
		want := `{"type":"stdout","text":"a"}
{"type":"stdout","text":"äb"}
{"type":"stdout","data_base64":"Y/8="}
{"type":"stdout","text":"d"}
{"type":"stderr","text":"e\n"}
{"type":"stdout","data_base64":"4oI="}
{"type":"exit","exit_code":0,"signal":null,"timed_out":false,"oom":false,"duration_ms":5,"duration_us":5000}
`
		media := "application/x-ndjson"
		if sse {
			media = "text/event-stream"
			var events strings.Builder
			for line := range strings.Lines(want) {
				kind, _, _ := strings.Cut(strings.TrimPrefix(line, `{"type":"`), `"`)
				fmt.Fprintf(&events, "event: %s\ndata: %s\n", kind, line)
			}
			want = events.String()
		}
		if h.Get("Content-Type") != media {
			t.Errorf("Accept %q: %s", accept, h.Get("Content-Type"))
		}
		if diff := cmp.Diff(want, text); diff != "" {
			t.Errorf("Accept %q (-want +got):\n%s", accept, diff)
		}
	}
	// What goes wrong before the command runs is an answer as any other.
	resp, text := send(t, "POST", url, `{"language":"cobol","code":"x"}`, "Accept", "text/event-stream")
	if resp.StatusCode != 422 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s: %s", resp.Status, text)
	}
	if _, text = send(t, "POST", url, `{"language":"python","code":"break"}`, "Accept", "text/event-stream"); !strings.Contains(text, "\n\nevent: error\ndata: {") {
		t.Errorf("a sandbox that breaks: %s", text)
	}
}

// TestDisconnectEndsCommand: nobody is left to read, so nothing runs on.
func TestDisconnectEndsCommand(t *testing.T) {
	f := newFake()
	base := f.server(t)
	id := f.sandbox(t)
	lines, body := open(t, t.Context(), base+api+"/sandboxes/"+id+"/exec/stream", `{"command":"sleep"}`)
	event(t, lines)
	body.Close()
	<-f.ended

	ctx, cancel := context.WithCancel(t.Context())
	c := dial(t, base)
	_, err := c.ExecStream(ctx, id, wire.ExecRequest{Command: "sleep"}, func(eqvps.Stream, []byte) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	<-f.ended
}

// TestDisconnectMayLeaveCommand: with on_disconnect a command outlives its
// client, whichever call it is and whether it prints or not.
func TestDisconnectMayLeaveCommand(t *testing.T) {
	for _, call := range []string{"exec", "exec/stream"} {
		f := newFake()
		base := f.server(t)
		url := base + api + "/sandboxes/" + f.sandbox(t) + "/"
		leave := func(call, command, more string) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "POST", url+call, strings.NewReader(`{"command":"`+command+`",`+more+`}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+secret)
			answered := make(chan error)
			go func() {
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					_, err = bufio.NewReader(resp.Body).ReadString('\n')
					resp.Body.Close()
				}
				answered <- err
			}()
			for deadline := time.Now().Add(10 * time.Second); !f.runs(command); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: %s does not run", call, command)
				}
			}
			if call == "exec" {
				cancel() // its answer is still far
			}
			if err := <-answered; (err != nil) != (call == "exec") {
				t.Errorf("%s: %v", call, err)
			}
		}
		leave(call, "linger", `"on_disconnect":"continue"`)
		// A command that ends with its client shows that the server looks.
		leave("exec/stream", "sleep", `"on_disconnect":"kill"`)
		<-f.ended
		select {
		case err := <-f.stayed:
			t.Errorf("%s: it ended with its client: %v", call, err)
			continue
		default:
		}
		close(f.hold)
		if err := <-f.stayed; err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestClientRoundTrip(t *testing.T) {
	f := newFake()
	sock := filepath.Join(t.TempDir(), "eqvps.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, l)
	for name, base := range map[string]string{"tcp": f.server(t), "prefix": f.server(t) + api + "/", "unix": "unix://" + sock} {
		t.Run(name, func(t *testing.T) { roundTrip(t, f, dial(t, base)) })
	}
}

func roundTrip(t *testing.T, f *fake, c *client.Client) {
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	who, err := c.WhoAmI(ctx)
	ok(err)
	if who.AccountID != "acc_1" || who.Version != eqvps.Version {
		t.Errorf("who: %+v", who)
	}
	tariffs, err := c.Tariffs(ctx)
	ok(err)
	if len(tariffs.Data) != 6 || !tariffs.Data[1].Default {
		t.Errorf("tariffs: %+v", tariffs)
	}
	idle := int64(60)
	sb, err := c.Create(ctx, wire.CreateSandbox{Tariff: "micro", IdleTimeout: &idle, Env: map[string]string{"A": "1"}})
	ok(err)
	if sb.Tariff != "micro" || sb.IdleTimeout != 60 || len(sb.EnvKeys) != 1 {
		t.Errorf("sandbox: %+v", sb)
	}
	list, err := c.List(ctx, client.ListOptions{State: "active", Limit: 1})
	ok(err)
	if len(list.Data) != 1 || list.Data[0].ID != sb.ID {
		t.Errorf("list: %+v", list)
	}
	if got, err := c.Get(ctx, sb.ID); err != nil || !cmp.Equal(got.ID, sb.ID) {
		t.Errorf("get: %+v, %v", got, err)
	}
	pong, err := c.Ping(ctx, sb.ID)
	ok(err)
	if !pong.OK {
		t.Errorf("pong: %+v", pong)
	}
	res, err := c.Exec(ctx, sb.ID, wire.ExecRequest{Command: "fail", Options: wire.Options{Timeout: 5}})
	ok(err)
	if res.ExitCode != 3 || res.Stderr != "no\n" {
		t.Errorf("exec: %+v", res)
	}
	res, err = c.Run(ctx, sb.ID, wire.RunRequest{Language: "python", Code: "echo <&>"})
	ok(err)
	if res.Stdout != "<&>\n" {
		t.Errorf("run: %+v", res)
	}
	for name, stream := range map[string]func(string, eqvps.Output) (eqvps.ExitStatus, error){
		"exec": func(cmd string, out eqvps.Output) (eqvps.ExitStatus, error) {
			return c.ExecStream(ctx, sb.ID, wire.ExecRequest{Command: cmd}, out)
		},
		"run": func(cmd string, out eqvps.Output) (eqvps.ExitStatus, error) {
			return c.RunStream(ctx, sb.ID, wire.RunRequest{Language: "python", Code: cmd}, out)
		},
	} {
		var got [3]bytes.Buffer
		out := func(s eqvps.Stream, p []byte) error { got[s].Write(p); return nil }
		st, err := stream("split", out)
		ok(err)
		if st.Code != 0 || got[eqvps.Stdout].String() != "a\xc3\xa4bc\xffd\xe2\x82" || got[eqvps.Stderr].String() != "e\n" {
			t.Errorf("%s stream: %+v %q %q", name, st, &got[1], &got[2])
		}
		st, err = stream("oom", out)
		ok(err)
		if st.Code != 137 || st.Signal != "SIGKILL" || !st.OOM {
			t.Errorf("%s stream: %+v", name, st)
		}
		_, err = stream("break", out)
		if eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
			t.Errorf("%s stream: %v", name, err)
		}
		mine := errors.New("enough")
		if _, err = stream("flood", func(eqvps.Stream, []byte) error { return mine }); !errors.Is(err, mine) {
			t.Errorf("%s stream: %v", name, err)
		}
	}

	content := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{1}).Read(content)
	const odd = "/root/a b\n%\xff?.bin"
	for _, size := range []int64{int64(len(content)), -1} {
		fi, err := c.Upload(ctx, sb.ID, odd, 0o755, struct{ io.Reader }{bytes.NewReader(content)}, size)
		ok(err)
		if fi.Path != odd || fi.Size != int64(len(content)) || fi.Mode != 0o755 {
			t.Errorf("upload: %+v", fi)
		}
	}
	rd, size, err := c.Download(ctx, sb.ID, odd)
	ok(err)
	got, err := io.ReadAll(rd)
	rd.Close()
	ok(err)
	if size != int64(len(content)) || !bytes.Equal(got, content) {
		t.Errorf("download: %d bytes, said %d", len(got), size)
	}
	if fi, err := c.Stat(ctx, sb.ID, odd); err != nil || fi.Path != odd {
		t.Errorf("stat: %+v, %v", fi, err)
	}
	_, err = c.Upload(ctx, sb.ID, "/root/empty", 0, strings.NewReader(""), 0)
	ok(err)
	page, next, err := c.ListFiles(ctx, sb.ID, "/root", "", 1)
	ok(err)
	if len(page) != 1 || page[0].Path != odd {
		t.Errorf("list files: %+v", page)
	}
	page, next, err = c.ListFiles(ctx, sb.ID, "/root", next, 0)
	ok(err)
	if len(page) != 1 || page[0].Path != "/root/empty" || next != "" {
		t.Errorf("list files: %+v, next %q", page, next)
	}
	rd, _, err = c.Download(ctx, sb.ID, "/short")
	ok(err)
	if _, err := io.ReadAll(rd); err == nil {
		t.Error("a file that ended early passed for whole")
	}
	rd.Close()

	usage, err := c.Usage(ctx, sb.ID)
	ok(err)
	if usage.EgressBytes != 42 || usage.CPUSeconds != 1.5 {
		t.Errorf("usage: %+v", usage)
	}
	for range 2 {
		final, err := c.Delete(ctx, sb.ID)
		ok(err)
		if final.State != "deleted" || *final.Reason != "deleted" {
			t.Errorf("final: %+v", final)
		}
	}
	tok, err := c.CreateToken(ctx, wire.CreateToken{Name: "ci"})
	ok(err)
	ok(c.RevokeToken(ctx, tok.ID))
	tokens, err := c.ListTokens(ctx)
	ok(err)
	if tokens.Data[0].ID != tok.ID || tokens.Data[0].RevokedAt == nil {
		t.Errorf("tokens: %+v", tokens)
	}

	_, err = c.Exec(ctx, sb.ID, wire.ExecRequest{Command: "echo"})
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 410 || e.Code != eqvps.CodeSandboxEnded || e.RequestID == "" || e.Next == "" {
		t.Errorf("error: %#v", err)
	}
	if err := c.RevokeToken(ctx, "tok_none"); eqvps.ErrorCode(err) != eqvps.CodeTokenNotFound {
		t.Errorf("error: %v", err)
	}
}
