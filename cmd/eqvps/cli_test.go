package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// testNow is the time at which the command line believes to run.
var testNow = time.Date(2026, 7, 28, 12, 0, 0, 0, time.UTC)

func init() { time.Local = time.UTC }

const testID = "sb_00112233445566778899"

func testSandbox() wire.Sandbox {
	started := testNow.Add(-3 * time.Hour)
	return wire.Sandbox{
		ID: testID, Mode: "ephemeral", Tariff: "small", Image: "img_abc", Network: wire.Network{Mode: "open"}, State: "running", EnvKeys: []string{"KEY"},
		IdleTimeout: 300, TTL: 86400, CreatedAt: started, StartedAt: &started, ExpiresAt: started.Add(24 * time.Hour),
		LastActiveAt: testNow.Add(-5 * time.Second), RunningSeconds: 10800,
		Price: wire.Price{HourlyMicroUSD: 33000, PricePerHourUSD: 0.033},
		Bill:  wire.Bill{BilledMicroUSD: 99000, BilledUSD: 0.099},
	}
}

// api is a server of canned answers that remembers what it was asked.
type api struct {
	mu      sync.Mutex
	asked   []string // METHOD /path?query, then the body
	answers map[string]any
}

// refusal is an answer that is an error.
type refusal struct {
	status int
	wire.Error
}

