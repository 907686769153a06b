package wire

import (
	"encoding/json"
	"math"
	"time"

	"github.com/eqvps/eqvps"
)

// Seconds is a timeout. Decoding refuses what can never be one with
// CodeInvalidTimeout.
type Seconds float64

var errTimeout = eqvps.Errorf(eqvps.CodeInvalidTimeout,
	"The timeout must be a number of seconds from 1 to %d; for longer work start a background task (\"async\": true).",
	int(eqvps.MaxExecTimeout/time.Second))

// UnmarshalJSON reads a positive number.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f *float64
	if err := json.Unmarshal(b, &f); err != nil || f == nil || *f <= 0 {
		return errTimeout
	}
	*s = Seconds(*f)
	return nil
}

// duration is exact to the millisecond; what is out of range for a Duration is
// out of range for a timeout as well.
func (s Seconds) duration() time.Duration {
	return time.Duration(math.Ceil(min(float64(s), 1e9)*1000)) * time.Millisecond
}

// ExecRequest is one command.
type ExecRequest struct {
	Command     string            `json:"command,omitempty" doc:"Run by bash -lc as root in /root. Either command or argv." example:"python3 -c 'print(2+2)'"`
	Argv        []string          `json:"argv,omitempty" nullable:"false" doc:"Run as it is, without a shell."`
	Cwd         string            `json:"cwd,omitempty" doc:"Absolute folder to run in; the default is /root."`
	Env         map[string]string `json:"env,omitempty" doc:"Variables for this command; they win over the sandbox's own."`
	EnvBase64   map[string][]byte `json:"env_base64,omitempty" doc:"More of them, whose values need not be text."`
	Stdin       string            `json:"stdin,omitempty" doc:"Standard input as text, at most 5 MiB."`
	StdinBase64 []byte            `json:"stdin_base64,omitempty" doc:"Standard input as bytes; either this or stdin."`
	Options
}

// Options are what exec and run share.
type Options struct {
	Timeout  Seconds `json:"timeout,omitempty" doc:"Seconds until the whole process tree is killed: 1 to 55, default 30. Of a background task: at most, and by default, as long as the sandbox lives." example:"30"`
	Async    bool    `json:"async,omitempty" doc:"Run it as a background task: the answer comes at once, its output is read from GET /sandboxes/{id}/tasks/{task_id}."`
	Encoding string  `json:"encoding,omitempty" doc:"base64: give the output as bytes as well; text (the default): only where it is not UTF-8."`
	// OnDisconnect is "" or one of the two below.
	OnDisconnect string `json:"on_disconnect,omitempty" doc:"What becomes of the command when its client disconnects. kill (the default): it is killed with all it has started. continue: it runs on to its end or timeout, and what it prints is lost; work that must outlive its caller is better a background task."`
}

// What becomes of a command whose client disconnects.
const (
	DisconnectKill     = "kill"
	DisconnectContinue = "continue"
)

// Raw reports whether the output is wanted as bytes in any case.
func (o Options) Raw() bool { return o.Encoding == "base64" }

// Background reports whether a task is asked for.
func (o Options) Background() bool { return o.Async }

// Continues reports whether the command outlives its client.
func (o Options) Continues() bool { return o.OnDisconnect == DisconnectContinue }

func (o Options) check() error {
	switch o.Encoding {
	case "", "text", "base64":
	default:
		return eqvps.Errorf(eqvps.CodeInvalidValue, "There is no encoding %.40q; use text or base64.", o.Encoding)
	}
	switch o.OnDisconnect {
	case "", DisconnectKill, DisconnectContinue:
		return nil
	}
	return eqvps.Errorf(eqvps.CodeInvalidValue, "on_disconnect is %.40q; use kill or continue.", o.OnDisconnect)
}

// Domain returns the command as a foreground one, checked and with its
// defaults.
func (r ExecRequest) Domain() (eqvps.ExecRequest, error) {
	req, err := r.request()
	if err != nil {
		return req, err
	}
	return req, req.Validate()
}

func (r ExecRequest) request() (eqvps.ExecRequest, error) {
	if err := r.check(); err != nil {
		return eqvps.ExecRequest{}, err
	}
	env, err := joinEnv(r.Env, r.EnvBase64)
	if err != nil {
		return eqvps.ExecRequest{}, err
	}
	req := eqvps.ExecRequest{Command: r.Command, Argv: r.Argv, Cwd: r.Cwd, Env: env, Timeout: r.Timeout.duration()}
	switch {
	case r.Stdin != "" && r.StdinBase64 != nil:
		return req, eqvps.Errorf(eqvps.CodeInvalidRequest, "Give either stdin or stdin_base64, not both.")
	case r.Stdin != "":
		req.Stdin = []byte(r.Stdin)
	default:
		req.Stdin = r.StdinBase64
	}
	return req, nil
}

// RunRequest is a piece of code.
type RunRequest struct {
	Language  string            `json:"language" doc:"python, node or bash." example:"python"`
	Code      string            `json:"code" doc:"The program, given to the interpreter on standard input." example:"print(2+2)"`
	Env       map[string]string `json:"env,omitempty" doc:"Variables for this run; they win over the sandbox's own."`
	EnvBase64 map[string][]byte `json:"env_base64,omitempty" doc:"More of them, whose values need not be text."`
	Options
}

