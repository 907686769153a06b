package wire

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

const taskID = "task_0123456789abcdef0123"

func testTask() Task {
	return Task{
		ID: taskID, Label: []byte("ls"), State: "failed", Code: 137, Signal: "SIGKILL", OOM: true,
		StartedNano: 5, EndedNano: 9, DurationNS: 4, Stdout: Retained{30, 10}, Stderr: Retained{2, 0},
	}
}

// The bytes of version 2.
func TestTaskEncodingIsPinned(t *testing.T) {
	want := "327461736b5f3031323334353637383961626364656630313233" + "046c73" + "0c6661696c6564" + "9202" + "0e5349474b494c4c" + "0002" + "0a1208" + "3c14" + "0400"
	if got := fmt.Sprintf("%x", testTask().Encode()); got != want {
		t.Errorf("a task is %s, want %s", got, want)
	}
}

func TestTaskRoundTrip(t *testing.T) {
	out := TaskOutput{Task: testTask(), Stdout: Chunk{10, []byte("a\xff")}, Stderr: Chunk{2, []byte{}}}
	var again TaskOutput
	if err := again.Decode(out.Encode()); err != nil || !cmp.Equal(out, again) {
		t.Error(err, cmp.Diff(out, again))
	}
	list := Tasks{List: [][]byte{testTask().Encode(), testTask().Encode()}}
	var list2 Tasks
	if err := list2.Decode(list.Encode()); err != nil || !cmp.Equal(list, list2) {
		t.Error(err, cmp.Diff(list, list2))
	}
	a := TaskActivity{Running: 3, SinceEnd: -1}
	var a2 TaskActivity
	if err := a2.Decode(a.Encode()); err != nil || a != a2 {
		t.Error(err, a2)
	}
}

// What a guest says of its tasks is held against what can be.
func TestLyingTasks(t *testing.T) {
	ask := eqvps.ReadTask{Stdout: 15, Stderr: 0, Max: 10}
	good := TaskOutput{Task: testTask(), Stdout: Chunk{15, []byte("0123456789")}, Stderr: Chunk{0, []byte("ab")}}
	if _, err := good.Domain(ask); err != nil {
		t.Fatal(err)
	}
	for name, lie := range map[string]func(*TaskOutput){
		"id":               func(o *TaskOutput) { o.Task.ID = "../x" },
		"state":            func(o *TaskOutput) { o.Task.State = "paid" },
		"ended, but runs":  func(o *TaskOutput) { o.Task.State = "running" },
		"over, not ended":  func(o *TaskOutput) { o.Task.EndedNano = 0 },
		"exit code":        func(o *TaskOutput) { o.Task.Code = 256 },
		"signal":           func(o *TaskOutput) { o.Task.Signal = "\x1b[2J" },
		"duration":         func(o *TaskOutput) { o.Task.DurationNS = -1 },
		"negative total":   func(o *TaskOutput) { o.Task.Stdout.Total = -1 },
		"negative dropped": func(o *TaskOutput) { o.Task.Stderr.Dropped = -1 },
		"dropped > total":  func(o *TaskOutput) { o.Task.Stderr.Dropped = 3 },
		"a repeat":         func(o *TaskOutput) { o.Stdout.Offset = 14 },
		"a gap":            func(o *TaskOutput) { o.Stdout.Offset = 16 },
		"negative offset":  func(o *TaskOutput) { o.Stderr.Offset = math.MinInt64 },
		"too much":         func(o *TaskOutput) { o.Stdout.Data = make([]byte, 11) },
		"beyond the end":   func(o *TaskOutput) { o.Stderr.Data = []byte("abc") },
	} {
		o := good
		lie(&o)
		if _, err := o.Domain(ask); err == nil {
			t.Errorf("%s: believed", name)
		}
	}
	long := testTask()
	long.Label = []byte(strings.Repeat("\xff", 1<<20))
	if got, err := long.Domain(); err != nil || len(got.Label) > eqvps.MaxTaskLabelBytes {
		t.Errorf("a label of %d bytes, %v", len(got.Label), err)
	}
}

func FuzzTaskReplies(f *testing.F) {
	f.Add(TaskOutput{Task: testTask(), Stdout: Chunk{10, []byte("abc")}}.Encode(), int64(10), int64(0))
	f.Add(Tasks{List: [][]byte{testTask().Encode()}}.Encode(), int64(0), int64(0))
	f.Add(TaskActivity{Running: 1, SinceEnd: math.MaxInt64}.Encode(), int64(math.MaxInt64), int64(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, int64(0), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, outAt, errAt int64) {
		r := eqvps.ReadTask{Stdout: outAt, Stderr: errAt, Max: 1000}
		if r.Validate() != nil {
			return
		}
		var o TaskOutput
		if o.Decode(b) == nil {
			if got, err := o.Domain(r); err == nil {
				for asked, c := range map[int64]eqvps.Chunk{outAt: got.Stdout, errAt: got.Stderr} {
					if outAt != errAt && (c.Next() < 0 || len(c.Data) > r.Max || c.Offset > asked && c.Offset-asked != c.Skipped) {
						t.Fatalf("asked for %d, got %+v", asked, c)
					}
				}
			}
		}
		var l Tasks
		if l.Decode(b) == nil {
			for _, e := range l.List {
				var one Task
				if one.Decode(e) == nil {
					_, _ = one.Domain()
				}
			}
		}
		var a TaskActivity
		if a.Decode(b) == nil {
			if got, err := a.Domain(time.Now()); err == nil && got.LastEnd.After(time.Now()) {
				t.Fatalf("ended in the future: %+v", got)
			}
		}
	})
}