func newAPI(t *testing.T) *api {
	gone := testSandbox()
	gone.State, gone.Reason = "deleted", new("deleted")
	f := &api{answers: map[string]any{
		"POST /sandboxes":                     testSandbox(),
		"GET /sandboxes":                      wire.SandboxList{Data: []wire.Sandbox{testSandbox()}},
		"GET /sandboxes/" + testID:            testSandbox(),
		"GET /sandboxes/" + testID + "/usage": wire.Usage{RunningSeconds: 10800, CPUSeconds: 1.5, EgressBytes: 2048, Bill: testSandbox().Bill},
		"DELETE /sandboxes/" + testID:         gone,
		"POST /sandboxes/" + testID + "/exec/stream": events(
			wire.Event{Type: wire.EventStdout, Text: "out\n"},
			wire.Event{Type: wire.EventStderr, Text: "err\n"},
			wire.Event{Type: wire.EventStdout, DataBase64: []byte("\xff\n")},
			wire.Event{Type: wire.EventExit, ExitStatus: &wire.ExitStatus{ExitCode: 3, DurationMS: 40}}),
		"PUT /sandboxes/" + testID + "/files/raw": wire.FileInfo{Path: "/root/a", Type: "file", Size: 5, Mode: "0644"},
		"GET /sandboxes/" + testID + "/files/raw": []byte("content"),
		"GET /sandboxes/" + testID + "/files/list": wire.FileList{Data: []wire.FileInfo{
			{Name: "a", Path: "/root/a", Type: "file", Size: 5, Mode: "0644", ModifiedAt: testNow},
			{Name: "\x1b[2Jb", Path: "/root/\x1b[2Jb", Type: "symlink", Mode: "0777", ModifiedAt: testNow, Target: new("/etc\n")},
		}},
		"POST /sandboxes/" + testID + "/files/mkdir": wire.FileInfo{Path: "/root/\x1bd", Type: "dir", Mode: "0755"},
		"POST /sandboxes/" + testID + "/files/move":  wire.FileInfo{Path: "/root/b", Type: "file", Mode: "0644"},
		"POST /sandboxes/" + testID + "/files/link":  wire.Link{URL: "http://host/links/x?key=y", Method: "PUT"},
		"DELETE /sandboxes/" + testID + "/files":     wire.Removed{Path: "/root/a", Entries: 3, Complete: true},
		"GET /tokens": wire.TokenList{Data: []wire.Token{
			{ID: "tok_1", Name: "ci", CreatedAt: testNow.Add(-49 * time.Hour), ExpiresAt: testNow.Add(240 * time.Hour)},
			{ID: "tok_2", Name: "old", CreatedAt: testNow.Add(-49 * time.Hour), ExpiresAt: testNow.Add(-time.Hour), LastUsedAt: new(testNow.Add(-2 * time.Hour))},
		}},
		"POST /tokens":                        wire.NewSecret{Token: wire.Token{ID: "tok_3", Name: "x", ExpiresAt: testNow.Add(time.Hour)}, Secret: "eqvps_secret"},
		"DELETE /tokens/tok_1":                wire.Revoked{ID: "tok_1", Revoked: true},
		"GET /secrets":                        wire.SecretList{Data: []wire.Secret{{Name: "API_KEY", CreatedAt: testNow.Add(-49 * time.Hour), UpdatedAt: testNow.Add(-time.Minute)}}},
		"PUT /secrets/API_KEY":                wire.Secret{Name: "API_KEY", CreatedAt: testNow, UpdatedAt: testNow},
		"DELETE /secrets/API_KEY":             wire.SecretDeleted{Name: "API_KEY", Deleted: true},
		"POST /keys/rotate":                   wire.Rotation{Resealed: 7, Retired: 1},
		"GET /sandboxes/" + testID + "/env":   wire.EnvKeys{EnvKeys: []string{"KEY"}},
		"PATCH /sandboxes/" + testID + "/env": wire.EnvKeys{EnvKeys: []string{"KEY", "NEW"}},
	}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	t.Setenv(envBaseURL, s.URL)
	t.Setenv(envAPIKey, "key")
	return f
}

// events is a stream of output.
func events(list ...wire.Event) []byte {
	var b bytes.Buffer
	for _, e := range list {
		json.NewEncoder(&b).Encode(e)
	}
	return b.Bytes()
}

func (f *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	rest := strings.TrimPrefix(r.URL.Path, wire.Prefix)
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := r.Method + " " + rest
	if r.URL.RawQuery != "" {
		asked += "?" + r.URL.RawQuery
	}
	f.asked = append(f.asked, strings.TrimSpace(asked+" "+string(body)))
	answer, ok := f.answers[r.Method+" "+rest]
	if !ok {
		answer = refusal{404, wire.Error{Code: "not_found", Message: "Nothing here.", Fix: "Look elsewhere."}}
	}
	if r.Header.Get("Authorization") != "Bearer key" {
		answer = refusal{401, wire.Error{Code: "unauthenticated", Message: "No token.", Fix: "Send one."}}
	}
	switch a := answer.(type) {
	case refusal:
		w.WriteHeader(a.status)
		json.NewEncoder(w).Encode(a.Error)
	case []byte:
		w.Write(a)
	default:
		json.NewEncoder(w).Encode(a)
	}
}

// outcomeOf is what one invocation did.
type outcomeOf struct {
	Code           int
	Stdout, Stderr string
}

func invoke(t *testing.T, stdin string, args ...string) outcomeOf {
	t.Helper()
	var out, errout bytes.Buffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errout, now: func() time.Time { return testNow }}
	code := a.run(context.Background(), args)
	return outcomeOf{code, out.String(), errout.String()}
}

