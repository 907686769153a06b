package wire

import (
	"fmt"
	"slices"
	"time"

	"github.com/eqvps/eqvps"
)

// Task is a background task. Times are by the guest's clock.
type Task struct {
	ID            string
	Label         []byte
	State         string
	Code          int
	Signal        string
	TimedOut, OOM bool
	StartedNano   int64
	EndedNano     int64 // 0: it runs
	DurationNS    int64 // how long it ran, up to now
	Stdout        Retained
	Stderr        Retained
}

// Retained is how much of a stream there is.
type Retained struct{ Total, Dropped int64 }

// TaskOutput is a task and a part of its output, from the offsets asked for or
// the nearest there are.
type TaskOutput struct {
	Task           Task
	Stdout, Stderr Chunk
}

// Chunk is a part of a stream.
type Chunk struct {
	Offset int64
	Data   []byte
}

// Tasks is a list of encoded Tasks, newest first.
type Tasks struct{ List [][]byte }

// TaskActivity tells how many tasks run, and how long ago the last one ended.
type TaskActivity struct {
	Running  int
	SinceEnd int64 // nanoseconds; negative: none has ended
}

func (v Task) encode(e *encoder) {
	e.bytes([]byte(v.ID))
	e.bytes(v.Label)
	e.bytes([]byte(v.State))
	e.int(int64(v.Code))
	e.bytes([]byte(v.Signal))
	e.bool(v.TimedOut)
	e.bool(v.OOM)
	e.int(v.StartedNano)
	e.int(v.EndedNano)
	e.int(v.DurationNS)
	for _, r := range []Retained{v.Stdout, v.Stderr} {
		e.int(r.Total)
		e.int(r.Dropped)
	}
}

func (v *Task) decode(d *decoder) {
	v.ID = string(d.bytes())
	v.Label = d.bytes()
	v.State = string(d.bytes())
	v.Code = int(d.int())
	v.Signal = string(d.bytes())
	v.TimedOut = d.bool()
	v.OOM = d.bool()
	v.StartedNano = d.int()
	v.EndedNano = d.int()
	v.DurationNS = d.int()
	for _, r := range []*Retained{&v.Stdout, &v.Stderr} {
		r.Total = d.int()
		r.Dropped = d.int()
	}
}

// Encode returns the wire form.
func (v Task) Encode() []byte {
	var e encoder
	v.encode(&e)
	return e
}

// Decode reads the wire form.
func (v *Task) Decode(b []byte) error {
	d := decoder{b: b}
	v.decode(&d)
	return d.end()
}

// Encode returns the wire form.
func (v TaskOutput) Encode() []byte {
	e := make(encoder, 0, maxTask+len(v.Stdout.Data)+len(v.Stderr.Data))
	v.Task.encode(&e)
	for _, c := range []Chunk{v.Stdout, v.Stderr} {
		e.int(c.Offset)
		e.bytes(c.Data)
	}
	return e
}

// Decode reads the wire form. The output lies in b.
func (v *TaskOutput) Decode(b []byte) error {
	d := decoder{b: b}
	v.Task.decode(&d)
	for _, c := range []*Chunk{&v.Stdout, &v.Stderr} {
		c.Offset = d.int()
		c.Data = d.bytes()
	}
	return d.end()
}

// Encode returns the wire form.
func (v Tasks) Encode() []byte {
	var e encoder
	e.list(v.List)
	return e
}

// Decode reads the wire form.
func (v *Tasks) Decode(b []byte) error {
	d := decoder{b: b}
	v.List = d.list()
	return d.end()
}

// Encode returns the wire form.
func (v TaskActivity) Encode() []byte {
	var e encoder
	e.int(int64(v.Running))
	e.int(v.SinceEnd)
	return e
}

// Decode reads the wire form.
func (v *TaskActivity) Decode(b []byte) error {
	d := decoder{b: b}
	v.Running = int(d.int())
	v.SinceEnd = d.int()
	return d.end()
}

// Domain returns the task, or an error where the guest says what cannot be.
func (v Task) Domain() (*eqvps.Task, error) {
	t := &eqvps.Task{
		ID: v.ID, Label: clean(v.Label), State: eqvps.TaskState(v.State),
		ExitStatus: eqvps.ExitStatus{
			Code: v.Code, Signal: v.Signal, TimedOut: v.TimedOut, OOM: v.OOM, Duration: time.Duration(v.DurationNS),
		},
		StartedAt: time.Unix(0, v.StartedNano),
		Stdout:    eqvps.Retained(v.Stdout), Stderr: eqvps.Retained(v.Stderr),
	}
	if v.EndedNano != 0 {
		t.EndedAt = time.Unix(0, v.EndedNano)
	}
	whole := func(r Retained) bool { return r.Dropped >= 0 && r.Dropped <= r.Total }
	switch {
	case !eqvps.ValidTaskID(v.ID), !slices.Contains(eqvps.TaskStates, t.State), t.Ended() != (v.EndedNano != 0),
		v.Code < 0, v.Code > 255, len(v.Signal) > 20, !plain(v.Signal), v.DurationNS < 0, !whole(v.Stdout), !whole(v.Stderr):
		return nil, fmt.Errorf("bad task: %.200q", fmt.Sprint(v))
	}
	return t, nil
}

// clean is a label as it is shown: text of bounded length.
func clean(label []byte) string {
	r := eqvps.StartTask{ExecRequest: eqvps.ExecRequest{Command: string(label[:min(len(label), maxTask)])}}
	return r.Label()
}

// Domain returns the output that answers a request.
func (v TaskOutput) Domain(r eqvps.ReadTask) (*eqvps.TaskOutput, error) {
	t, err := v.Task.Domain()
	if err != nil {
		return nil, err
	}
	out := &eqvps.TaskOutput{Task: *t}
	if out.Stdout, err = v.Stdout.domain(r.Stdout, r.Max, t.Stdout); err == nil {
		out.Stderr, err = v.Stderr.domain(r.Stderr, r.Max, t.Stderr)
	}
	return out, err
}

// domain checks that the chunk is the one asked for: without a gap that is not
// told and without a repeat.
func (c Chunk) domain(asked int64, limit int, r eqvps.Retained) (eqvps.Chunk, error) {
	if want := Clamp(asked, r); c.Offset != want || len(c.Data) > limit || int64(len(c.Data)) > r.Total-c.Offset {
		return eqvps.Chunk{}, fmt.Errorf("bad output: %d bytes at %d for offset %d of %+v", len(c.Data), c.Offset, asked, r)
	}
	return eqvps.Chunk{Offset: c.Offset, Skipped: max(0, c.Offset-asked), Data: c.Data}, nil
}

// Clamp returns the offset nearest to the one asked for that a stream has.
func Clamp(asked int64, r eqvps.Retained) int64 { return min(max(asked, r.Dropped), r.Total) }

// Domain returns the activity as of now.
func (v TaskActivity) Domain(now time.Time) (eqvps.TaskActivity, error) {
	if v.Running < 0 {
		return eqvps.TaskActivity{}, fmt.Errorf("bad activity: %+v", v)
	}
	a := eqvps.TaskActivity{Running: v.Running}
	if v.SinceEnd >= 0 {
		a.LastEnd = now.Add(-time.Duration(v.SinceEnd))
	}
	return a, nil
}
