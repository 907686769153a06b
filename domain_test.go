package eqvps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func wantCode(t *testing.T, what string, err error, want Code) {
	t.Helper()
	if got := ErrorCode(err); got != want {
		t.Errorf("%s: %v has code %q, want %q", what, err, got, want)
	}
}

func TestExecRequestValidate(t *testing.T) {
	for what, c := range map[string]struct {
		req  ExecRequest
		code Code
	}{
		"command":         {ExecRequest{Command: "true"}, ""},
		"argv":            {ExecRequest{Argv: []string{"true"}}, ""},
		"empty":           {ExecRequest{}, CodeInvalidRequest},
		"both":            {ExecRequest{Command: "true", Argv: []string{"true"}}, CodeInvalidRequest},
		"NUL":             {ExecRequest{Command: "a\x00b"}, CodeInvalidRequest},
		"NUL in argv":     {ExecRequest{Argv: []string{"a", "\x00"}}, CodeInvalidRequest},
		"no program":      {ExecRequest{Argv: []string{"", "a"}}, CodeInvalidRequest},
		"largest":         {ExecRequest{Command: strings.Repeat("x", MaxCommandBytes)}, ""},
		"too large":       {ExecRequest{Command: strings.Repeat("x", MaxCommandBytes+1)}, CodeTooLarge},
		"relative cwd":    {ExecRequest{Command: "true", Cwd: "tmp"}, CodeInvalidPath},
		"negative":        {ExecRequest{Command: "true", Timeout: -time.Second}, CodeInvalidTimeout},
		"too short":       {ExecRequest{Command: "true", Timeout: time.Millisecond}, CodeInvalidTimeout},
		"longest":         {ExecRequest{Command: "true", Timeout: MaxExecTimeout}, ""},
		"too long":        {ExecRequest{Command: "true", Timeout: MaxExecTimeout + 1}, CodeInvalidTimeout},
		"name of a value": {ExecRequest{Command: "true", Env: map[string]string{"A-B": "x"}}, CodeInvalidValue},
		"NUL in a value":  {ExecRequest{Command: "true", Env: map[string]string{"A": "\x00"}}, CodeInvalidValue},
		"too much env":    {ExecRequest{Command: "true", Env: map[string]string{"A": strings.Repeat("x", MaxEnvBytes)}}, CodeTooLarge},
	} {
		wantCode(t, what, c.req.Validate(), c.code)
	}
	req := ExecRequest{Command: "true"}
	if err := req.Validate(); err != nil || req.Timeout != DefaultExecTimeout {
		t.Errorf("the default timeout is %s, %v", req.Timeout, err)
	}
}

// TestEnvErrorsHideValues: a value may be a secret.
func TestEnvErrorsHideValues(t *testing.T) {
	for _, env := range []map[string]string{
		{"A": "canary\x00"}, {"bad name": "canary"}, {"A": "canary" + strings.Repeat("x", MaxEnvBytes)},
	} {
		err := ValidateEnv(env)
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("the error shows a value: %v", err)
		}
	}
}

// TestEnvShowsNamesOnly: however it is printed, and whatever it is a part of.
func TestEnvShowsNamesOnly(t *testing.T) {
	env := Env{"B": "canary", "A": "canary"}
	parts := []any{env, &env, CreateSandbox{Env: env}, ExecRequest{Env: env}, StartMachine{Env: env}, EnvChange{Set: env}, []Env{env}}
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		for _, p := range parts {
			slog.New(h).Info("x", "part", p)
		}
	}
	for _, p := range parts {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", p)
		}
		if err := json.NewEncoder(&out).Encode(p); err != nil {
			t.Error(err)
		}
	}
	if s := strings.ToLower(out.String()); strings.Contains(s, "canary") || strings.Contains(s, "63616e617279") {
		t.Errorf("a value is shown: %s", s)
	}
	if got := fmt.Sprint(env); got != `["A" "B"]` {
		t.Errorf("variables are printed as %s", got)
	}
}

