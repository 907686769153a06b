package eqvps

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of background tasks.
const (
	// TaskRetainBytes is kept of each stream of a task: its end. Less is kept
	// where a sandbox's tasks together retain more than its agent has room for.
	TaskRetainBytes = 8 << 20
	// DefaultTaskReadBytes and MaxTaskReadBytes bound what one read returns of
	// each stream.
	DefaultTaskReadBytes = 256 << 10
	MaxTaskReadBytes     = 1 << 20
	// MaxRunningTasks may run at once in one sandbox.
	MaxRunningTasks = 64
	// MaxTasks are remembered of one sandbox; the oldest that has ended goes
	// first.
	MaxTasks = 256
	// MaxTaskLabelBytes is what a task shows of its command.
	MaxTaskLabelBytes = 200
)

// TaskState is where a background task is in its life.
type TaskState string

// The states. A task that ended by itself is done with exit code 0 and failed
// with any other.
const (
	TaskRunning TaskState = "running"
	TaskDone    TaskState = "done"
	TaskFailed  TaskState = "failed"
	TaskKilled  TaskState = "killed"  // by a call
	TaskTimeout TaskState = "timeout" // its time was over: exit code 124
)

// TaskStates lists them in the order people read them.
var TaskStates = []TaskState{TaskRunning, TaskDone, TaskFailed, TaskKilled, TaskTimeout}

// Task is a command that runs in the background of a sandbox.
type Task struct {
	ID         string
	Label      string // the command, shortened
	State      TaskState
	ExitStatus           // as far as it has ended; Duration is how long it ran, up to now
	StartedAt  time.Time // by the sandbox's clock
	EndedAt    time.Time // zero: it runs
	Stdout     Retained
	Stderr     Retained
}

// Ended reports whether the task is over.
func (t *Task) Ended() bool { return t.State != TaskRunning }

// Retained tells how much of a stream there is.
type Retained struct {
	Total   int64 // bytes written
	Dropped int64 // of these, how many of the first are gone
}

// ReadTask selects output: what follows an offset in each stream.
type ReadTask struct {
	Stdout, Stderr int64 // offsets in bytes, from the start of the stream
	Max            int   // bytes of each stream; 0: none, the state only
}

// Validate checks the request.
func (r ReadTask) Validate() error {
	if r.Stdout < 0 || r.Stderr < 0 {
		return Errorf(CodeInvalidRequest, "An offset must not be negative.")
	}
	if r.Max < 0 || r.Max > MaxTaskReadBytes {
		return Errorf(CodeInvalidRequest, "max_bytes must be 0 to %d.", MaxTaskReadBytes)
	}
	return nil
}

// TaskOutput is a task and a part of what it printed.
type TaskOutput struct {
	Task           Task
	Stdout, Stderr Chunk
}

// Chunk is a part of a stream. Where the offset asked for is gone, it begins
// with the oldest byte that is left; where it lies beyond the end, it is empty
// and begins at the end.
type Chunk struct {
	Offset  int64 // of the first byte
	Skipped int64 // bytes between the offset asked for and this one: they are gone
	Data    []byte
}

// Next is where the next read goes on.
func (c Chunk) Next() int64 { return c.Offset + int64(len(c.Data)) }

// CutText cuts a chunk of text between characters: what is incomplete at its
// end waits for the next read. At the end of all output (ended) nothing more
// comes, so it stays. Bytes that are no text are left alone.
func (c Chunk) CutText(total int64, ended bool) Chunk {
	if c.Skipped > 0 {
		whole := cutStart(c.Data)
		lost := int64(len(c.Data) - len(whole))
		c.Offset, c.Skipped, c.Data = c.Offset+lost, c.Skipped+lost, whole
	}
	if !ended || c.Next() < total {
		c.Data = cutEnd(c.Data)
	}
	return c
}

// StartTask is a command to run in the background. Its Timeout may be longer
// than a foreground command's; 0 is the sandbox's remaining life.
type StartTask struct {
	// ID is chosen by the host, so that a task can be found again whose start
	// was never answered. Starting the same id again is no error and starts
	// nothing.
	ID string
	ExecRequest
}

// Validate checks the request for a sandbox that lives for another left, and
// fills in defaults.
func (r *StartTask) Validate(left time.Duration) error {
	if err := r.validateCommand(); err != nil {
		return err
	}
	if r.Timeout == 0 {
		r.Timeout = left
	} else if err := r.validateTaskTimeout(left); err != nil {
		return err
	}
	if r.ID == "" {
		r.ID = newID(taskPrefix)
	}
	return nil
}

// ValidateCommand checks all of the request that does not depend on its
// sandbox.
func (r *StartTask) ValidateCommand() error {
	if err := r.validateCommand(); err != nil || r.Timeout == 0 {
		return err
	}
	return r.validateTaskTimeout(MaxPersistentTTL)
}

func (r *StartTask) validateTaskTimeout(left time.Duration) error {
	switch {
	case r.Timeout < time.Second:
		return Errorf(CodeInvalidTimeout, "The timeout must be at least 1 second.")
	case r.Timeout > left:
		return Errorf(CodeInvalidTimeout, "A background task may run at most as long as its sandbox: another %d seconds. Leave the timeout out for that.", int64(left.Seconds()))
	}
	return nil
}

// Label is what the task shows of its command.
func (r *StartTask) Label() string {
	s := r.Command
	if s == "" {
		s = strings.Join(r.Argv, " ")
	}
	s = strings.ToValidUTF8(s[:min(len(s), MaxTaskLabelBytes+utf8.UTFMax)], "\uFFFD")
	if len(s) <= MaxTaskLabelBytes {
		return s
	}
	const more = "…"
	return string(cutEnd([]byte(s[:MaxTaskLabelBytes-len(more)]))) + more
}

// ValidTaskID reports whether id has the form of a task's id.
func ValidTaskID(id string) bool { return validID(id, taskPrefix) }

// TaskActivity tells whether the tasks of a sandbox keep it from being idle.
type TaskActivity struct {
	Running int
	LastEnd time.Time // of those that have ended; zero: none has
}

// Tasker runs background tasks in one sandbox. They outlive the connection
// that started them. Codes: CodeTaskNotFound, CodeTaskLimit.
type Tasker interface {
	// StartTask returns when the task is on its way.
	StartTask(ctx context.Context, req StartTask) (*Task, error)
	// ReadTask returns a task's state and what follows an offset of its output.
	ReadTask(ctx context.Context, id string, r ReadTask) (*TaskOutput, error)
	// ListTasks returns all tasks that are remembered, newest first.
	ListTasks(ctx context.Context) ([]*Task, error)
	// KillTask ends a task and all processes it has started, and returns how
	// it ended. Killing one that has ended is no error.
	KillTask(ctx context.Context, id string) (*Task, error)
}
