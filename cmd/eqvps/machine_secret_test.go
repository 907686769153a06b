package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// recorder keeps every answer of a server in a file.
type recorder struct{ to *os.File }

func (r recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(r.to, resp.Status, resp.Header)
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(resp.Body, r.to), resp.Body}
	return resp, nil
}

// secretRig is a server whose log, answers and data folder can be searched.
type secretRig struct {
	t      *testing.T
	canary string
	dir    string // log and answers
	server *Server
	http   *http.Client
	*client.Client
	// watching has each step of the host search what changes with it.
	watching atomic.Bool
	steps    atomic.Int64
	broken   atomic.Pointer[string] // label of a step that fails
}

func newSecretRig(t *testing.T) *secretRig {
	t.Helper()
	r := &secretRig{t: t, canary: newCanary(), dir: t.TempDir()}
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(r.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	log := create("log")
	cfg := testConfig(machineData, log)
	cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Step = r.step
	var err error
	if r.server, err = StartServer(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.server.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.http = &http.Client{Transport: recorder{create("answers")}}
	token, err := os.ReadFile(filepath.Join(machineData, adminTokenName))
	if err != nil {
		t.Fatal(err)
	}
	r.Client, err = client.New("http://"+r.server.Addr(), strings.TrimSpace(string(token)), client.WithHTTPClient(r.http))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// step is called by the host before everything it does.
func (r *secretRig) step(label string) error {
	if !r.watching.Load() {
		return nil
	}
	r.steps.Add(1)
	r.search("before the step "+label, filepath.Join(machineData, "machines"), filepath.Join(machineData, storeName), filepath.Join(machineData, storeName+"-wal"))
	if b := r.broken.Load(); b != nil && *b == label {
		return errors.New("broken for the test")
	}
	return nil
}

func (r *secretRig) search(when string, roots ...string) {
	r.t.Helper()
	for _, place := range findCanary(r.t, r.canary, roots...) {
		r.t.Errorf("%s the value lies in %s", when, place)
	}
}

// searchNow leaves the templates to the end: they are large, and do not change
// back.
func (r *secretRig) searchNow(when string) {
	r.t.Helper()
	entries, err := os.ReadDir(machineData)
	if err != nil {
		r.t.Fatal(err)
	}
	roots := []string{r.dir, "/run/eqvps"}
	for _, e := range entries {
		if e.Name() != "templates" {
			roots = append(roots, filepath.Join(machineData, e.Name()))
		}
	}
	r.search(when, roots...)
}

// try sends a body that a client of ours would not, and returns the status.
func (r *secretRig) try(method, path, token, body string) int {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.server.Addr()+wire.Prefix+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if token == "" {
		b, err := os.ReadFile(filepath.Join(machineData, adminTokenName))
		if err != nil {
			r.t.Fatal(err)
		}
		token = strings.TrimSpace(string(b))
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := r.http.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode
}

// TestSecretsLeaveNoTrace: a value that a sandbox has as a secret, as a
// variable of its own, as one set later and as one of a call, is found nowhere
// on the host: not while its machine is made, not while a command uses it, and
// not afterwards.
func TestSecretsLeaveNoTrace(t *testing.T) {
	r := newSecretRig(t)
	ctx := t.Context()
	if err := r.server.Prepare(ctx, eqvps.DefaultTariff); err != nil {
		t.Fatal(err)
	}
	const name = "CANARY_SECRET"
	if _, err := r.PutSecret(ctx, name, r.canary); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.DeleteSecret(context.Background(), name) })

	r.watching.Store(true)
	sb, err := r.Create(ctx, wire.CreateSandbox{
		Env: map[string]string{"OWN": r.canary}, EnvBase64: map[string][]byte{"RAW": []byte("\xff" + r.canary)}, Secrets: []string{name},
	})
	r.watching.Store(false)
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_, _ = r.Delete(context.Background(), sb.ID)
		}
	})
	if r.steps.Load() == 0 {
		t.Error("the host did nothing that was watched")
	}
	if diff := cmp.Diff([]string{name, "OWN", "RAW"}, sb.EnvKeys); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	keys, err := r.SetEnv(ctx, sb.ID, eqvps.EnvChange{Set: eqvps.Env{"LATER": r.canary}})
	if err != nil || len(keys) != 4 {
		t.Fatalf("%q, %v", keys, err)
	}

	// The command has all of them, and tells so without telling them.
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Repeat(r.canary, 4)+"\xff"+r.canary)))
	check := `test "$(printf %s "$` + name + `$OWN$LATER$CALL$RAW" | sha256sum)" = "` + sum + `  -" && echo has them; until test -e /tmp/go; do sleep 0.1; done`
	running := make(chan error, 1)
	var out bytes.Buffer
	begun := make(chan struct{})
	go func() {
		st, err := r.ExecStream(ctx, sb.ID, wire.ExecRequest{Command: check, Env: map[string]string{"CALL": r.canary}, Options: wire.Options{Timeout: 55}},
			func(_ eqvps.Stream, p []byte) error {
				if out.Len() == 0 {
					close(begun)
				}
				out.Write(p)
				return nil
			})
		if err == nil && st.Code != 0 {
			err = fmt.Errorf("exit code %d", st.Code)
		}
		running <- err
	}()
	select {
	case <-begun:
	case err := <-running:
		t.Fatalf("the command ended early: %q, %v", out.String(), err)
	}
	r.searchNow("while a command uses it")
	if _, err := r.Upload(ctx, sb.ID, "/tmp/go", 0o600, strings.NewReader(""), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-running; err != nil || out.String() != "has them\n" {
		t.Errorf("the command says %q, %v", out.String(), err)
	}

	r.provoke(sb.ID, name)
	if got := shell(t, r.Client, sb.ID, "echo ${#"+name+"} ${#LATER}"); got != fmt.Sprintf("%d %d", len(r.canary), len(r.canary)) {
		t.Errorf("after requests that were refused the sandbox has %s", got)
	}
	if _, err := r.RotateKeys(ctx); err != nil {
		t.Error(err)
	}
	r.searchNow("before the sandbox ends")
	if _, err := r.Delete(ctx, sb.ID); err != nil {
		t.Error(err)
	}
	ended = true
	if err := r.DeleteSecret(ctx, name); err != nil {
		t.Error(err)
	}
	r.search("at the end", machineData, r.dir, "/run/eqvps")

	// It is gone: by name, and among all.
	_, err = r.Create(ctx, wire.CreateSandbox{Secrets: []string{name}})
	if eqvps.ErrorCode(err) != eqvps.CodeInvalidValue || !strings.Contains(err.Error(), name) {
		t.Errorf("a sandbox with a deleted secret: %v", err)
	}
	again, err := r.Create(ctx, wire.CreateSandbox{Secrets: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.EnvKeys) > 0 || shell(t, r.Client, again.ID, "env | grep -c canary || true") != "0" {
		t.Errorf("a new sandbox still has %q", again.EnvKeys)
	}
	if _, err := r.Delete(ctx, again.ID); err != nil {
		t.Error(err)
	}
}

// provoke makes every mistake that has a value in it.
func (r *secretRig) provoke(id, name string) {
	t, v := r.t, r.canary
	long := strings.Repeat(v, eqvps.MaxEnvBytes/len(v)+1)
	env, exec := "/sandboxes/"+id+"/env", "/sandboxes/"+id+"/exec"
	for _, c := range []struct {
		method, path, token, body string
		status                    int
	}{
		{"PUT", "/secrets/" + name, "eqvps_wrong", `{"value":"` + v + `"}`, 401},
		{"PUT", "/secrets/" + name, v, `{"value":"` + v + `"}`, 401},
		{"PUT", "/secrets/" + name, "", `{"value":["` + v + `"]}`, 400},
		{"PUT", "/secrets/" + name, "", `{"value":{"` + v + `":1}}`, 400},
		{"PUT", "/secrets/" + name, "", `{"value":"` + v, 400},
		{"PUT", "/secrets/" + name, "", `{"value":"` + v + `","value_base64":"eA=="}`, 400},
		{"PUT", "/secrets/" + name, "", `{"value":"` + v + `\u0000"}`, 422},
		{"PUT", "/secrets/" + name, "", `{"value":"` + long + `"}`, 413},
		{"PUT", "/secrets/" + name, "", `{"value":"` + strings.Repeat(long, 4) + `"}`, 413},
		{"PUT", "/secrets/A-B", "", `{"value":"` + v + `"}`, 422},
		{"PATCH", env, "", `{"env":{"A-B":"` + v + `"}}`, 422},
		{"PATCH", env, "", `{"env":{"TOKEN=` + v + `":"x"}}`, 422},
		{"PATCH", env, "", `{"env":{"TOKEN=` + v + `":null}}`, 422},
		{"PATCH", env, "", `{"env":["` + v + `"]}`, 400},
		{"PATCH", env, "", `{"OWN":"` + v + `"}`, 400},
		{"PATCH", env, "", `{"env":{"A":"` + long + `"}}`, 413},
		{"POST", "/sandboxes", "", `{"env":{"A":"` + v + `"},"env_base64":{"A":"eA=="}}`, 400},
		{"POST", "/sandboxes", "", `{"env":{"A":"` + v + `"},"tariff":"huge"}`, 422},
		{"POST", "/sandboxes", "", `{"env":{"A":"` + v + `"},"secrets":["ABSENT"]}`, 422},
		{"POST", "/sandboxes", "", `{"secrets":["` + name + `=` + v + `"]}`, 422},
		{"POST", exec, "", `{"command":"true","env":{"A":"` + v + `"},"cwd":"nowhere"}`, 400},
		{"POST", exec, "", `{"command":"true","env":{"A":"` + v + `"},"cwd":"/nowhere"}`, 200},
		{"POST", exec, "", `{"argv":["/no/such/program"],"env":{"A":"` + v + `"}}`, 200},
		{"POST", exec, "", `{"command":"true","env":{"A":"` + v + `"},"timeout":"` + v + `"}`, 400},
	} {
		if status := r.try(c.method, c.path, c.token, c.body); status != c.status {
			t.Errorf("%s %s %.60s: status %d, want %d", c.method, c.path, c.body, status, c.status)
		}
	}
	// A create that fails half way: without a machine, and with one that has no variables yet.
	for _, step := range []string{"start.restore", "start.renew"} {
		r.broken.Store(&step)
		r.watching.Store(true)
		if status := r.try("POST", "/sandboxes", "", `{"env":{"A":"`+v+`"},"secrets":["`+name+`"]}`); status != 503 {
			t.Errorf("a create whose step %s fails: status %d", step, status)
		}
		r.watching.Store(false)
		r.broken.Store(nil)
	}
}

// TestLargestEnvironment: what the limits allow gets into a sandbox and its
// commands.
func TestLargestEnvironment(t *testing.T) {
	_, c := startServer(t)
	env := map[string]string{}
	for i := range 3 {
		env[fmt.Sprintf("L%d", i)] = strings.Repeat("\x01", eqvps.MaxEnvValueBytes) // six bytes each in JSON
	}
	env["L3"] = strings.Repeat("x", eqvps.MaxEnvBytes-3*eqvps.MaxEnvValueBytes-4*len("L0"))
	sb, err := c.Create(t.Context(), wire.CreateSandbox{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.Delete(context.Background(), sb.ID); err != nil {
			t.Error(err)
		}
	})
	call := map[string]string{}
	for name, value := range env {
		call["CALL"+name[1:]] = value[8:]
	}
	began := time.Now()
	res, err := c.Exec(t.Context(), sb.ID, wire.ExecRequest{Command: "echo ${#L0} ${#L3} ${#CALL0}", Env: call})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%d %d %d\n", eqvps.MaxEnvValueBytes, len(env["L3"]), eqvps.MaxEnvValueBytes-8)
	if res.Stdout != want {
		t.Errorf("the command sees %q %q, want %q", res.Stdout, res.Stderr, want)
	}
	t.Logf("a command with the largest environment took %s", time.Since(began).Round(time.Millisecond))
}
