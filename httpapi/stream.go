package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// heartbeat is how long a stream of server-sent events is silent at most, so
// that proxies see that it lives. A line of JSON that means nothing would break
// parsers, so the other form has none; neither can last longer than a command.
const heartbeat = 15 * time.Second

// eventStream writes events: one a line, or as server-sent events. Output is
// text where it is UTF-8: a character cut by the end of a piece waits for its
// rest. It must be closed before the request's handler returns.
type eventStream struct {
	w    *answer
	raw  bool // all output as bytes
	mu   sync.Mutex
	buf  bytes.Buffer // one event
	enc  *json.Encoder
	rest [3][]byte   // by stream: the start of a character, at most 3 bytes
	beat *time.Timer // of server-sent events; nil: one event a line
	over bool
}

func newEventStream(w *answer, raw, sse bool) *eventStream {
	es := &eventStream{w: w, raw: raw}
	es.enc = json.NewEncoder(&es.buf)
	es.enc.SetEscapeHTML(false)
	es.mu.Lock()
	defer es.mu.Unlock()
	if sse {
		es.beat = time.AfterFunc(heartbeat, es.alive)
	}
	return es
}

func (es *eventStream) close() {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.over = true
	if es.beat != nil {
		es.beat.Stop()
	}
}

// alive sends a comment. That it could not be sent, the server will notice.
func (es *eventStream) alive() {
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.over {
		return
	}
	es.buf.Reset()
	es.buf.WriteString(":\n\n")
	_ = es.write()
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
	es.buf.Reset()
	if es.beat != nil {
		es.buf.WriteString("event: " + e.Type + "\ndata: ")
	}
	if err := es.enc.Encode(e); err != nil { // with the end of the line
		return err
	}
	if es.beat != nil {
		es.buf.WriteByte('\n')
	}
	return es.write()
}

func (es *eventStream) write() error {
	if es.beat != nil {
		es.beat.Reset(heartbeat)
	}
	if _, err := es.w.Write(es.buf.Bytes()); err != nil {
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

// Media types of a stream.
const (
	typeLines  = "application/x-ndjson"
	typeEvents = "text/event-stream"
)

// wantsEvents reports whether a client asks for server-sent events: whoever
// does not name them gets one event a line.
func wantsEvents(r *http.Request) bool {
	quality := map[string]float64{}
	first := ""
	for _, part := range strings.Split(strings.Join(r.Header.Values("Accept"), ","), ",") {
		name, params, _ := strings.Cut(part, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name != typeLines && name != typeEvents {
			continue
		}
		q := 1.0
		for _, p := range strings.Split(params, ";") {
			if v, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(p)), "q="); ok {
				q, _ = strconv.ParseFloat(v, 64) // what is no number is 0
			}
		}
		if quality[name] = q; first == "" {
			first = name
		}
	}
	if quality[typeEvents] == quality[typeLines] {
		return first == typeEvents && quality[typeEvents] > 0
	}
	return quality[typeEvents] > quality[typeLines]
}
