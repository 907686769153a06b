package eqvps

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"
)

// ExecRequest is one command to run in a sandbox. Exactly one of Command and
// Argv is set.
type ExecRequest struct {
	Command string        // run by bash -lc
	Argv    []string      // run as it is, without a shell
	Cwd     string        // absolute; "" is /root
	Env     Env           // wins over the sandbox's own variables
	Stdin   []byte        // nil: immediate end of file
	Timeout time.Duration // 0 is DefaultExecTimeout
}

// Language is a language of Run.
type Language string

// The languages that code can be run in, passed on standard input.
const (
	Python Language = "python"
	Node   Language = "node"
	Bash   Language = "bash"
)

// Languages lists them in the order people read them.
var Languages = []Language{Python, Node, Bash}

// interpreters read the program from standard input.
var interpreters = map[Language][]string{
	Python: {"python3", "-"},
	Node:   {"node", "-"},
	Bash:   {"bash", "-l", "-s"},
}

// RunRequest turns a piece of code into the command that runs it.
func RunRequest(lang Language, code string) (ExecRequest, error) {
	argv, ok := interpreters[lang]
	if !ok {
		return ExecRequest{}, Errorf(CodeInvalidValue, "Unknown language %q; use python, node or bash.", lang)
	}
	if code == "" {
		return ExecRequest{}, Errorf(CodeInvalidRequest, "The code is empty.")
	}
	if len(code) > MaxCommandBytes {
		return ExecRequest{}, Errorf(CodeTooLarge, "The code has %d bytes; at most %d are allowed.", len(code), MaxCommandBytes)
	}
	return ExecRequest{Argv: argv, Stdin: []byte(code)}, nil
}

// Validate checks the request as a foreground command and fills in defaults.
func (r *ExecRequest) Validate() error {
	if err := r.validateCommand(); err != nil {
		return err
	}
	if r.Timeout == 0 {
		r.Timeout = DefaultExecTimeout
	}
	if r.Timeout < time.Second {
		return Errorf(CodeInvalidTimeout, "The timeout must be at least 1 second.")
	}
	if r.Timeout > MaxExecTimeout {
		return Errorf(CodeInvalidTimeout, "A foreground command may run at most %d seconds; start a background task for longer work.", int(MaxExecTimeout.Seconds()))
	}
	return nil
}

// validateCommand checks everything but the timeout.
func (r *ExecRequest) validateCommand() error {
	switch {
	case r.Command == "" && len(r.Argv) == 0:
		return Errorf(CodeInvalidRequest, "The command is empty.")
	case r.Command != "" && len(r.Argv) > 0:
		return Errorf(CodeInvalidRequest, "Give either command or argv, not both.")
	}
	size := len(r.Command)
	nul := strings.IndexByte(r.Command, 0) >= 0
	for _, a := range r.Argv {
		size += len(a)
		nul = nul || strings.IndexByte(a, 0) >= 0
	}
	if len(r.Argv) > 0 && r.Argv[0] == "" {
		return Errorf(CodeInvalidRequest, "The first element of argv is empty.")
	}
	if nul {
		return Errorf(CodeInvalidRequest, "The command holds a NUL byte.")
	}
	if size > MaxCommandBytes {
		return Errorf(CodeTooLarge, "The command has %d bytes; at most %d are allowed.", size, MaxCommandBytes)
	}
	if len(r.Stdin) > MaxStdinBytes {
		return Errorf(CodeTooLarge, "stdin has %d bytes; at most %d are allowed: upload a file instead.", len(r.Stdin), MaxStdinBytes)
	}
	if r.Cwd != "" {
		if err := ValidatePath(r.Cwd); err != nil {
			return err
		}
	}
	return ValidateEnv(r.Env)
}

// Stream names an output stream.
type Stream uint8

// The two streams of a command.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Output receives what a command prints, in order per stream. It must not
// keep p. An error stops the command.
type Output func(s Stream, p []byte) error

// ExitStatus is how a command ended.
type ExitStatus struct {
	Code     int           // the shell's convention: 128+n for signal n, 124 at the timeout
	Signal   string        // e.g. "SIGKILL"; "" when it exited by itself
	TimedOut bool          // the whole process tree was killed at the timeout
	OOM      bool          // killed because the sandbox's memory was used up
	Duration time.Duration // from fork to exit, measured in the guest
}

// ExecResult is the outcome of a foreground command. A command that fails is
// an ordinary result.
type ExecResult struct {
	ExitStatus
	Stdout, Stderr Capture
}

// Text returns what was kept of a stream as text: bytes that are not UTF-8 are
// replaced, and marked reports whether any were.
func (c Capture) Text() (text string, marked bool) {
	b := c.Bytes()
	if utf8.Valid(b) {
		return string(b), false
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), true
}

// Commander runs commands in one sandbox.
type Commander interface {
	// Exec runs one command and passes on what it prints as it comes. The
	// error is about the sandbox, never about the command.
	Exec(ctx context.Context, req ExecRequest, out Output) (ExitStatus, error)
}
