package agent

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// killWait is how long the answer to a kill waits for the end it causes.
const killWait = 5 * time.Second

// pipeBytes is what a pipe takes without a reader.
const pipeBytes = 64 << 10

// tasks are the background tasks of this machine. They belong to no session:
// a host that comes back finds them, and their output, as they are.
//
// Whoever holds a task's lock may take this one's, never the other way round.
type tasks struct {
	run   *runner
	spool *spool

	mu      sync.Mutex
	list    []*task // oldest first
	running int
	lastEnd time.Time
}

// task is one background task.
type task struct {
	id, label string
	begun     time.Time
	kill      context.CancelFunc
	done      chan struct{} // closed when it has ended

	retains bool // may hold blocks of the spool; guarded by tasks.mu

	mu             sync.Mutex
	stdout, stderr stream
	ended          time.Time // zero: it runs
	state          eqvps.TaskState
	result         wire.Result
}

// start starts a command as the task id, unless there is one of that id.
func (ts *tasks) start(id string, c command) (t *task, started bool, err error) {
	label := eqvps.StartTask{ExecRequest: eqvps.ExecRequest{Command: c.line, Argv: c.argv}}
	ts.mu.Lock()
	if t := ts.find(id); t != nil {
		ts.mu.Unlock()
		return t, false, nil
	}
	if ts.running >= eqvps.MaxRunningTasks {
		ts.mu.Unlock()
		return nil, false, eqvps.Errorf(eqvps.CodeTaskLimit, "%d tasks run in the sandbox, which is the most at once.", eqvps.MaxRunningTasks)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t = &task{
		// A part of a string would keep all of it.
		id: id, label: strings.Clone(label.Label()), begun: time.Now(), kill: cancel,
		done: make(chan struct{}), retains: true, state: eqvps.TaskRunning,
	}
	var forgotten *task
	if len(ts.list) == eqvps.MaxTasks {
		i := slices.IndexFunc(ts.list, (*task).isDone)
		forgotten = ts.list[i]
		ts.list = slices.Delete(ts.list, i, i+1)
	}
	ts.list = append(ts.list, t)
	ts.running++
	ts.mu.Unlock()
	if forgotten != nil {
		forgotten.drop(ts.spool)
	}
	go ts.runToEnd(ctx, t, c)
	return t, true, nil
}

// find is called with the lock held.
func (ts *tasks) find(id string) *task {
	for _, t := range ts.list {
		if t.id == id {
			return t
		}
	}
	return nil
}

func (t *task) isDone() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

func (ts *tasks) runToEnd(ctx context.Context, t *task, c command) {
	emit := func(frame []byte) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		to := &t.stdout
		if frame[0] == wire.FrameStderr {
			to = &t.stderr
		}
		to.write(ts.spool, frame[wire.FrameHeader:], ts.evict)
		return nil
	}
	var res wire.Result
	g, err := ts.run.groups.take()
	if err == nil {
		defer ts.run.groups.release(g)
		res, err = ts.run.run(ctx, g, c, emit)
	}
	if c.input != nil {
		_ = c.input.Close()
	}
	state := eqvps.TaskFailed
	switch {
	case err != nil && ctx.Err() == nil: // not the command's fault
		_ = emit(wire.Frame(wire.FrameStderr, []byte("eqvps: the task could not be run: "+reason(err)+"\n")))
		res = wire.Result{Code: exitCannot}
	case res.TimedOut:
		state = eqvps.TaskTimeout
	case ctx.Err() != nil && res.Signal == "SIGKILL":
		state = eqvps.TaskKilled
		res.OOM = false
	case res.Code == 0:
		state = eqvps.TaskDone
	}
	t.kill() // frees the context
	now := time.Now()
	t.mu.Lock()
	t.ended, t.state, t.result = now, state, res
	t.mu.Unlock()
	ts.mu.Lock()
	ts.running--
	ts.lastEnd = now
	close(t.done)
	ts.mu.Unlock()
}

// evict frees the blocks of the task that has been over for longest, and
// reports whether there was one.
func (ts *tasks) evict() bool {
	ts.mu.Lock()
	var oldest *task
	for _, t := range ts.list {
		if t.retains && t.isDone() && (oldest == nil || t.ended.Before(oldest.ended)) {
			oldest = t
		}
	}
	if oldest != nil {
		oldest.retains = false
	}
	ts.mu.Unlock()
	if oldest == nil {
		return false
	}
	oldest.drop(ts.spool)
	return true
}

