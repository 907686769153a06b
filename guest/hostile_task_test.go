package guest

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/channel"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

const taskID = "task_0123456789abcdef0123"

// taskCalls are all calls about tasks.
func taskCalls(c *Client) map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"start": func() error {
			_, err := c.StartTask(ctx, eqvps.StartTask{ID: taskID, ExecRequest: eqvps.ExecRequest{Command: "x"}})
			return err
		},
		"read":     func() error { _, err := c.ReadTask(ctx, taskID, eqvps.ReadTask{Max: 10}); return err },
		"list":     func() error { _, err := c.ListTasks(ctx); return err },
		"kill":     func() error { _, err := c.KillTask(ctx, taskID); return err },
		"activity": func() error { _, err := c.TaskActivity(ctx); return err },
	}
}

// Whatever an agent answers about tasks, a call ends, with CodeUnreachable.
func TestLyingAboutTasks(t *testing.T) {
	other := wire.Task{ID: "task_ffffffffffffffffffff", State: "running"}
	var many wire.Tasks
	for range eqvps.MaxTasks + 1 {
		many.List = append(many.List, other.Encode())
	}
	bytes := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(b) }
	}
	for name, agent := range map[string]http.HandlerFunc{
		"junk":    bytes([]byte("junk")),
		"nothing": bytes(nil),
		"endless": endless,
		"a code of ours": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(402)
			_, _ = io.WriteString(w, `{"Code":"insufficient_balance","Message":"pay me"}`)
		},
		"another task": func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == "GET" && r.URL.Path == wire.PathTask:
				_, _ = w.Write(wire.TaskOutput{Task: other}.Encode())
			case r.URL.Path == wire.PathTasks:
				_, _ = w.Write(many.Encode())
			case r.URL.Path == wire.PathTaskActivity:
				_, _ = w.Write(wire.TaskActivity{Running: -1}.Encode())
			default:
				_, _ = w.Write(other.Encode())
			}
		},
	} {
		c := lying(t, agent)
		for call, do := range taskCalls(c) {
			err := do()
			if eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
				t.Errorf("%s: %s: the error is %v", name, call, err)
			} else if msg := eqvps.AsError(err).Message; msg != eqvps.CodeUnreachable.Kind().Message {
				t.Errorf("%s: %s: people read %q", name, call, msg)
			}
		}
	}
}

// A guest from before there were tasks has none: that is no reason to end it,
// and whoever wants one is told what to do.
func TestTasksOfAnOldGuest(t *testing.T) {
	host, port := net.Pipe()
	ep := &channel.Endpoint{
		Port: port, Version: tasksSince - 1, Go: func([]byte) error { return nil },
		Serve: func(c net.Conn) {
			mux, err := channel.MuxGuest(c)
			if err != nil {
				panic(err)
			}
			_ = http.Serve(mux, http.NotFoundHandler())
			_ = mux.Close()
		},
	}
	go ep.Run()
	c, err := Connect(t.Context(), func(context.Context) (net.Conn, error) { return host, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); port.Close() })
	for call, do := range taskCalls(c) {
		want := eqvps.CodeInvalidValue
		if call == "activity" {
			want = ""
		}
		if err := do(); eqvps.ErrorCode(err) != want {
			t.Errorf("%s: %v", call, err)
		}
	}
}
