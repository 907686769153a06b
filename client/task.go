package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/eqvps/eqvps/wire"
)

func taskPath(id, task string) string { return sandboxPath(id, "/tasks/") + url.PathEscape(task) }

// StartTask runs a command in the background of a sandbox. A timeout of 0 is
// the sandbox's remaining life.
func (c *Client) StartTask(ctx context.Context, id string, req wire.ExecRequest) (*wire.Task, error) {
	req.Async = true
	var out wire.Task
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/exec"), nil, req, &out)
}

// RunTask runs a piece of code in the background of a sandbox.
func (c *Client) RunTask(ctx context.Context, id string, req wire.RunRequest) (*wire.Task, error) {
	req.Async = true
	var out wire.Task
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/run"), nil, req, &out)
}

// ListTasks returns a sandbox's tasks, newest first.
func (c *Client) ListTasks(ctx context.Context, id string) (*wire.TaskList, error) {
	var out wire.TaskList
	return &out, c.call(ctx, http.MethodGet, sandboxPath(id, "/tasks"), nil, nil, &out)
}

// ReadTask selects output of a task. The zero value reads from the start, as
// much as the server gives by itself.
type ReadTask struct {
	Stdout, Stderr int64 // offsets: 0, or those of the answer before
	MaxBytes       *int  // of each stream; 0: the state only
	Raw            bool  // as bytes, not cut between characters
}

// ReadTask returns a task's state and a part of its output.
func (c *Client) ReadTask(ctx context.Context, id, task string, r ReadTask) (*wire.TaskOutput, error) {
	q := url.Values{"stdout_offset": {strconv.FormatInt(r.Stdout, 10)}, "stderr_offset": {strconv.FormatInt(r.Stderr, 10)}}
	if r.MaxBytes != nil {
		q.Set("max_bytes", strconv.Itoa(*r.MaxBytes))
	}
	if r.Raw {
		q.Set("encoding", "base64")
	}
	var out wire.TaskOutput
	return &out, c.call(ctx, http.MethodGet, taskPath(id, task), q, nil, &out)
}

// KillTask ends a task with all its processes and returns how it ended.
// Killing one that has ended is no error.
func (c *Client) KillTask(ctx context.Context, id, task string) (*wire.Task, error) {
	var out wire.Task
	return &out, c.call(ctx, http.MethodDelete, taskPath(id, task), nil, nil, &out)
}
