package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
)

// Exit codes. `run` and `sandbox exec` end with their command's own; there
// exitOwn marks what went wrong outside of the command.
const (
	exitFailure = 1
	exitUsage   = 2
	exitOwn     = 125
	exitSignal  = 128 // plus the signal's number
)

// exitCode ends the program with a code and without a word.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is a command line that makes no sense.
type usageError string

func (e usageError) Error() string { return string(e) }

func usageErrorf(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// usageFrom is a usage error with the message of a check of the domain.
func usageFrom(err error) error { return usageError(eqvps.AsError(err).Message) }

// ownError is a failure of ours where the exit code otherwise is a command's.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

// own marks an error as ours, unless it already says how to exit.
func own(err error) error {
	var code exitCode
	var usage usageError
	if err == nil || errors.As(err, &code) || errors.As(err, &usage) {
		return err
	}
	return ownError{err}
}

// report tells the error, if there is one, and returns the exit code.
func (a *app) report(err error) int {
	var (
		code  exitCode
		usage usageError
		stop  signalled
		mine  ownError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &stop):
		a.note("%s", stop.Error())
		return exitSignal + int(stop.signal)
	case errors.Is(err, syscall.EPIPE):
		return exitSignal + int(syscall.SIGPIPE)
	}
	for _, e := range parts(err) {
		a.note("%s", sentence(e))
	}
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &mine):
		return exitOwn
	}
	return exitFailure
}

// parts are the errors that were joined, each of which gets its own line.
func parts(err error) []error {
	var mine ownError
	if errors.As(err, &mine) {
		err = mine.error
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok && strings.Contains(err.Error(), "\n") {
		return joined.Unwrap()
	}
	return []error{err}
}

// sentence renders an error for people: what is wrong and what to do, on one
// line and with nothing in it that a terminal would obey.
func sentence(err error) string {
	var remote *client.Error
	var local *eqvps.Error
	switch {
	case errors.As(err, &remote):
		s := joinSentences(remote.Message, remote.Fix)
		if remote.RequestID != "" && remote.Status >= 500 {
			s += " (request id " + remote.RequestID + ")"
		}
		return inert(s)
	case errors.As(err, &local):
		if local.Cause == nil {
			return inert(joinSentences(local.Message, local.Code.Kind().Fix))
		}
		// It comes from a server of this process: its operator reads this.
		return inert(fmt.Sprintf("%s (%v)", strings.TrimSuffix(local.Message, "."), local.Cause))
	}
	return inert(strings.ReplaceAll(err.Error(), "\n", "; "))
}

func joinSentences(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}

// orSignal returns why ctx ended where err is only the consequence of that.
func orSignal(ctx context.Context, err error) error {
	var stop signalled
	if err != nil && errors.As(context.Cause(ctx), &stop) {
		return stop
	}
	return err
}
