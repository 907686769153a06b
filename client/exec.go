package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// Exec runs a command and returns what it printed. A command that fails is a
// result.
func (c *Client) Exec(ctx context.Context, id string, req wire.ExecRequest) (*wire.ExecResult, error) {
	var out wire.ExecResult
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/exec"), nil, req, &out)
}

// Run runs a piece of code and returns what it printed.
func (c *Client) Run(ctx context.Context, id string, req wire.RunRequest) (*wire.ExecResult, error) {
	var out wire.ExecResult
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/run"), nil, req, &out)
}

// ExecStream runs a command and passes on what it prints as it comes. Ending
// ctx, or an error of output, ends the command.
func (c *Client) ExecStream(ctx context.Context, id string, req wire.ExecRequest, output eqvps.Output) (eqvps.ExitStatus, error) {
	return c.stream(ctx, sandboxPath(id, "/exec/stream"), req, output)
}

// RunStream runs a piece of code and passes on what it prints as it comes.
func (c *Client) RunStream(ctx context.Context, id string, req wire.RunRequest, output eqvps.Output) (eqvps.ExitStatus, error) {
	return c.stream(ctx, sandboxPath(id, "/run/stream"), req, output)
}

var errCut = errors.New("the connection ended before the command did; what it printed after that is lost")

func (c *Client) stream(ctx context.Context, path string, req any, output eqvps.Output) (eqvps.ExitStatus, error) {
	var none eqvps.ExitStatus
	resp, err := c.send(ctx, http.MethodPost, path, nil, req)
	if err != nil {
		return none, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	for lines.Scan() {
		e, err := decodeEvent(lines.Bytes())
		if err != nil {
			if ctx.Err() != nil {
				return none, ctx.Err()
			}
			return none, errCut // half a line
		}
		switch {
		case e.Type == wire.EventExit && e.ExitStatus != nil:
			return e.ExitStatus.Domain(), nil
		case e.Type == wire.EventError && e.Error != nil:
			return none, newError(eqvps.Code(e.Code).Kind().Status, *e.Error)
		case e.Type == wire.EventStdout || e.Type == wire.EventStderr:
			p := e.DataBase64
			if p == nil {
				p = []byte(e.Text)
			}
			s := eqvps.Stdout
			if e.Type == wire.EventStderr {
				s = eqvps.Stderr
			}
			if err := output(s, p); err != nil {
				return none, err
			}
		default:
			// A newer server may tell more than this client knows.
		}
	}
	switch err := lines.Err(); {
	case ctx.Err() != nil:
		return none, ctx.Err()
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return none, fmt.Errorf("%w (%w)", errCut, err)
	}
	return none, errCut
}