// Domain returns the command that runs the code as a foreground one, checked
// and with its defaults.
func (r RunRequest) Domain() (eqvps.ExecRequest, error) {
	req, err := r.request()
	if err != nil {
		return req, err
	}
	return req, req.Validate()
}

func (r RunRequest) request() (eqvps.ExecRequest, error) {
	if err := r.check(); err != nil {
		return eqvps.ExecRequest{}, err
	}
	req, err := eqvps.RunRequest(eqvps.Language(r.Language), r.Code)
	if err != nil {
		return req, err
	}
	req.Timeout = r.Timeout.duration()
	req.Env, err = joinEnv(r.Env, r.EnvBase64)
	return req, err
}

// ExitStatus is how a command ended. A command that fails is an ordinary
// result.
type ExitStatus struct {
	ExitCode   int     `json:"exit_code" doc:"The shell's: 128+n for signal n, 124 at the timeout."`
	Signal     *string `json:"signal" doc:"The signal that ended it, e.g. SIGKILL; null when it exited by itself."`
	TimedOut   bool    `json:"timed_out" doc:"The whole process tree was killed at the timeout."`
	OOM        bool    `json:"oom" doc:"It was killed because the sandbox's memory was used up."`
	DurationMS int64   `json:"duration_ms" doc:"From start to end, measured in the sandbox."`
	DurationUS int64   `json:"duration_us" doc:"The same in microseconds."`
	Hint       string  `json:"hint,omitempty" doc:"What to do next, when it timed out or ran out of memory."`
}

// NewExitStatus renders how a command ended.
func NewExitStatus(st eqvps.ExitStatus) ExitStatus {
	e := ExitStatus{
		ExitCode: st.Code, Signal: optional(st.Signal), TimedOut: st.TimedOut, OOM: st.OOM,
		DurationMS: st.Duration.Milliseconds(), DurationUS: st.Duration.Microseconds(),
	}
	switch {
	case st.TimedOut:
		e.Hint = "The command was killed at its timeout. A foreground command may take up to 55 seconds (\"timeout\"); longer work belongs in a background task (\"async\": true)."
	case st.OOM:
		e.Hint = "The command was killed because the sandbox's memory was used up; use a larger tariff, or less memory."
	}
	return e
}

// Domain is the reverse of NewExitStatus.
func (e ExitStatus) Domain() eqvps.ExitStatus {
	st := eqvps.ExitStatus{
		Code: e.ExitCode, TimedOut: e.TimedOut, OOM: e.OOM, Duration: time.Duration(e.DurationUS) * time.Microsecond,
	}
	if st.Duration == 0 { // an older server
		st.Duration = time.Duration(e.DurationMS) * time.Millisecond
	}
	if e.Signal != nil {
		st.Signal = *e.Signal
	}
	return st
}

// ExecResult is the outcome of a command with what it printed. Of each stream
// the first and the last half MiB are kept.
type ExecResult struct {
	ExitStatus
	Stdout       string `json:"stdout" doc:"What was kept of it as text; bytes that are not UTF-8 are replaced."`
	Stderr       string `json:"stderr" doc:"The same for standard error."`
	StdoutBytes  int64  `json:"stdout_bytes" doc:"How many bytes were printed in all, kept or not."`
	StderrBytes  int64  `json:"stderr_bytes"`
	StdoutBase64 []byte `json:"stdout_base64,omitempty" doc:"What was kept as bytes: when it is not UTF-8, or when asked for."`
	StderrBase64 []byte `json:"stderr_base64,omitempty"`
	Truncated    bool   `json:"truncated" doc:"Bytes were dropped from the middle of a stream; a line in their place says how many."`
}

// NewExecResult renders a result; raw asks for the bytes in any case.
func NewExecResult(r *eqvps.ExecResult, raw bool) ExecResult {
	out := ExecResult{
		ExitStatus:  NewExitStatus(r.ExitStatus),
		StdoutBytes: r.Stdout.Total, StderrBytes: r.Stderr.Total,
		Truncated: r.Stdout.Truncated() || r.Stderr.Truncated(),
	}
	out.Stdout, out.StdoutBase64 = text(&r.Stdout, raw)
	out.Stderr, out.StderrBase64 = text(&r.Stderr, raw)
	return out
}

func text(c *eqvps.Capture, raw bool) (string, []byte) {
	s, marked := c.Text()
	if marked || raw {
		return s, c.Bytes()
	}
	return s, nil
}

// Types of an Event.
const (
	EventStdout = "stdout"
	EventStderr = "stderr"
	EventExit   = "exit"
	EventError  = "error"
)

// Event is one line of a stream of output. The last one is an exit or an
// error; a stream that ends without either was cut.
type Event struct {
	Type       string `json:"type" enum:"stdout,stderr,exit,error"`
	Text       string `json:"text,omitempty" doc:"Output that is UTF-8, cut between characters."`
	DataBase64 []byte `json:"data_base64,omitempty" doc:"Output that is not UTF-8."`
	*ExitStatus
	*Error
}
