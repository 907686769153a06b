package httpapi

import (
	"encoding/json"
	"sync"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// eventStream writes events, one a line. Output is text where it is UTF-8: a
// character cut by the end of a piece waits for its rest.
type eventStream struct {
	w    *answer
	enc  *json.Encoder
	raw  bool // all output as bytes
	mu   sync.Mutex
	rest [3][]byte // by stream: the start of a character, at most 3 bytes
}

func newEventStream(w *answer, raw bool) *eventStream {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &eventStream{w: w, enc: enc, raw: raw}
}

// output is an eqvps.Output. A client that takes nothing holds the command up,
// and after WriteStall ends it.
func (es *eventStream) output(s eqvps.Stream, p []byte) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.raw {
		return es.send(wire.Event{Type: s.String(), DataBase64: p})
	}
	if len(es.rest[s]) > 0 {
		p = append(es.rest[s], p...)
	}
	cut := len(p) - incomplete(p)
	es.rest[s] = append([]byte(nil), p[cut:]...)
	return es.sendOutput(s, p[:cut])
}

func (es *eventStream) sendOutput(s eqvps.Stream, p []byte) error {
	switch {
	case len(p) == 0:
		return nil
	case utf8.Valid(p):
		return es.send(wire.Event{Type: s.String(), Text: string(p)})
	}
	return es.send(wire.Event{Type: s.String(), DataBase64: p})
}

func (es *eventStream) exit(st wire.ExitStatus) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	if err := es.flush(); err != nil {
		return err
	}
	return es.send(wire.Event{Type: wire.EventExit, ExitStatus: &st})
}

func (es *eventStream) fail(e wire.Error) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	if err := es.flush(); err != nil {
		return err
	}
	return es.send(wire.Event{Type: wire.EventError, Error: &e})
}

// flush sends what waited for a rest that never came.
func (es *eventStream) flush() error {
	for _, s := range []eqvps.Stream{eqvps.Stdout, eqvps.Stderr} {
		if err := es.sendOutput(s, es.rest[s]); err != nil {
			return err
		}
		es.rest[s] = nil
	}
	return nil
}

func (es *eventStream) send(e wire.Event) error {
	if err := es.enc.Encode(e); err != nil {
		return err
	}
	return es.w.Flush()
}

// incomplete returns how many bytes at the end of p are the start of a
// character whose rest is missing.
func incomplete(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if tail := p[len(p)-i:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return i
		}
	}
	return 0
}
