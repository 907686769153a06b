package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// tasksSince is the first version of the protocol that has background tasks.
const tasksSince = 2

var _ eqvps.Tasker = (*Client)(nil)

// needTasks tells what to do about a guest from before there were tasks.
func (c *Client) needTasks() error {
	if c.version >= tasksSince {
		return nil
	}
	return eqvps.Errorf(eqvps.CodeInvalidValue, "This sandbox was started by an older version and has no background tasks; create a new one.")
}

// StartTask starts a command that goes on when the session ends. req must be
// valid: see eqvps.StartTask. Starting an id again starts nothing and returns
// that task, so a start without an answer can be repeated. Codes:
// CodeTaskLimit, CodeInvalidValue (a guest that has no tasks), CodeUnreachable.
func (c *Client) StartTask(ctx context.Context, req eqvps.StartTask) (*eqvps.Task, error) {
	if err := c.needTasks(); err != nil {
		return nil, err
	}
	head, err := execBody(&req.ExecRequest)
	if err != nil {
		return nil, err
	}
	return c.task(ctx, http.MethodPost, req.ID, append(head, req.Stdin...))
}

// KillTask ends a task and everything it has started, and returns how it
// ended. One that has ended is left as it is. Codes: CodeTaskNotFound,
// CodeUnreachable.
func (c *Client) KillTask(ctx context.Context, id string) (*eqvps.Task, error) {
	if err := c.needTasks(); err != nil {
		return nil, err
	}
	return c.task(ctx, http.MethodDelete, id, nil)
}

func (c *Client) task(ctx context.Context, method, id string, body []byte) (*eqvps.Task, error) {
	b, err := c.call(ctx, wire.MaxReply, method, wire.PathTask, url.Values{wire.ParamTask: {id}}, body)
	if err != nil {
		return nil, err
	}
	t, err := decodeTask(b)
	if err == nil && t.ID != id {
		err = fmt.Errorf("it is about %.40q", t.ID)
	}
	if err != nil {
		return nil, badTask(err)
	}
	return t, nil
}

func decodeTask(b []byte) (*eqvps.Task, error) {
	var w wire.Task
	if err := w.Decode(b); err != nil {
		return nil, err
	}
	return w.Domain()
}

func badTask(err error) error {
	return unreachable(fmt.Errorf("the guest's answer about a task: %w", err))
}

// ReadTask returns a task and what it has printed from two offsets on. r must
// be valid. At least a character's worth is read, so that a reader of text
// always gets on. Codes: CodeTaskNotFound, CodeUnreachable.
func (c *Client) ReadTask(ctx context.Context, id string, r eqvps.ReadTask) (*eqvps.TaskOutput, error) {
	if err := c.needTasks(); err != nil {
		return nil, err
	}
	if r.Max > 0 {
		r.Max = max(r.Max, utf8.UTFMax)
	}
	b, err := c.call(ctx, wire.MaxTaskOutput, http.MethodGet, wire.PathTask, url.Values{
		wire.ParamTask: {id}, wire.ParamMax: {strconv.Itoa(r.Max)},
		wire.ParamStdout: {strconv.FormatInt(r.Stdout, 10)}, wire.ParamStderr: {strconv.FormatInt(r.Stderr, 10)},
	}, nil)
	if err != nil {
		return nil, err
	}
	var w wire.TaskOutput
	if err := w.Decode(b); err != nil {
		return nil, badTask(err)
	}
	out, err := w.Domain(r)
	if err == nil && out.Task.ID != id {
		err = fmt.Errorf("it is about %.40q", out.Task.ID)
	}
	if err != nil {
		return nil, badTask(err)
	}
	return out, nil
}

// ListTasks returns the tasks that the guest remembers, newest first. Code:
// CodeUnreachable.
func (c *Client) ListTasks(ctx context.Context) ([]*eqvps.Task, error) {
	if err := c.needTasks(); err != nil {
		return nil, err
	}
	b, err := c.call(ctx, wire.MaxTaskList, http.MethodGet, wire.PathTasks, nil, nil)
	if err != nil {
		return nil, err
	}
	var w wire.Tasks
	if err := w.Decode(b); err != nil {
		return nil, badTask(err)
	}
	if len(w.List) > eqvps.MaxTasks {
		return nil, badTask(errors.New("too many tasks"))
	}
	list := make([]*eqvps.Task, len(w.List))
	for i, b := range w.List {
		if list[i], err = decodeTask(b); err != nil {
			return nil, badTask(err)
		}
	}
	return list, nil
}

// TaskActivity tells whether tasks run and when the last one ended, by the
// host's clock. A guest from before there were tasks has none.
func (c *Client) TaskActivity(ctx context.Context) (eqvps.TaskActivity, error) {
	if c.version < tasksSince {
		return eqvps.TaskActivity{}, nil
	}
	b, err := c.call(ctx, wire.MaxReply, http.MethodGet, wire.PathTaskActivity, nil, nil)
	if err != nil {
		return eqvps.TaskActivity{}, err
	}
	var w wire.TaskActivity
	if err := w.Decode(b); err != nil {
		return eqvps.TaskActivity{}, badTask(err)
	}
	a, err := w.Domain(time.Now())
	if err != nil {
		return eqvps.TaskActivity{}, badTask(err)
	}
	return a, nil
}
