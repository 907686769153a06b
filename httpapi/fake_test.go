package httpapi_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/httpapi"
)

// The fake's world: one account, and one sandbox of another account.
const (
	secret  = "eqvps_test-secret"
	foreign = "sb_ffffffffffffffffffff"
	absent  = "sb_00000000000000000000"
	canary  = "canary-5d41402abc4b"
)

var epoch = time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)

// fake is a service in memory: enough of one to see what the skin makes of it.
type fake struct {
	mu     sync.Mutex
	list   []*eqvps.Sandbox // newest first
	files  map[string]file
	parts  map[string]*fakeUpload
	err    error // of every call that can fail, when set
	tokens []*eqvps.Token
	tasks  []*fakeTask       // newest first
	values map[string]string // of secrets
	events []eqvps.Event
	log    bytes.Buffer
	later  time.Duration // how far the clock is ahead of epoch
	ended  chan struct{} // receives when a command "sleep" was ended by its context
	hold   chan struct{} // "wait" prints when it is closed, "linger" ends
	begun  []string      // the commands that were run
	stayed chan error    // receives how "linger" ended: nil, or its context's error
}

type file struct {
	mode    fs.FileMode
	content []byte
}

func newFake() *fake {
	return &fake{
		files: map[string]file{}, parts: map[string]*fakeUpload{}, values: map[string]string{},
		ended: make(chan struct{}, 1), hold: make(chan struct{}), stayed: make(chan error, 1),
	}
}

// server serves the fake on a loopback port.
func (f *fake) server(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, l)
	return "http://" + l.Addr().String()
}

func (f *fake) serve(t testing.TB, l net.Listener) {
	log := slog.New(slog.NewJSONHandler(lockedWriter{f}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := httpapi.NewServer(httpapi.New(httpapi.Config{
		Sandboxes: f, Tokens: f, Secrets: f, Logger: log, LinkKey: []byte("a key of links"), Now: f.now,
	}), log)
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
}

func (f *fake) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return epoch.Add(f.later)
}

type lockedWriter struct{ f *fake }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.f.log.Write(p)
}

func (f *fake) runs(command string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.begun, command)
}

func (f *fake) logged() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

func (f *fake) Create(ctx context.Context, c eqvps.CreateSandbox) (*eqvps.Sandbox, error) {
	if f.err != nil {
		return nil, f.err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	t, err := eqvps.DefaultTariffs.Find(c.Tariff)
	if err != nil {
		return nil, err
	}
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	sb := eqvps.NewSandbox(c, p, t, epoch)
	sb.Run(epoch)
	sb.Image, sb.NewEvents = "img_1", nil
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.Insert(f.list, 0, sb)
	return sb, nil
}

func (f *fake) Get(_ context.Context, id string) (*eqvps.Sandbox, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, sb := range f.list {
		if sb.ID == id {
			c := *sb
			return &c, nil
		}
	}
	return nil, eqvps.WrapError(eqvps.CodeSandboxNotFound, nil)
}

func (f *fake) List(_ context.Context, q eqvps.SandboxFilter) ([]*eqvps.Sandbox, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*eqvps.Sandbox
	seen := q.After == ""
	for _, sb := range f.list {
		if seen && (q.Ended == nil || *q.Ended == sb.Ended()) && (q.Limit == 0 || len(out) < q.Limit) {
			out = append(out, sb)
		}
		seen = seen || sb.ID == q.After
	}
	return out, nil
}

func (f *fake) Delete(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	if _, err := f.Get(ctx, id); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.list, func(sb *eqvps.Sandbox) bool { return sb.ID == id })
	sb := *f.list[i]
	if !sb.Ended() {
		sb.State, sb.Reason, sb.EndedAt = eqvps.StateDeleted, eqvps.ReasonDeleted, epoch.Add(61*time.Second)
		sb.Halt(sb.EndedAt)
		f.list[i] = &sb
	}
	return &sb, nil
}

func (f *fake) Ping(ctx context.Context, id string) error {
	_, err := f.Use(ctx, id)
	return err
}

func (f *fake) Use(ctx context.Context, id string) (eqvps.Guest, error) {
	sb, err := f.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if sb.Ended() {
		return nil, eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox has ended (%s).", sb.Reason)
	}
	return f, nil
}

func (f *fake) Usage(ctx context.Context, id string) (eqvps.Usage, error) {
	sb, err := f.Get(ctx, id)
	if err != nil {
		return eqvps.Usage{}, err
	}
	now := epoch.Add(61 * time.Second)
	return eqvps.Usage{Running: sb.Running(now), CPUTime: 1500 * time.Millisecond, EgressBytes: 42, Hourly: sb.Hourly, Cost: sb.Cost(now)}, nil
}

