package wire

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
)

// Task is a background task.
type Task struct {
	TaskID         string     `json:"task_id" doc:"Its id: task_ and 20 hex digits."`
	State          string     `json:"state" enum:"running,done,failed,killed,timeout" doc:"done: it ended by itself with exit code 0; failed: with another; killed: by a call; timeout: its time was over."`
	Command        string     `json:"command" doc:"The command, shortened to 200 bytes."`
	ExitCode       *int       `json:"exit_code" doc:"The shell's: 128+n for signal n, 124 at the timeout; null while it runs."`
	Signal         *string    `json:"signal" doc:"The signal that ended it, e.g. SIGKILL; null when it exited by itself, or runs."`
	TimedOut       bool       `json:"timed_out" doc:"The whole process tree was killed at the timeout."`
	OOM            bool       `json:"oom" doc:"It was killed because the sandbox's memory was used up."`
	StartedAt      time.Time  `json:"started_at" doc:"By the sandbox's clock."`
	EndedAt        *time.Time `json:"ended_at" doc:"null: it runs."`
	RunningSeconds float64    `json:"running_seconds" doc:"How long it ran, up to now."`
	StdoutTotal    int64      `json:"stdout_total" doc:"Bytes printed in all, kept or not."`
	StderrTotal    int64      `json:"stderr_total"`
	StdoutDropped  int64      `json:"stdout_dropped" doc:"Of these, how many of the first are gone: the last 8 MiB are kept."`
	StderrDropped  int64      `json:"stderr_dropped"`
}

// NewTask renders a task.
func NewTask(t *eqvps.Task) Task {
	out := Task{
		TaskID: t.ID, State: string(t.State), Command: t.Label,
		StartedAt: t.StartedAt.UTC(), EndedAt: optionalTime(t.EndedAt), RunningSeconds: seconds(t.Duration),
		StdoutTotal: t.Stdout.Total, StderrTotal: t.Stderr.Total, StdoutDropped: t.Stdout.Dropped, StderrDropped: t.Stderr.Dropped,
	}
	if t.Ended() {
		out.ExitCode, out.Signal, out.TimedOut, out.OOM = &t.Code, optional(t.Signal), t.TimedOut, t.OOM
	}
	return out
}

// TaskList is the tasks of a sandbox, newest first.
type TaskList struct {
	Data []Task `json:"data" nullable:"false"`
}

// TaskOutput is a task and what it has printed from the offsets asked for on.
type TaskOutput struct {
	Task
	Stdout           string `json:"stdout" doc:"Output as text, cut between characters; bytes that are not UTF-8 are replaced."`
	Stderr           string `json:"stderr"`
	StdoutBase64     []byte `json:"stdout_base64,omitempty" doc:"The same as bytes: when it is not UTF-8, or when asked for."`
	StderrBase64     []byte `json:"stderr_base64,omitempty"`
	StdoutNextOffset int64  `json:"stdout_next_offset" doc:"Where the next read goes on. When the task has ended and this is stdout_total, there is no more."`
	StderrNextOffset int64  `json:"stderr_next_offset"`
	StdoutSkipped    int64  `json:"stdout_skipped" doc:"Bytes between the offset asked for and the first one returned: they were gone."`
	StderrSkipped    int64  `json:"stderr_skipped"`
}

// NewTaskOutput renders output; raw asks for the bytes in any case, uncut.
func NewTaskOutput(o *eqvps.TaskOutput, raw bool) TaskOutput {
	out := TaskOutput{Task: NewTask(&o.Task)}
	render := func(c eqvps.Chunk, total int64, text *string, data *[]byte, next, skipped *int64) {
		if !raw {
			c = c.CutText(total, o.Task.Ended())
		}
		*text, *next, *skipped = string(c.Data), c.Next(), c.Skipped
		if !utf8.Valid(c.Data) {
			*text = strings.ToValidUTF8(*text, "\uFFFD")
		} else if !raw {
			return
		}
		*data = c.Data
	}
	render(o.Stdout, o.Task.Stdout.Total, &out.Stdout, &out.StdoutBase64, &out.StdoutNextOffset, &out.StdoutSkipped)
	render(o.Stderr, o.Task.Stderr.Total, &out.Stderr, &out.StderrBase64, &out.StderrNextOffset, &out.StderrSkipped)
	return out
}

// Task returns the command as a background task, checked as far as can be
// without its sandbox.
func (r ExecRequest) Task() (eqvps.StartTask, error) {
	req, err := r.request()
	if err != nil {
		return eqvps.StartTask{}, err
	}
	return r.task(req)
}

// Task is like ExecRequest's.
func (r RunRequest) Task() (eqvps.StartTask, error) {
	req, err := r.request()
	if err != nil {
		return eqvps.StartTask{}, err
	}
	return r.task(req)
}

func (o Options) task(req eqvps.ExecRequest) (eqvps.StartTask, error) {
	if o.Encoding != "" {
		return eqvps.StartTask{}, eqvps.Errorf(eqvps.CodeInvalidValue, "A background task has no encoding; name it when its output is read.")
	}
	if o.OnDisconnect != "" {
		return eqvps.StartTask{}, eqvps.Errorf(eqvps.CodeInvalidValue, "A background task belongs to no connection; leave on_disconnect out.")
	}
	t := eqvps.StartTask{ExecRequest: req}
	return t, t.ValidateCommand()
}