// drop gives up what the task has in the spool.
func (t *task) drop(s *spool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stdout.drop(s)
	t.stderr.drop(s)
}

// status is called with the lock held.
func (t *task) status() wire.Task {
	w := wire.Task{
		ID: t.id, Label: []byte(t.label), State: string(t.state),
		Code: t.result.Code, Signal: t.result.Signal, TimedOut: t.result.TimedOut, OOM: t.result.OOM,
		StartedNano: t.begun.UnixNano(), DurationNS: int64(time.Since(t.begun)),
		Stdout: t.stdout.Retained, Stderr: t.stderr.Retained,
	}
	if !t.ended.IsZero() {
		w.EndedNano, w.DurationNS = t.ended.UnixNano(), int64(t.ended.Sub(t.begun))
	}
	return w
}

func (t *task) encoded() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status().Encode()
}

// named returns the task that a request is about.
func (ts *tasks) named(r *http.Request) (*task, url.Values, error) {
	q := r.URL.Query()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.find(q.Get(wire.ParamTask)); t != nil {
		return t, q, nil
	}
	return nil, nil, eqvps.Errorf(eqvps.CodeTaskNotFound, "There is no such task in the sandbox.")
}

func (a *Agent) startTask(w http.ResponseWriter, r *http.Request) error {
	id := r.URL.Query().Get(wire.ParamTask)
	c, err := readCommand(r.Body)
	if err != nil {
		return err
	}
	if !eqvps.ValidTaskID(id) {
		return eqvps.Errorf(eqvps.CodeInvalidRequest, "The id of the task is not one.")
	}
	c.env = a.env.list(c.env)
	if len(c.stdin) > pipeBytes {
		if c.input, err = a.tasks.spool.input(c.stdin); err != nil {
			return fileError(a.tasks.spool.dir, err)
		}
		c.stdin = nil
	}
	t, started, err := a.tasks.start(id, c)
	if !started && c.input != nil {
		_ = c.input.Close()
	}
	if err != nil {
		return err
	}
	return replyBytes(w, t.encoded())
}

func (a *Agent) readTask(w http.ResponseWriter, r *http.Request) error {
	t, q, err := a.tasks.named(r)
	if err != nil {
		return err
	}
	var n [3]int64
	for i, name := range []string{wire.ParamStdout, wire.ParamStderr, wire.ParamMax} {
		if n[i], err = strconv.ParseInt(q.Get(name), 10, 64); err != nil || n[i] < 0 {
			return badRequest(err)
		}
	}
	limit := int(min(n[2], eqvps.MaxTaskReadBytes))
	t.mu.Lock()
	out := wire.TaskOutput{Stdout: t.stdout.read(a.tasks.spool, n[0], limit), Stderr: t.stderr.read(a.tasks.spool, n[1], limit)}
	out.Task = t.status()
	t.mu.Unlock()
	return replyBytes(w, out.Encode())
}

func (a *Agent) listTasks(w http.ResponseWriter, _ *http.Request) error {
	a.tasks.mu.Lock()
	list := slices.Clone(a.tasks.list)
	a.tasks.mu.Unlock()
	slices.Reverse(list)
	var out wire.Tasks
	for _, t := range list {
		out.List = append(out.List, t.encoded())
	}
	return replyBytes(w, out.Encode())
}

func (a *Agent) killTask(w http.ResponseWriter, r *http.Request) error {
	t, _, err := a.tasks.named(r)
	if err != nil {
		return err
	}
	t.kill()
	select {
	case <-t.done:
	case <-time.After(killWait): // a process in the kernel's hands ends later
	case <-r.Context().Done():
	}
	return replyBytes(w, t.encoded())
}

func (a *Agent) taskActivity(w http.ResponseWriter, _ *http.Request) error {
	a.tasks.mu.Lock()
	defer a.tasks.mu.Unlock()
	out := wire.TaskActivity{Running: a.tasks.running, SinceEnd: -1}
	if !a.tasks.lastEnd.IsZero() {
		out.SinceEnd = int64(time.Since(a.tasks.lastEnd))
	}
	return replyBytes(w, out.Encode())
}