// Exec knows a few commands. Code given on standard input is "run" by being
// named there.
func (f *fake) Exec(ctx context.Context, req eqvps.ExecRequest, out eqvps.Output) (eqvps.ExitStatus, error) {
	f.mu.Lock()
	f.begun = append(f.begun, req.Command)
	f.mu.Unlock()
	name := req.Command
	if name == "" {
		name = strings.Join(req.Argv, " ")
	}
	if name == "python3 -" {
		name = string(req.Stdin)
	}
	ok := eqvps.ExitStatus{Duration: 5 * time.Millisecond}
	say := func(s eqvps.Stream, text string) error { return out(s, []byte(text)) }
	switch verb, rest, _ := strings.Cut(name, " "); verb {
	case "echo":
		return ok, say(eqvps.Stdout, rest+"\n")
	case "cat":
		return ok, say(eqvps.Stdout, string(req.Stdin))
	case "env":
		return ok, say(eqvps.Stdout, strings.Join(eqvps.EnvKeys(req.Env), " "))
	case "cwd":
		return ok, say(eqvps.Stdout, req.Cwd)
	case "timeout":
		return ok, say(eqvps.Stdout, req.Timeout.String())
	case "fail":
		say(eqvps.Stderr, "no\n")
		return eqvps.ExitStatus{Code: 3}, nil
	case "oom":
		return eqvps.ExitStatus{Code: 137, Signal: "SIGKILL", OOM: true}, nil
	case "late":
		say(eqvps.Stdout, "begun\n")
		return eqvps.ExitStatus{Code: 124, Signal: "SIGKILL", TimedOut: true, Duration: req.Timeout}, nil
	case "flood":
		for range 40 {
			if err := say(eqvps.Stdout, strings.Repeat("x", 64<<10)); err != nil {
				return ok, err
			}
		}
		return ok, say(eqvps.Stdout, "end")
	case "split": // a character in two pieces, a bad byte, and half a character at the end
		for _, p := range []string{"a\xc3", "\xa4b", "c\xff", "d\xe2\x82"} {
			if err := say(eqvps.Stdout, p); err != nil {
				return ok, err
			}
		}
		return ok, say(eqvps.Stderr, "e\n")
	case "break":
		say(eqvps.Stdout, "half\n")
		return ok, &eqvps.Error{Code: eqvps.CodeUnreachable, Cause: io.ErrUnexpectedEOF}
	case "panic":
		panic("kaboom " + canary)
	case "wait":
		say(eqvps.Stdout, "first\n")
		<-f.hold
		return ok, say(eqvps.Stdout, "second\n")
	case "linger": // prints as long as it may
		say(eqvps.Stdout, "first\n")
		for {
			select {
			case <-f.hold:
				f.stayed <- say(eqvps.Stdout, "last\n")
				return ok, nil
			case <-ctx.Done():
				f.stayed <- ctx.Err()
				return ok, ctx.Err()
			case <-time.After(time.Millisecond):
				if err := say(eqvps.Stdout, "more\n"); err != nil {
					f.stayed <- err
					return ok, err
				}
			}
		}
	case "sleep":
		say(eqvps.Stdout, "asleep\n")
		<-ctx.Done()
		f.ended <- struct{}{}
		return ok, ctx.Err()
	}
	return eqvps.ExitStatus{Code: 127}, say(eqvps.Stderr, "not found\n")
}

func (f *fake) Upload(_ context.Context, req eqvps.UploadRequest) (eqvps.FileInfo, error) {
	if err := eqvps.ValidatePath(req.Path); err != nil {
		return eqvps.FileInfo{}, err
	}
	var size int64
	var content []byte
	if req.Path == "/dev/null" { // counts only: for what is too large to keep
		n, err := io.Copy(io.Discard, req.Content)
		if err != nil {
			return eqvps.FileInfo{}, eqvps.WrapError(eqvps.CodeUnreachable, err)
		}
		size = n
	} else {
		b, err := io.ReadAll(req.Content)
		if err != nil {
			return eqvps.FileInfo{}, eqvps.WrapError(eqvps.CodeUnreachable, err)
		}
		size, content = int64(len(b)), b
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[req.Path] = file{req.Mode, content}
	return eqvps.FileInfo{Path: req.Path, Type: eqvps.TypeFile, Size: size, Mode: req.Mode, ModTime: epoch}, nil
}

func (f *fake) Stat(_ context.Context, p string) (eqvps.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl, ok := f.files[p]
	if !ok {
		return eqvps.FileInfo{}, eqvps.Errorf(eqvps.CodeFileNotFound, "There is no %q in the sandbox.", p)
	}
	return eqvps.FileInfo{Path: p, Type: eqvps.TypeFile, Size: int64(len(fl.content)), Mode: fl.mode, ModTime: epoch}, nil
}

func (f *fake) ListFiles(ctx context.Context, dir, after string, limit int) ([]eqvps.FileInfo, bool, error) {
	var names []string
	f.mu.Lock()
	for p := range f.files {
		if path.Dir(p) == dir && path.Base(p) > after {
			names = append(names, p)
		}
	}
	f.mu.Unlock()
	sort.Strings(names)
	var out []eqvps.FileInfo
	for _, p := range names[:min(limit, len(names))] {
		fi, err := f.Stat(ctx, p)
		if err != nil {
			return nil, false, err
		}
		out = append(out, fi)
	}
	return out, len(names) > limit, nil
}

func (f *fake) Authenticate(_ context.Context, s string) (eqvps.Principal, error) {
	if s != secret {
		return eqvps.Principal{}, eqvps.WrapError(eqvps.CodeUnauthenticated, nil)
	}
	return eqvps.Principal{AccountID: "acc_1", TokenID: "tok_1", TokenName: "test", Admin: true, ExpiresAt: epoch.Add(time.Hour)}, nil
}

func (f *fake) CreateToken(_ context.Context, name string, life time.Duration) (*eqvps.Token, string, error) {
	t, s, err := eqvps.NewToken("acc_1", name, false, epoch, life)
	if err == nil {
		f.tokens = slices.Insert(f.tokens, 0, t)
	}
	return t, s, err
}

func (f *fake) ListTokens(context.Context) ([]*eqvps.Token, error) { return f.tokens, f.err }

func (f *fake) RevokeToken(_ context.Context, id string) error {
	for _, t := range f.tokens {
		if t.ID == id {
			t.RevokedAt = epoch
			return nil
		}
	}
	return eqvps.WrapError(eqvps.CodeTokenNotFound, nil)
}

// sandbox makes one and returns its id.
func (f *fake) sandbox(t testing.TB) string {
	t.Helper()
	sb, err := f.Create(eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: "acc_1"}), eqvps.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// send makes one request and returns the answer with its body read.
func send(t testing.TB, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}