func TestEnvLimits(t *testing.T) {
	long := strings.Repeat("x", MaxEnvValueBytes)
	whole := Env{"A": long, "B": long, "C": long, "D": long[4:]}
	for what, c := range map[string]struct {
		env  Env
		code Code
	}{
		"any bytes":      {Env{"A": "\x01\xff\n", "_b9": ""}, ""},
		"largest":        {Env{"A": long}, ""},
		"larger":         {Env{"A": long + "x"}, CodeTooLarge},
		"largest in all": {whole, ""},
		"larger in all":  {Env{"A": long, "B": long, "C": long, "D": long[3:]}, CodeTooLarge},
		"NUL":            {Env{"A": "\x00"}, CodeInvalidValue},
		"digit":          {Env{"9A": ""}, CodeInvalidValue},
		"no name":        {Env{"": ""}, CodeInvalidValue},
		"long name":      {Env{strings.Repeat("A", 257): ""}, CodeInvalidValue},
	} {
		wantCode(t, what, ValidateEnv(c.env), c.code)
	}
	change := EnvChange{Set: Env{"E": ""}}
	if _, err := change.Apply(whole); ErrorCode(err) != CodeTooLarge {
		t.Errorf("one more variable: %v", err)
	}
	change.Remove = []string{"A", "NONE"}
	after, err := change.Apply(whole)
	if got := strings.Join(EnvKeys(after), ""); err != nil || got != "BCDE" || len(whole) != 4 {
		t.Errorf("one for another: %s, %v", got, err)
	}
}

func TestValidatePath(t *testing.T) {
	for path, code := range map[string]Code{
		"/": "", "/root/a b": "", "/\xff\xfe": "", "": CodeInvalidPath, "a": CodeInvalidPath, "./a": CodeInvalidPath, "/a\x00": CodeInvalidPath,
		"/" + strings.Repeat("x", MaxPathBytes-1): "", "/" + strings.Repeat("x", MaxPathBytes): CodeInvalidPath,
	} {
		wantCode(t, path[:min(len(path), 20)], ValidatePath(path), code)
	}
}

func TestParseMode(t *testing.T) {
	for s, want := range map[string]uint32{"": 0o644, "0755": 0o755, "644": 0o644, "4755": 0o4755, "07777": 0o7777} {
		if got, err := ParseMode(s); err != nil || uint32(got) != want {
			t.Errorf("%q is %o, %v; want %o", s, got, err, want)
		}
	}
	for _, s := range []string{"rwx", "888", "-1", "10000", "77777", "0o755"} {
		_, err := ParseMode(s)
		wantCode(t, s, err, CodeInvalidValue)
	}
}

// TestErrorTable: one row a code, each with all that a caller needs, and a
// cause that stays hidden.
func TestErrorTable(t *testing.T) {
	seen := map[Code]bool{}
	last := 0
	for _, k := range ErrorTable {
		if seen[k.Code] || k.Status < 400 || k.Status > 599 || k.Message == "" || k.Fix == "" {
			t.Errorf("row %+v", k)
		}
		if k.Status < last {
			t.Errorf("%s is out of order", k.Code)
		}
		seen[k.Code], last = true, k.Status
	}
	err := WrapError(CodeCapacity, Errorf(CodeInternal, "secret cause"))
	if strings.Contains(err.Message, "secret") || ErrorCode(err) != CodeCapacity {
		t.Errorf("%+v", err)
	}
	if k := Code("invented").Kind(); k.Code != CodeInternal {
		t.Errorf("an unknown code is %s", k.Code)
	}
}

func TestIDs(t *testing.T) {
	id := newID(sandboxPrefix)
	if !ValidSandboxID(id) || id == newID(sandboxPrefix) {
		t.Errorf("made %s", id)
	}
	for _, bad := range []string{"", "sb_", id + "0", strings.ToUpper(id), "tok_" + id[3:], "sb_../../../../etc/pa", id[:22] + "g"} {
		if ValidSandboxID(bad) {
			t.Errorf("%q is taken for an id", bad)
		}
	}
}
