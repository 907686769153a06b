package httpapi

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// useCodes are what any call inside a sandbox may end in.
// A paused sandbox may have to be brought back first.
var useCodes = []eqvps.Code{eqvps.CodeSandboxNotFound, eqvps.CodeNotRunning, eqvps.CodePaused, eqvps.CodeSandboxEnded, eqvps.CodeUnreachable,
	eqvps.CodeCapacity, eqvps.CodeStartFailed}

func codes(more ...eqvps.Code) []eqvps.Code { return append(more, useCodes...) }

// command is a body that asks for a command.
type command interface {
	Domain() (eqvps.ExecRequest, error)
	Task() (eqvps.StartTask, error)
	Background() bool
	Continues() bool
	Raw() bool
}

const execDoc = "A command that fails is an ordinary result. At the timeout the whole process tree is killed and what was printed is kept. " +
	"Nothing but files persists between calls. A client that disconnects ends the command, unless \"on_disconnect\" is \"continue\": then it runs on to its end, " +
	"its timeout or the stop of the server, and its output is lost."

const taskDoc = " With \"async\": true the command runs as a background task, for as long as the sandbox lives unless its own timeout is shorter, and keeps the sandbox from being idle."

func (s *server) execRoutes() {
	events := &mediaType{
		name: typeLines, schema: schema[wire.Event](s),
		doc: "One JSON event a line, as it is printed; where the request's Accept names text/event-stream, the same as server-sent events, named by their type. " +
			"The last is an exit or an error; a stream that ends without either was cut.",
		or: &mediaType{name: typeEvents, schema: schema[wire.Event](s)},
	}
	result := &mediaType{name: "application/json", schema: schema[wire.ExecResult](s), doc: "The command has ended."}
	task := &mediaType{name: "application/json", schema: schema[wire.Task](s), doc: "The background task has started (\"async\": true)."}
	execCodes := codes(eqvps.CodeInvalidTimeout, eqvps.CodeInvalidPath, eqvps.CodeInvalidValue)
	startCodes := append(execCodes[:len(execCodes):len(execCodes)], eqvps.CodeTaskLimit, eqvps.CodeDiskFull)
	handleRaw(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/exec", id: "exec", tag: "commands", limit: maxExec, codes: startCodes,
		summary: "Run a command and wait for it, or start it in the background", description: execDoc + taskDoc, answer: result, accepted: task,
	}, collect[wire.ExecRequest](s))
	handleRaw(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/run", id: "run", tag: "commands", limit: maxExec, codes: startCodes,
		summary: "Run a piece of code and wait for it, or start it in the background", description: execDoc + taskDoc, answer: result, accepted: task,
	}, collect[wire.RunRequest](s))
	handleRaw(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/exec/stream", id: "execStream", tag: "commands", limit: maxExec, codes: execCodes,
		summary: "Run a command and follow its output", description: execDoc, answer: events,
	}, follow[wire.ExecRequest](s))
	handleRaw(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/run/stream", id: "runStream", tag: "commands", limit: maxExec, codes: execCodes,
		summary: "Run a piece of code and follow its output", description: execDoc, answer: events,
	}, follow[wire.RunRequest](s))
}

// start checks the command first: a mistake in it is told whatever state the
// sandbox is in.
func (s *server) start(ctx context.Context, id string, body command) (eqvps.Guest, eqvps.ExecRequest, error) {
	req, err := body.Domain()
	if err != nil {
		return nil, req, err
	}
	g, err := s.Sandboxes.Use(ctx, id)
	return g, req, err
}

// collect runs a command and answers with all of its output, or starts it as a
// task.
func collect[B command](s *server) func(context.Context, *call, *idInput, *B) (raw, error) {
	return func(ctx context.Context, _ *call, in *idInput, body *B) (raw, error) {
		if (*body).Background() {
			return s.background(ctx, in.ID, *body)
		}
		g, req, err := s.start(ctx, in.ID, *body)
		if err != nil {
			return nil, err
		}
		var res eqvps.ExecResult
		var mu sync.Mutex // the order is per stream: the two may come at once
		res.ExitStatus, err = g.Exec(patience(ctx, *body), req, func(st eqvps.Stream, p []byte) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil: // nobody will be told
			case st == eqvps.Stderr:
				res.Stderr.Write(p)
			default:
				res.Stdout.Write(p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		return writeJSON(http.StatusOK, wire.NewExecResult(&res, (*body).Raw())), nil
	}
}

// follow runs a command and passes on its output as it comes.
func follow[B command](s *server) func(context.Context, *call, *idInput, *B) (raw, error) {
	return func(ctx context.Context, _ *call, in *idInput, body *B) (raw, error) {
		if (*body).Background() {
			return nil, eqvps.Errorf(eqvps.CodeInvalidValue, "A background task has no stream; start it with the call without /stream and read its output from GET /sandboxes/{id}/tasks/{task_id}.")
		}
		g, req, err := s.start(ctx, in.ID, *body)
		if err != nil {
			return nil, err
		}
		return func(c *call) error {
			sse := wantsEvents(c.r)
			h := c.w.Header()
			h.Set("Content-Type", typeLines)
			if sse {
				h.Set("Content-Type", typeEvents)
			}
			h.Set("Vary", "Accept")
			h.Set("Cache-Control", "no-store, no-transform")
			h.Set("X-Accel-Buffering", "no")
			// The header goes out at once: a proxy need not wait for a command
			// that prints nothing.
			c.w.WriteHeader(http.StatusOK)
			if err := c.w.Flush(); err != nil && !(*body).Continues() {
				return err
			}
			es := newEventStream(c.w, (*body).Raw(), sse)
			defer es.close()
			out := es.output
			if (*body).Continues() {
				out = untilGone(ctx, es.output)
			}
			st, err := g.Exec(patience(ctx, *body), req, out)
			if err != nil {
				return es.fail(c.fail(err).body)
			}
			return es.exit(wire.NewExitStatus(st))
		}, nil
	}
}

// patience is how long a command runs: until its client leaves, or also after
// that. The end of the server ends it in any case: it closes the session with
// the sandbox.
func patience(ctx context.Context, body command) context.Context {
	if body.Continues() {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// untilGone passes output on as long as there is a client to take it, and then
// drops it.
func untilGone(ctx context.Context, out eqvps.Output) eqvps.Output {
	var gone atomic.Bool
	return func(s eqvps.Stream, p []byte) error {
		if !gone.Load() && (ctx.Err() != nil || out(s, p) != nil) {
			gone.Store(true)
		}
		return nil
	}
}
