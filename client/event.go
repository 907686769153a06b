package client

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/eqvps/eqvps/wire"
)

// maxEvent bounds one line of a stream. A server sends what it reads at once,
// which is far less.
const maxEvent = 16 << 20

// decodeEvent reads one line of a stream. Nearly all of a long stream is output
// that is text, which is read here: encoding/json takes longer for it than the
// sandbox does to print it. Everything else goes there.
func decodeEvent(line []byte) (wire.Event, error) {
	for _, kind := range []string{wire.EventStdout, wire.EventStderr} {
		if rest, ok := bytes.CutPrefix(line, []byte(`{"type":"`+kind+`","text":"`)); ok {
			if quoted, ok := bytes.CutSuffix(rest, []byte(`"}`)); ok {
				if text, ok := unquote(quoted); ok {
					return wire.Event{Type: kind, Text: text}, nil
				}
			}
		}
	}
	var e wire.Event
	err := json.Unmarshal(line, &e)
	return e, err
}

// escapes are those of one letter.
var escapes = [256]byte{'n': '\n', 't': '\t', 'r': '\r', '"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f'}

// unquote reads what is between the quotes of a JSON string, unless it holds
// what is rare in it.
func unquote(s []byte) (string, bool) {
	if !utf8.Valid(s) {
		return "", false
	}
	out := make([]byte, 0, len(s))
	for len(s) > 0 {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			i = len(s)
		}
		for _, c := range s[:i] {
			if c < ' ' || c == '"' {
				return "", false
			}
		}
		out = append(out, s[:i]...)
		if s = s[i:]; len(s) == 0 {
			break
		}
		if len(s) < 2 {
			return "", false
		}
		c := escapes[s[1]]
		size := 2
		if c == 0 { // control characters, as those that colour a terminal
			if len(s) < 6 || !bytes.HasPrefix(s, []byte(`\u00`)) {
				return "", false
			}
			hi, lo := s[4]-'0', unhex(s[5])
			if hi > 1 || lo > 15 {
				return "", false
			}
			c, size = hi<<4|lo, 6
		}
		out = append(out, c)
		s = s[size:]
	}
	return string(out), true
}

func unhex(c byte) byte {
	if c >= '0' && c <= '9' {
		return c - '0'
	}
	if c |= 0x20; c >= 'a' && c <= 'f' {
		return c - 'a' + 10
	}
	return 255
}