func TestCommands(t *testing.T) {
	t.Setenv("FROM_HERE", "v=1")
	t.Setenv("RAW", "\xff")
	for name, c := range map[string]struct {
		args    []string
		stdin   string
		refuse  map[string]refusal
		want    outcomeOf
		request string // the last but deletions
	}{
		"create": {
			args:    []string{"sandbox", "create", "--tariff", "micro", "--ttl", "60", "-e", "A=b=c", "-e", "FROM_HERE"},
			want:    outcomeOf{Stdout: testID + "\n"},
			request: `POST /sandboxes {"tariff":"micro","ttl":60,"env":{"A":"b=c","FROM_HERE":"v=1"}}`,
		},
		"list": {
			args: []string{"sandbox", "list", "-a"},
			want: outcomeOf{Stdout: "" +
				"ID                       STATE    TARIFF  CREATED  LAST USED  RAN  COST\n" +
				testID + "  running  small   3 h ago  5 s ago    3 h  $0.099000\n"},
			request: "GET /sandboxes?state=all",
		},
		"get": {
			args: []string{"sandbox", "get", testID},
			want: outcomeOf{Stdout: `id            ` + testID + `
state         running
mode          ephemeral
tariff        small, $0.033000 an hour
image         img_abc
network       open
variables     KEY
created       2026-07-28 09:00:00 (3 h ago)
last used     2026-07-28 11:59:55 (5 s ago)
paused        -
ended         -
expires       2026-07-29 09:00:00 (in 21 h)
idle timeout  300 s
ran           10800.0 s
processor     1.5 s
sent          2.0 kB
cost          $0.099000
`},
		},
		"kill": {
			args: []string{"sandbox", "kill", testID, "sb_other"},
			want: outcomeOf{1, testID + " is deleted after 10800.0 s; it cost $0.099000\n", "eqvps: Nothing here. Look elsewhere.\n"},
		},
		"exec streams bytes and exits as the command did": {
			args:    []string{"sandbox", "exec", testID, "--cwd", "/tmp", "--", "ls", "-l"},
			want:    outcomeOf{3, "out\n\xff\n", "err\n"},
			request: `POST /sandboxes/` + testID + `/exec/stream {"argv":["ls","-l"],"cwd":"/tmp","timeout":30}`,
		},
		"exec of one argument is a shell's": {
			args:    []string{"sandbox", "exec", "-i", "--timeout", "5", testID, "--", "ls -l | wc"},
			stdin:   "in",
			want:    outcomeOf{3, "out\n\xff\n", "err\n"},
			request: `POST /sandboxes/` + testID + `/exec/stream {"command":"ls -l | wc","stdin_base64":"aW4=","timeout":5}`,
		},
		"exec without a sandbox is our failure": {
			args:   []string{"sandbox", "exec", testID, "--", "ls"},
			refuse: map[string]refusal{"POST /sandboxes/" + testID + "/exec/stream": {410, wire.Error{Code: "sandbox_ended", Message: "It has ended.", Fix: "Create another."}}},
			want:   outcomeOf{125, "", "eqvps: It has ended. Create another.\n"},
		},
		"failures of the server carry their request id, and nothing for terminals": {
			args:   []string{"sandbox", "get", testID},
			refuse: map[string]refusal{"GET /sandboxes/" + testID: {500, wire.Error{Code: "internal", Message: "Broken\x1b[2J.", RequestID: "req_1"}}},
			want:   outcomeOf{1, "", "eqvps: Broken\\x1b[2J. (request id req_1)\n"},
		},
		"ls is inert": {
			args: []string{"sandbox", "ls", testID},
			want: outcomeOf{Stdout: `MODE  TYPE     SIZE  CHANGED              NAME
0644  file     5 B   2026-07-28 12:00:00  a
0777  symlink  0 B   2026-07-28 12:00:00  \x1b[2Jb -> /etc\n
`},
			request: "GET /sandboxes/" + testID + "/files/list?path=%2Froot",
		},
		"mkdir": {
			args:    []string{"sandbox", "mkdir", "--mode", "700", testID, "/root/\xff"},
			want:    outcomeOf{Stdout: "/root/\\x1bd\n"},
			request: "POST /sandboxes/" + testID + `/files/mkdir {"path_base64":"L3Jvb3Qv/w==","mode":"0700"}`,
		},
		"mv": {
			args:    []string{"sandbox", "mv", "-f", testID, "/root/a", "/root/b"},
			want:    outcomeOf{Stdout: "/root/b\n"},
			request: "POST /sandboxes/" + testID + `/files/move {"from":"/root/a","to":"/root/b","overwrite":true}`,
		},
		"rm is inert": {
			args:    []string{"sandbox", "rm", "-r", testID, "/root/\x1b[2J"},
			want:    outcomeOf{Stdout: "/root/\\x1b[2J: 3 removed\n"},
			request: "DELETE /sandboxes/" + testID + "/files?path=%2Froot%2F%1B%5B2J&recursive=true",
		},
		"link": {
			args:    []string{"sandbox", "link", "--put", "--ttl", "60", testID, "/root/a"},
			want:    outcomeOf{Stdout: "http://host/links/x?key=y\n"},
			request: "POST /sandboxes/" + testID + `/files/link {"path":"/root/a","method":"PUT","ttl":60}`,
		},
		"errors that quote a name are inert": {
			args: []string{"sandbox", "download", testID, "/root/\x1b[2Jx", "/nowhere/\x1b[2Jx"},
			want: outcomeOf{1, "", "eqvps: the local file /nowhere/\\x1b[2Jx cannot be used: no such file or directory\n"},
		},
		"token create": {
			args:    []string{"token", "create", "x", "--expires", "1h"},
			want:    outcomeOf{0, "eqvps_secret\n", "eqvps: this is the only time that the secret of tok_3 is shown; it is valid until 2026-07-28 13:00:00\n"},
			request: `POST /tokens {"name":"x","expires_in":3600}`,
		},
		"token list": {
			args: []string{"token", "list"},
			want: outcomeOf{Stdout: "" +
				"ID     NAME  STATE    CREATED  LAST USED  EXPIRES\n" +
				"tok_1  ci    valid    2 d ago  -          in 10 d\n" +
				"tok_2  old   expired  2 d ago  2 h ago    60 min ago\n"},
		},
		"token revoke": {args: []string{"token", "revoke", "tok_1"}, want: outcomeOf{Stdout: "tok_1 is revoked\n"}},
		"create with secrets and bytes": {
			args:    []string{"sandbox", "create", "--secret", "API_KEY", "--secret", "B", "-e", "RAW"},
			want:    outcomeOf{Stdout: testID + "\n"},
			request: `POST /sandboxes {"env_base64":{"RAW":"/w=="},"secrets":["API_KEY","B"]}`,
		},
		"env lists": {args: []string{"sandbox", "env", testID}, want: outcomeOf{Stdout: "KEY\n"}, request: "GET /sandboxes/" + testID + "/env"},
		"env sets and removes": {
			args:    []string{"sandbox", "env", testID, "-e", "NEW=1=2", "-e", "FROM_HERE", "--unset", "OLD"},
			want:    outcomeOf{Stdout: "KEY\nNEW\n"},
			request: "PATCH /sandboxes/" + testID + `/env {"env":{"FROM_HERE":"v=1","NEW":"1=2","OLD":null}}`,
		},
		"env of a bad name": {
			args: []string{"sandbox", "env", testID, "--unset", "A-B"},
			want: outcomeOf{2, "", "eqvps: The environment variable name \"A-B\" is not allowed: use letters, digits and underscores, not a digit first.\n"},
		},
		"secret set from standard input": {
			args: []string{"secret", "set", "API_KEY"}, stdin: "top\nsecret\r\n",
			want: outcomeOf{Stdout: "API_KEY is set\n"}, request: `PUT /secrets/API_KEY {"value":"top\nsecret"}`,
		},
		"secret set keeps a newline": {
			args: []string{"secret", "set", "API_KEY", "--value-file", "-", "--keep-newline"}, stdin: "top\xff\n",
			want: outcomeOf{Stdout: "API_KEY is set\n"}, request: `PUT /secrets/API_KEY {"value_base64":"dG9w/wo="}`,
		},
		"secret set from no file": {
			args: []string{"secret", "set", "API_KEY", "--value-file", "/nowhere/x"},
			want: outcomeOf{1, "", "eqvps: the local file /nowhere/x cannot be used: no such file or directory\n"},
		},
		"secret set too long": {
			args: []string{"secret", "set", "API_KEY"}, stdin: strings.Repeat("x", 65537),
			want: outcomeOf{1, "", "eqvps: The value of the environment variable API_KEY has 65537 bytes; at most 65536 are allowed. Send less at once; files above 5 MB go through the raw file calls.\n"},
		},
		"secret set of a pair": {
			args: []string{"secret", "set", "API_KEY=canary"},
			want: outcomeOf{2, "", "eqvps: The environment variable name \"API_KEY\" is not allowed: use letters, digits and underscores, not a digit first.\n"},
		},
		"secret list": {
			args: []string{"secret", "list"},
			want: outcomeOf{Stdout: "NAME     CREATED  VALUE SET\nAPI_KEY  2 d ago  60 s ago\n"},
		},
		"secret rm":         {args: []string{"secret", "rm", "API_KEY"}, want: outcomeOf{Stdout: "API_KEY is deleted\n"}},
		"secret rotate-key": {args: []string{"secret", "rotate-key"}, want: outcomeOf{Stdout: "the server has a new key: 7 values encrypted anew, 1 old keys dropped\n"}},
		"version":           {args: []string{"version"}, want: outcomeOf{Stdout: "eqvps " + eqvps.Version + "\n"}},

		"no command":      {args: []string{"sandbox", "exec", testID, "--"}, want: outcomeOf{2, "", "eqvps: there is no command after --\n"}},
		"unknown command": {args: []string{"frob"}, want: outcomeOf{2, "", "eqvps: unexpected argument frob; see `eqvps --help`\n"}},
		"unknown flag":    {args: []string{"run", "--frob", "x"}, want: outcomeOf{2, "", "eqvps: unknown flag --frob; see `eqvps run --help`\n"}},
		"bad variable":    {args: []string{"run", "-e", "1=2", "--", "ls"}, want: outcomeOf{2, "", "eqvps: The environment variable name \"1\" is not allowed: use letters, digits and underscores, not a digit first.\n"}},
		"absent variable": {args: []string{"run", "-e", "ABSENT", "--", "ls"}, want: outcomeOf{2, "", "eqvps: --env ABSENT takes the value from the environment, where ABSENT is not set; give it as --env ABSENT=VALUE\n"}},
		"too long":        {args: []string{"run", "--timeout", "56", "--", "ls"}, want: outcomeOf{2, "", "eqvps: --timeout must be 1 to 55 seconds\n"}},
		"relative upload": {args: []string{"run", "--upload", "a:b", "--", "ls"}, want: outcomeOf{2, "", "eqvps: --upload \"a:b\" is not LOCAL:REMOTE with an absolute path in the sandbox, such as data.csv:/root/data.csv\n"}},
		"missing file":    {args: []string{"run", "/nowhere/x.py"}, want: outcomeOf{125, "", "eqvps: the local file /nowhere/x.py cannot be used: no such file or directory\n"}},
		"zero life":       {args: []string{"token", "create", "x", "--expires", "5ms"}, want: outcomeOf{2, "", "eqvps: --expires must be at least one second, such as 720h\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newAPI(t)
			for call, r := range c.refuse {
				f.answers[call] = r
			}
			got := invoke(t, c.stdin, c.args...)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			if c.request != "" && (len(f.asked) == 0 || f.asked[0] != c.request) {
				t.Errorf("asked %q\nwant  %q", f.asked, c.request)
			}
		})
	}
}

