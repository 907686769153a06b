package client

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps/wire"
)

// FuzzEvent: a line means here what it means to encoding/json, whichever way it
// is read.
func FuzzEvent(f *testing.F) {
	for _, s := range []string{
		`{"type":"stdout","text":"a\nb\t\"\\ \/\u001b[1mhäß\u0007"}`, `{"type":"stderr","text":"\u00e9\u2028\ud83d\ude00"}`,
		`{"type":"stdout","text":"a"b"}`, `{"type":"stdout","text":"a\"}`, `{"type":"stdout","text":"a\\"}`, `{"type":"stdout","text":"\u00"}`,
		`{"type":"stdout","text":"` + "\x01" + `"}`, `{"type":"stdout","text":"` + "\xff" + `"}`, `{"type":"stdout","text":"a","text":"b"}`,
		`{"type":"stdout","data_base64":"/w=="}`, `{"type":"exit","exit_code":3}`, `{"type":"stdout","text":"x"} `, `{"type":"stdout","text":"\u00F1\u001F\u001g"}`, "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		for _, line := range []string{line, `{"type":"stdout","text":"` + line + `"}`} {
			var want wire.Event
			wantErr := json.Unmarshal([]byte(line), &want)
			got, err := decodeEvent([]byte(line))
			if (err == nil) != (wantErr == nil) || err == nil && !cmp.Equal(got, want) {
				t.Fatalf("%q is %+v, %v; want %+v, %v", line, got, err, want, wantErr)
			}
		}
	})
}

// BenchmarkEvent reads output of 250 kB.
func BenchmarkEvent(b *testing.B) {
	line, err := json.Marshal(wire.Event{Type: "stdout", Text: strings.Repeat("What a program tells of its work, line by line.\n", 5000)})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, err := decodeEvent(line); err != nil {
			b.Fatal(err)
		}
	}
}
