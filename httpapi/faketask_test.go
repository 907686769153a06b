package httpapi_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
)

// fakeTask is a task whose output comes a piece a read.
type fakeTask struct {
	eqvps.Task
	out, err []byte
	pieces   []string // still to come; it ends with the last one
}

// StartTask runs a command of Exec to its end at once, but for two: "sleep"
// ends when it is killed, "steps" prints a piece whenever it is read.
func (f *fake) StartTask(ctx context.Context, req eqvps.StartTask) (*eqvps.Task, error) {
	if err := req.Validate(time.Hour); err != nil {
		return nil, err
	}
	t := &fakeTask{Task: eqvps.Task{ID: req.ID, Label: req.Label(), State: eqvps.TaskRunning, StartedAt: epoch}}
	t.Duration = 1500 * time.Millisecond
	switch req.Command {
	case "crowded":
		return nil, eqvps.WrapError(eqvps.CodeTaskLimit, nil)
	case "sleep":
		t.out = []byte("asleep\n")
	case "steps":
		t.pieces = []string{"1\n", "2\xc3", "\xa43\xff", "4\n\xe2\x82"}
	default:
		st, err := f.Exec(ctx, req.ExecRequest, func(s eqvps.Stream, p []byte) error {
			if s == eqvps.Stderr {
				t.err = append(t.err, p...)
			} else {
				t.out = append(t.out, p...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		t.end(st, eqvps.TaskFailed)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tasks = slices.Insert(f.tasks, 0, t)
	return t.now(), nil
}

func (t *fakeTask) end(st eqvps.ExitStatus, otherwise eqvps.TaskState) {
	t.ExitStatus, t.State, t.EndedAt = st, otherwise, epoch.Add(st.Duration)
	switch {
	case st.TimedOut:
		t.State = eqvps.TaskTimeout
	case st.Code == 0:
		t.State = eqvps.TaskDone
	}
}

func (t *fakeTask) now() *eqvps.Task {
	c := t.Task
	c.Stdout.Total, c.Stderr.Total = int64(len(t.out)), int64(len(t.err))
	if strings.HasPrefix(t.Label, "flood") { // of which the first are gone
		c.Stdout.Dropped = 1 << 20
	}
	return &c
}

func (f *fake) task(id string) (*fakeTask, error) {
	for _, t := range f.tasks {
		if t.ID == id {
			return t, nil
		}
	}
	return nil, eqvps.WrapError(eqvps.CodeTaskNotFound, nil)
}

func (f *fake) ReadTask(_ context.Context, id string, r eqvps.ReadTask) (*eqvps.TaskOutput, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.task(id)
	if err != nil {
		return nil, err
	}
	if len(t.pieces) > 0 && r.Max > 0 {
		t.out = append(t.out, t.pieces[0]...)
		if t.pieces = t.pieces[1:]; len(t.pieces) == 0 {
			t.end(eqvps.ExitStatus{}, eqvps.TaskDone)
		}
	}
	out := &eqvps.TaskOutput{Task: *t.now()}
	chunk := func(all []byte, asked int64, of eqvps.Retained) eqvps.Chunk {
		from := min(max(asked, of.Dropped), of.Total)
		rest := all[from:]
		return eqvps.Chunk{Offset: from, Skipped: max(0, from-asked), Data: rest[:min(r.Max, len(rest))]}
	}
	out.Stdout, out.Stderr = chunk(t.out, r.Stdout, out.Task.Stdout), chunk(t.err, r.Stderr, out.Task.Stderr)
	return out, nil
}

func (f *fake) ListTasks(context.Context) ([]*eqvps.Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*eqvps.Task
	for _, t := range f.tasks {
		out = append(out, t.now())
	}
	return out, nil
}

func (f *fake) KillTask(_ context.Context, id string) (*eqvps.Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.task(id)
	if err != nil {
		return nil, err
	}
	if !t.Ended() {
		t.end(eqvps.ExitStatus{Code: 137, Signal: "SIGKILL", Duration: 2 * time.Second}, eqvps.TaskKilled)
	}
	return t.now(), nil
}