// TestJSONIsWhole checks that --json of every command that shows something is
// one JSON value and nothing else.
func TestJSONIsWhole(t *testing.T) {
	newAPI(t)
	t.Setenv("EQVPS_IMAGES", t.TempDir())
	local := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(local, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"sandbox", "create"}, {"sandbox", "list"}, {"sandbox", "get", testID}, {"sandbox", "kill", testID},
		{"sandbox", "ls", testID}, {"sandbox", "mkdir", testID, "/a"}, {"sandbox", "mv", testID, "/a", "/b"}, {"sandbox", "rm", testID, "/a"}, {"sandbox", "link", testID, "/a"}, {"sandbox", "exec", testID, "--", "x"}, {"sandbox", "upload", testID, local, "/root/a"},
		{"sandbox", "download", testID, "/root/a", local}, {"run", "--", "x"}, {"token", "create", "x"}, {"token", "list"},
		{"sandbox", "env", testID}, {"secret", "set", "API_KEY"}, {"secret", "list"}, {"secret", "rotate-key"},
		{"image", "list"}, {"doctor"},
	} {
		at := len(args)
		for i, a := range args {
			if a == "--" {
				at = i
			}
		}
		args := append(append(append([]string{}, args[:at]...), "--json"), args[at:]...)
		got := invoke(t, "", args...)
		dec := json.NewDecoder(strings.NewReader(got.Stdout))
		var v any
		if err := dec.Decode(&v); err != nil {
			t.Errorf("%v: %v in %q (%s)", args, err, got.Stdout, got.Stderr)
		} else if _, err := dec.Token(); err != io.EOF {
			t.Errorf("%v: more than one value in %q", args, got.Stdout)
		}
	}
}

