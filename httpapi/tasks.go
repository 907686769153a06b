package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type taskInput struct {
	ID   string `path:"id" doc:"Id of the sandbox." example:"sb_0123456789abcdef0123"`
	Task string `path:"task_id" doc:"Id of the task." example:"task_0123456789abcdef0123"`
}

type readTaskInput struct {
	ID       string `path:"id" doc:"Id of the sandbox." example:"sb_0123456789abcdef0123"`
	Task     string `path:"task_id" doc:"Id of the task." example:"task_0123456789abcdef0123"`
	Stdout   int64  `query:"stdout_offset" minimum:"0" doc:"Return standard output from this byte on: 0, or stdout_next_offset of the last read."`
	Stderr   int64  `query:"stderr_offset" minimum:"0" doc:"The same for standard error."`
	MaxBytes int    `query:"max_bytes" minimum:"0" maximum:"1048576" default:"262144" doc:"The most to return of each stream; 0: the state only."`
	Encoding string `query:"encoding" enum:"text,base64" doc:"base64: give the output as bytes as well; text (the default): only where it is not UTF-8."`
}

// taskCodes are what any call about one task may end in. A sandbox from before
// there were tasks answers invalid_value.
func taskCodes() []eqvps.Code { return codes(eqvps.CodeTaskNotFound, eqvps.CodeInvalidValue) }

func (s *server) taskRoutes() {
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/tasks", id: "listTasks", tag: "commands",
		summary:     "List the background tasks of a sandbox",
		description: "Newest first, running and ended, at most 256. Listing is no activity.",
		codes:       codes(eqvps.CodeInvalidValue),
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.TaskList, error) {
		out := wire.TaskList{Data: []wire.Task{}}
		g, err := s.Sandboxes.Use(ctx, in.ID)
		if err != nil {
			return out, err
		}
		list, err := g.ListTasks(ctx)
		for _, t := range list {
			out.Data = append(out.Data, wire.NewTask(t))
		}
		return out, err
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/tasks/{task_id}", id: "getTask", tag: "commands",
		summary: "Show a background task and what it has printed",
		description: "Reading from stdout_next_offset and stderr_next_offset on gives all output without a gap or a repeat, also after a restart of the server. " +
			"Output that is gone already is skipped, and told as such.",
		codes: taskCodes(),
	}, func(ctx context.Context, _ *call, in *readTaskInput, _ *none) (wire.TaskOutput, error) {
		g, err := s.Sandboxes.Use(ctx, in.ID)
		if err != nil {
			return wire.TaskOutput{}, err
		}
		out, err := g.ReadTask(ctx, in.Task, eqvps.ReadTask{Stdout: in.Stdout, Stderr: in.Stderr, Max: in.MaxBytes})
		if err != nil {
			return wire.TaskOutput{}, err
		}
		return wire.NewTaskOutput(out, in.Encoding == "base64"), nil
	})
	handle(s, route{
		method: http.MethodDelete, path: "/sandboxes/{id}/tasks/{task_id}", id: "killTask", tag: "commands",
		summary:     "Kill a background task",
		description: "Kills all processes it has started and answers with how it ended. Its output stays. Killing one that has ended is no error.",
		codes:       taskCodes(),
	}, func(ctx context.Context, _ *call, in *taskInput, _ *none) (wire.Task, error) {
		g, err := s.Sandboxes.Use(ctx, in.ID)
		if err != nil {
			return wire.Task{}, err
		}
		t, err := g.KillTask(ctx, in.Task)
		if err != nil {
			return wire.Task{}, err
		}
		return wire.NewTask(t), nil
	})
}

// schema is that of a type of the wire.
func schema[T any](s *server) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

// background starts a command as a task.
func (s *server) background(ctx context.Context, id string, body command) (raw, error) {
	req, err := body.Task()
	if err != nil {
		return nil, err
	}
	g, err := s.Sandboxes.Use(ctx, id)
	if err != nil {
		return nil, err
	}
	t, err := g.StartTask(ctx, req)
	if err != nil {
		return nil, err
	}
	return writeJSON(http.StatusAccepted, wire.NewTask(t)), nil
}

// writeJSON is an answer in JSON of a route that has more than one.
func writeJSON(status int, v any) raw {
	return func(c *call) error {
		c.w.Header().Set("Content-Type", "application/json")
		c.w.WriteHeader(status)
		enc := json.NewEncoder(c.w)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
}
