package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

// The fields, with the version that brought them. A change here is a change of the protocol: give it
// a number and a line in guest/version.go, and keep reading what older guests
// send.
func TestFieldsArePinned(t *testing.T) {
	want := map[string]string{
		"Identity": "Entropy []uint8; UnixNano int64; Hostname string; MachineID string; Env [][]uint8; KeepEnv bool",
		"Pong":     "Version int; UptimeNS int64; UnixNano int64",
		"Clock":    "UnixNano int64",
		"ExecHead": "Command []uint8; Argv [][]uint8; Cwd []uint8; Env [][]uint8; TimeoutNS int64",
		"Result":   "Code int; Signal string; TimedOut bool; OOM bool; DurationNS int64",
		"Entry":    "Name []uint8; Type string; Size int64; Mode uint32; MtimeN int64; Target []uint8",
		"Listing":  "Entries []wire.Entry; More bool",
		"Failure":  "Code string; Message string",
		// Version 2.
		"Task":         "ID string; Label []uint8; State string; Code int; Signal string; TimedOut bool; OOM bool; StartedNano int64; EndedNano int64; DurationNS int64; Stdout wire.Retained; Stderr wire.Retained",
		"Retained":     "Total int64; Dropped int64",
		"TaskOutput":   "Task wire.Task; Stdout wire.Chunk; Stderr wire.Chunk",
		"Chunk":        "Offset int64; Data []uint8",
		"Tasks":        "List [][]uint8",
		"TaskActivity": "Running int; SinceEnd int64",
		// Version 5.
		"EnvChange": "Set [][]uint8; Remove [][]uint8",
		// Version 6.
		"Progress": "Received int64; Done *wire.Entry",
		"Removal":  "Entries int64; Complete bool",
	}
	got := map[string]string{}
	for _, v := range []any{Identity{}, Pong{}, Clock{}, ExecHead{}, Result{}, Entry{}, Listing{}, Failure{},
		Task{}, Retained{}, TaskOutput{}, Chunk{}, Tasks{}, TaskActivity{}, EnvChange{}, Progress{}, Removal{}} {
		typ := reflect.TypeOf(v)
		var fields []string
		for i := range typ.NumField() {
			f := typ.Field(i)
			fields = append(fields, f.Name+" "+f.Type.String())
		}
		got[typ.Name()] = strings.Join(fields, "; ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The bytes of version 1, so that a codec cannot change under both sides at once.
func TestEncodingIsPinned(t *testing.T) {
	head := ExecHead{Command: []byte("ls"), Argv: [][]byte{[]byte("a"), {}}, Cwd: []byte("/"), Env: [][]byte{[]byte("A=1")}, TimeoutNS: -1}
	if got, want := fmt.Sprintf("%x", head.Encode()), "046c730402610002"+"2f0206413d3101"; got != want {
		t.Errorf("an exec head is %s, want %s", got, want)
	}
	res := Result{Code: 137, Signal: "SIGKILL", OOM: true, DurationNS: 1}
	if got, want := fmt.Sprintf("%x", res.Encode()), "92020e5349474b494c4c000202"; got != want {
		t.Errorf("a result is %s, want %s", got, want)
	}
	id := Identity{Entropy: []byte{1}, UnixNano: 2, Hostname: "h", MachineID: "m", Env: [][]byte{[]byte("A=1")}}
	if got, want := fmt.Sprintf("%x", id.Encode()), "020104026802"+"6d0206413d31"; got != want {
		t.Errorf("an identity is %s, want %s", got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	id := Identity{Entropy: []byte{0, 1, 255}, UnixNano: 1 << 60, Hostname: "h", MachineID: "m", Env: [][]byte{[]byte("A=\xff"), []byte("B=")}}
	var id2 Identity
	if err := id2.Decode(id.Encode()); err != nil || !cmp.Equal(id, id2) {
		t.Error(err, cmp.Diff(id, id2))
	}
	id.KeepEnv = true
	if err := id2.Decode(id.Encode()); err != nil || !cmp.Equal(id, id2) {
		t.Error(err, cmp.Diff(id, id2))
	}
	change := EnvChange{Set: [][]byte{[]byte("A=\xff")}, Remove: [][]byte{[]byte("B"), {}}}
	var change2 EnvChange
	if err := change2.Decode(change.Encode()); err != nil || !cmp.Equal(change, change2) {
		t.Error(err, cmp.Diff(change, change2))
	}
	head := ExecHead{Command: []byte("x"), Argv: [][]byte{[]byte("a"), []byte("\x80")}, Cwd: []byte("/\xfe"), TimeoutNS: 5}
	var head2 ExecHead
	if err := head2.Decode(head.Encode()); err != nil || !cmp.Equal(head, head2) {
		t.Error(err, cmp.Diff(head, head2))
	}
	pong := Pong{Version: 1, UptimeNS: 2, UnixNano: 3}
	var pong2 Pong
	if err := pong2.Decode(pong.Encode()); err != nil || pong != pong2 {
		t.Error(err, pong2)
	}
}

func TestReadOutput(t *testing.T) {
	result := Frame(FrameResult, Result{Code: 3, DurationNS: 9}.Encode())
	failed := func(s string) []byte { return Frame(FrameFailed, []byte(s)) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	type frame struct {
		s eqvps.Stream
		p string
	}
	for name, test := range map[string]struct {
		in   []byte
		out  []frame
		code eqvps.Code // of the error; "" none
		err  bool
	}{
		"result alone":       {in: result},
		"both streams":       {in: join(Frame(FrameStdout, []byte("a")), Frame(FrameStderr, []byte("b")), Frame(FrameStdout, nil), result), out: []frame{{eqvps.Stdout, "a"}, {eqvps.Stderr, "b"}}},
		"nothing":            {err: true},
		"no result":          {in: Frame(FrameStdout, []byte("a")), out: []frame{{eqvps.Stdout, "a"}}, err: true},
		"cut":                {in: result[:len(result)-1], err: true},
		"cut header":         {in: result[:3], err: true},
		"kind 0":             {in: Frame(0, nil), err: true},
		"kind 5":             {in: Frame(5, nil), err: true},
		"too long":           {in: Frame(FrameStdout, make([]byte, MaxFrame+1)), err: true},
		"result too long":    {in: Frame(FrameResult, make([]byte, maxResult+1)), err: true},
		"code 256":           {in: Frame(FrameResult, Result{Code: 256}.Encode()), err: true},
		"code -1":            {in: Frame(FrameResult, Result{Code: -1}.Encode()), err: true},
		"negative duration":  {in: Frame(FrameResult, Result{DurationNS: -1}.Encode()), err: true},
		"odd signal":         {in: Frame(FrameResult, Result{Signal: "\x1b[31m"}.Encode()), err: true},
		"garbage result":     {in: Frame(FrameResult, []byte("{}")), err: true},
		"a known failure":    {in: failed(`{"Code":"disk_full","Message":"Full."}`), code: eqvps.CodeDiskFull},
		"a code of ours":     {in: failed(`{"Code":"insufficient_balance","Message":"Pay here."}`), code: eqvps.CodeUnreachable},
		"malformed failure":  {in: failed(`{`), code: eqvps.CodeUnreachable},
		"terminal sequences": {in: failed(`{"Code":"disk_full","Message":"\u001b[2J"}`), code: eqvps.CodeDiskFull},
	} {
		t.Run(name, func(t *testing.T) {
			var got []frame
			r, err := ReadOutput(bytes.NewReader(test.in), func(s eqvps.Stream, p []byte) error {
				got = append(got, frame{s, string(p)})
				return nil
			})
			if diff := cmp.Diff(test.out, got, cmp.AllowUnexported(frame{})); diff != "" {
				t.Error(diff)
			}
			switch {
			case test.code != "":
				if eqvps.ErrorCode(err) != test.code {
					t.Errorf("the error is %v, want code %s", err, test.code)
				}
				if strings.ContainsAny(eqvps.AsError(err).Message, "\x1b$") || strings.Contains(eqvps.AsError(err).Message, "Pay") {
					t.Errorf("the guest's words reach people: %q", eqvps.AsError(err).Message)
				}
			case test.err != (err != nil):
				t.Errorf("the error is %v", err)
			case err == nil && r != (Result{Code: 3, DurationNS: 9}):
				t.Errorf("the result is %+v", r)
			}
		})
	}
}

func TestReadOutputStopsWithItsReceiver(t *testing.T) {
	stop := errors.New("enough")
	_, err := ReadOutput(io.MultiReader(bytes.NewReader(Frame(FrameStdout, []byte("a"))), iotestErr{}), func(eqvps.Stream, []byte) error { return stop })
	if oe := (*OutputError)(nil); !errors.As(err, &oe) || oe.Err != stop {
		t.Errorf("the error is %v, want the receiver's", err)
	}
}

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errors.New("read past the end") }

// A message that claims more than it has costs no memory.
func TestDecodeBounds(t *testing.T) {
	var e encoder
	e.bytes(nil)
	e.int(1 << 40)
	var h ExecHead
	if err := h.Decode(e); err == nil {
		t.Error("a list of 2^40 entries in an empty message is accepted")
	}
	if err := h.Decode(append(ExecHead{}.Encode(), 0)); err == nil {
		t.Error("bytes behind a message are accepted")
	}
}

func FuzzReadOutput(f *testing.F) {
	f.Add(Frame(FrameResult, Result{Code: 1}.Encode()))
	f.Add(append(Frame(FrameStdout, []byte("x")), Frame(FrameFailed, []byte(`{"Code":"disk_full"}`))...))
	f.Add([]byte{1, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		r, err := ReadOutput(bytes.NewReader(b), func(s eqvps.Stream, p []byte) error {
			if s != eqvps.Stdout && s != eqvps.Stderr || len(p) == 0 || len(p) > MaxFrame {
				t.Fatalf("stream %d gets %d bytes", s, len(p))
			}
			n += len(p)
			return nil
		})
		if n > len(b) {
			t.Fatalf("%d bytes became %d", len(b), n)
		}
		if err == nil && (r.Code < 0 || r.Code > 255) {
			t.Fatalf("exit code %d", r.Code)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(Identity{Entropy: []byte("x"), Env: [][]byte{[]byte("A=1")}}.Encode())
	f.Add(Identity{Entropy: []byte("x"), KeepEnv: true}.Encode())
	f.Add(ExecHead{Argv: [][]byte{[]byte("a")}}.Encode())
	f.Add(EnvChange{Set: [][]byte{[]byte("A=1")}, Remove: [][]byte{[]byte("B")}}.Encode())
	f.Add(Result{Signal: "SIGKILL"}.Encode())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var id Identity
		if id.Decode(b) == nil {
			var again Identity
			if err := again.Decode(id.Encode()); err != nil || !cmp.Equal(id, again) {
				t.Fatal(err, cmp.Diff(id, again))
			}
		}
		var h ExecHead
		_ = h.Decode(b)
		var r Result
		_ = r.Decode(b)
		var p Pong
		_ = p.Decode(b)
		var c EnvChange
		_ = c.Decode(b)
	})
}