func TestRun(t *testing.T) {
	f := newAPI(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for name, content := range map[string]string{"task.py": "print(1)", "own": "#!/bin/sh\n", "plain": "x", "data.csv": "1,2"} {
		if err := os.WriteFile(name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	got := invoke(t, "", "run", "--tariff", "micro", "--summary", "--upload", "data.csv:/root/in.csv", "--download", "/root/out:out.txt", "task.py", "--flag", "--", "x")
	want := outcomeOf{3, "out\n\xff\n", "err\n" +
		"eqvps: exit code 3; the sandbox was ready in 0.0N s, the command took 0.04 s\n" +
		"eqvps: the sandbox is deleted; on tariff small it would have cost $0.099000\n"}
	got.Stderr = strings.Replace(got.Stderr, between(got.Stderr, "ready in ", " s,"), "0.0N", 1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	base := "/sandboxes/" + testID
	if diff := cmp.Diff([]string{
		`POST /sandboxes {"tariff":"micro","idle_timeout":60,"ttl":3600}`,
		"PUT " + base + "/files/raw?mode=0640&path=%2Froot%2Ftask.py print(1)",
		"PUT " + base + "/files/raw?mode=0640&path=%2Froot%2Fin.csv 1,2",
		"POST " + base + `/exec/stream {"argv":["python3","/root/task.py","--flag","--","x"],"timeout":55}`,
		"GET " + base + "/files/raw?path=%2Froot%2Fout",
		"DELETE " + base,
	}, f.asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if b, err := os.ReadFile("out.txt"); err != nil || string(b) != "content" {
		t.Errorf("out.txt: %q, %v", b, err)
	}

	f.asked = nil
	if got := invoke(t, "", "run", "own", "a b"); got.Code != 3 {
		t.Errorf("a file with a #! line: %+v", got)
	}
	if want := `{"argv":["/root/own","a b"],"timeout":55}`; !strings.Contains(strings.Join(f.asked, "\n"), want) ||
		!strings.Contains(f.asked[1], "mode=0755") {
		t.Errorf("asked %q, want %s", f.asked, want)
	}
	if got := invoke(t, "", "run", "plain"); got.Code != 2 || !strings.HasPrefix(got.Stderr, "eqvps: nothing tells what runs plain: ") {
		t.Errorf("a file of no known kind: %+v", got)
	}
}

func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}

// TestRunDeletesItsSandbox breaks one call of a run after the other; the last
// call always is the deletion.
func TestRunDeletesItsSandbox(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("task.py", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	base := "/sandboxes/" + testID
	for _, broken := range []string{"PUT " + base + "/files/raw", "POST " + base + "/exec/stream", "GET " + base + "/files/raw"} {
		f := newAPI(t)
		f.answers[broken] = refusal{503, wire.Error{Code: "sandbox_unreachable", Message: "No answer."}}
		got := invoke(t, "", "run", "--download", "/root/x:x", "task.py")
		if want := (outcomeOf{125, got.Stdout, got.Stderr}); got != want || !strings.HasSuffix(got.Stderr, "eqvps: No answer.\n") {
			t.Errorf("%s: %+v", broken, got)
		}
		if last := f.asked[len(f.asked)-1]; last != "DELETE "+base {
			t.Errorf("%s: the last call is %s", broken, last)
		}
	}
}

// TestInterruptedRun ends a command by a signal: its sandbox goes, and the exit
// code tells.
func TestInterruptedRun(t *testing.T) {
	f := newAPI(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	hang := func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/exec/stream") {
			f.ServeHTTP(w, r)
			return
		}
		fmt.Fprintln(w, `{"type":"stdout","text":"begun\n"}`)
		w.(http.Flusher).Flush()
		cancel(signalled{15})
		<-r.Context().Done()
	}
	s := httptest.NewServer(http.HandlerFunc(hang))
	defer s.Close()
	t.Setenv(envBaseURL, s.URL)
	var out, errout bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errout, now: time.Now}
	if code := a.run(ctx, []string{"run", "--", "sleep", "50"}); code != 128+15 {
		t.Errorf("exit code %d: %s", code, errout.String())
	}
	if last := f.asked[len(f.asked)-1]; last != "DELETE /sandboxes/"+testID {
		t.Errorf("the last call is %s", last)
	}
}

// TestDownloadTouchesOnlyItsTarget tries the targets that would do damage.
func TestDownloadTouchesOnlyItsTarget(t *testing.T) {
	newAPI(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for _, err := range []error{
		os.Mkdir("folder", 0o700), os.WriteFile("real", []byte("old"), 0o600), os.Symlink("real", "link"),
		os.Symlink("../real", "folder/in"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ remote, local, written string }{
		{"/root/a", "new", "new"},
		{"/root/a", "real", "real"},
		{"/root/a", "folder", "folder/a"},
		{"/root/../a", "folder", "folder/a"},
		{"/../../a", "folder", "folder/a"},
		{"/root/x/../../../../etc/a", "folder", "folder/a"},
		{"/root/\x1b[2J\na", "folder", "folder/\x1b[2J\na"},
		{"/", "folder", "!/ names no file; give the local file a name"},
		{"/root/in", "folder", "!folder/in exists and is not a regular file; choose another name"},
		{"/root/..", "folder", "!/root/.. names no file; give the local file a name"},
		{"/root/a", "link", "!link exists and is not a regular file; choose another name"},
		{"/root/a", "/dev/null", "!/dev/null exists and is not a regular file; choose another name"},
		{"/root/a", "absent/a", "!the local file absent/a cannot be used: no such file or directory"},
	} {
		got := invoke(t, "", "sandbox", "download", testID, c.remote, c.local)
		if problem, bad := strings.CutPrefix(c.written, "!"); bad {
			if want := (outcomeOf{1, "", "eqvps: " + problem + "\n"}); got != want {
				t.Errorf("%s to %s: %+v, want %+v", c.remote, c.local, got, want)
			}
			continue
		}
		if b, err := os.ReadFile(c.written); err != nil || string(b) != "content" || got.Code != 0 {
			t.Errorf("%s to %s: %q, %v, %+v", c.remote, c.local, b, err, got)
		}
	}
	if left, _ := filepath.Glob(".eqvps-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInert(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü 漢": "plain ü 漢", "a\x1b[31mb": `a\x1b[31mb`, "a\r\nb\t": `a\r\nb\t`, "\u202egnp.exe": `\u202egnp.exe`,
		"\xff": `\xff`, `say "hi"`: `say "hi"`, "\u009b2J": `\u009b2J`,
	} {
		if got := inert(in); got != want {
			t.Errorf("inert(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNoServer(t *testing.T) {
	t.Setenv(envBaseURL, "")
	data := filepath.Join(t.TempDir(), strings.Repeat("long/", 30)) // longer than a socket's address holds
	got := invoke(t, "", "--data", data, "sandbox", "list")
	want := outcomeOf{1, "", "eqvps: no server uses the data folder " + strings.TrimSuffix(data, "/") +
		"; start one with `eqvps serve`, or set EQVPS_BASE_URL and EQVPS_API_KEY to use another\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	t.Setenv(envBaseURL, "http://127.0.0.1:1")
	t.Setenv(envAPIKey, "")
	if got := invoke(t, "", "sandbox", "list"); got.Code != 1 || !strings.Contains(got.Stderr, "EQVPS_API_KEY is not set") {
		t.Errorf("no key: %+v", got)
	}
}
