package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// execGrace is how much longer than its timeout a command may take to be
// reported as ended.
const execGrace = 5 * time.Second

// settle is how long a guest is left alone before its snapshot: whatever it
// still has to do, the end of this very session included, it would otherwise
// do in each of its clones, on the way to their first answer.
const settle = 2 * time.Second

// gatePoll is the wait before a guest that is not at its gate is asked again.
const gatePoll = 2 * time.Millisecond

// errOverdue is the cause when a guest does not end a command at its timeout.
var errOverdue = errors.New("the guest did not end the command at its timeout")

// Exec runs one command and passes on what it prints as it comes. req must be
// valid, but its timeout may be longer than a foreground command's; zero is
// eqvps.DefaultExecTimeout. When ctx ends or out fails, the command and all it
// has started are killed and the error returned.
func (c *Client) Exec(ctx context.Context, req eqvps.ExecRequest, out eqvps.Output) (eqvps.ExitStatus, error) {
	body, err := execBody(&req)
	if err != nil {
		return eqvps.ExitStatus{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The time in which we take output is not the guest's.
	watch := newStopwatch(req.Timeout+c.execGrace, func() { cancel(errOverdue) })
	defer watch.stop()

	res, err := c.send(ctx, http.MethodPost, wire.PathExec, nil, int64(len(body)+len(req.Stdin)),
		io.MultiReader(bytes.NewReader(body), bytes.NewReader(req.Stdin)))
	if err != nil {
		return eqvps.ExitStatus{}, err
	}
	defer res.Body.Close()
	result, err := wire.ReadOutput(ctxReader{ctx, res.Body}, func(s eqvps.Stream, p []byte) error {
		watch.stop()
		defer watch.start()
		return out(s, p)
	})
	if refused := (*wire.OutputError)(nil); errors.As(err, &refused) {
		return eqvps.ExitStatus{}, refused.Err
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return eqvps.ExitStatus{}, unreachable(err)
	}
	return eqvps.ExitStatus{
		Code: result.Code, Signal: result.Signal, TimedOut: result.TimedOut, OOM: result.OOM,
		Duration: time.Duration(result.DurationNS),
	}, nil
}

func execBody(req *eqvps.ExecRequest) ([]byte, error) {
	if req.Timeout == 0 {
		req.Timeout = eqvps.DefaultExecTimeout
	}
	if req.Cwd == "" {
		req.Cwd = "/root"
	}
	h := wire.ExecHead{
		Cwd: []byte(req.Cwd), Env: wire.EnvList(req.Env), TimeoutNS: int64(req.Timeout),
	}
	if req.Command != "" {
		h.Command = []byte(req.Command)
	}
	for _, arg := range req.Argv {
		h.Argv = append(h.Argv, []byte(arg))
	}
	b := h.Encode()
	if len(b) > wire.MaxHead {
		return nil, eqvps.Errorf(eqvps.CodeTooLarge, "The command is larger than allowed.")
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

// ctxReader ends with its context. A stream that was closed here still gives
// what its guest goes on sending, for as long as the guest likes.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// stopwatch calls a function once it has run for long enough in all.
type stopwatch struct {
	timer *time.Timer
	f     func()
	left  time.Duration
	since time.Time
}

func newStopwatch(d time.Duration, f func()) *stopwatch {
	return &stopwatch{timer: time.AfterFunc(d, f), f: f, left: d, since: time.Now()}
}

func (w *stopwatch) stop() {
	w.timer.Stop()
	w.left -= time.Since(w.since)
}

func (w *stopwatch) start() {
	w.since = time.Now()
	if w.left <= 0 {
		w.f() // a timer could be stopped again before it rings
		return
	}
	w.timer.Reset(w.left)
}

// Park sends the agent back to its gate: it ends every command, writes
// everything to disk, forgets its variables and waits for an identity. The
// session is over then.
func (c *Client) Park(ctx context.Context, dial DialFunc) error {
	if err := c.ask(ctx, http.MethodPost, wire.PathFreeze, nil, nil, nil); err != nil {
		return err
	}
	return c.toGate(ctx, dial)
}

// toGate ends the session and returns when the agent waits for an identity.
func (c *Client) toGate(ctx context.Context, dial DialFunc) error {
	if err := c.Close(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.replyTimeout)
	defer cancel()
	for {
		hs, err := knock(ctx, dial)
		if err != nil {
			return err
		}
		atGate := hs.AtGate
		hs.Close()
		if atGate {
			return nil
		}
		select {
		case <-time.After(gatePoll):
		case <-ctx.Done():
			return unreachable(context.Cause(ctx))
		}
	}
}

// Prepare makes a template of the machine: it runs the commands, one after
// another, so that what they need is in the guest's memory, parks the agent and
// lets the machine come to rest. It is ready for a snapshot then.
func (c *Client) Prepare(ctx context.Context, dial DialFunc, commands []string) error {
	for _, line := range commands {
		var printed eqvps.Capture
		st, err := c.Exec(ctx, eqvps.ExecRequest{Command: line, Timeout: 5 * time.Minute}, func(_ eqvps.Stream, p []byte) error {
			_, err := printed.Write(p)
			return err
		})
		if err != nil {
			return err
		}
		if st.Code != 0 {
			b := printed.Bytes()
			return fmt.Errorf("the command %q, which prepares the template, exits with %d: %.2000q", line, st.Code, b)
		}
	}
	if err := c.Park(ctx, dial); err != nil {
		return err
	}
	select {
	case <-time.After(settle):
		return nil
	case <-ctx.Done():
		return unreachable(context.Cause(ctx))
	}
}
