package channel

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A header and the body it announces leave as one frame.
func TestHeaderAndBodyShareAFrame(t *testing.T) {
	var sent []int
	d := newDataWriter(writerFunc(func(p []byte) (int, error) {
		sent = append(sent, len(p))
		return len(p), nil
	}), 1)
	m := mux("hello")
	for _, p := range [][]byte{m[:muxHeaderSize], m[muxHeaderSize:], mux("")} {
		if n, err := d.write(p); err != nil || n != len(p) {
			t.Fatal(n, err)
		}
	}
	if len(sent) != 2 || sent[0] != headerSize+len(m) || sent[1] != headerSize+muxHeaderSize {
		t.Errorf("frames of %v bytes were sent", sent)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A guest that stops in the middle of something must not block the host for
// good; one that is silent between two things may stay so.
func TestStall(t *testing.T) {
	for name, test := range map[string]struct {
		sent  []byte
		stall bool
	}{
		"nothing":      {nil, false},
		"whole frame":  {frame(kindData, 1, mux("x")), false},
		"half header":  {frame(kindData, 1, mux("x"))[:5], true},
		"half payload": {frame(kindData, 1, mux("x"))[:headerSize+3], true},
		"half mux":     {frame(kindData, 1, mux("x")[:muxHeaderSize]), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, guest := net.Pipe()
				in := &stallReader{nc: host}
				c := &Conn{nc: host, session: 1, in: in, br: bufio.NewReader(in)}
				done := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, c)
					done <- err
				}()
				if len(test.sent) > 0 {
					_, _ = guest.Write(test.sent)
				}
				select {
				case err := <-done:
					if !test.stall {
						t.Errorf("an idle guest ends the session: %v", err)
					}
				case <-time.After(10 * stallTimeout):
					if test.stall {
						t.Error("a stalled guest blocks the host")
					}
				}
				guest.Close()
				host.Close()
			})
		})
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(frame(kindData, 1, []byte("payload")))
	f.Add(frame(kindGO, 1<<63, nil))
	f.Add([]byte{})
	f.Add(padding[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := parseHeader(b)
		if !ok {
			return
		}
		if h.length > h.kind.limit() {
			t.Fatalf("%+v is longer than its kind may be", h)
		}
		again := make([]byte, headerSize)
		putHeader(again, h)
		if !bytes.Equal(again, b[:headerSize]) {
			t.Fatalf("%x is read as %+v, which is written %x", b[:headerSize], h, again)
		}
	})
}

// Whatever a guest sends in a session, reading it ends.
func FuzzGuestBytes(f *testing.F) {
	f.Add([]byte("junk"))
	f.Add(frame(kindData, 1, mux("hello")))
	f.Add(append(frame(kindData, 1, mux("hello")[:5]), frame(kindData, 1, mux("hello")[5:])...))
	f.Add(frame(kindReady, 1, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		host, guest := net.Pipe()
		defer host.Close()
		go func() {
			_, _ = guest.Write(b)
			guest.Close()
		}()
		in := &stallReader{nc: host}
		c := &Conn{nc: host, session: 1, in: in, br: bufio.NewReader(in)}
		got, err := io.ReadAll(c)
		if len(got) > len(b) {
			t.Fatalf("%d bytes become %d (%v)", len(b), len(got), err)
		}
	})
}

// Whatever lies in the channel, a guest takes the next session.
func FuzzHostBytes(f *testing.F) {
	f.Add([]byte("junk"), true)
	f.Add(frame(kindSYN, 1, nil), false)
	f.Add(append(frame(kindSYN, 1, nil), frame(kindGO, 1, []byte("id"))...), true)
	f.Add(append(append(frame(kindSYN, 1, nil), frame(kindGO, 1, nil)...), frame(kindData, 1, mux("x"))...), true)
	f.Add(frame(kindGO, 1, make([]byte, MaxHello))[:50], true)
	f.Fuzz(func(t *testing.T, b []byte, silent bool) {
		l := newLine()
		l.silent = silent
		start(l, &Endpoint{})
		nc, _ := l.dial(t.Context())
		go io.Copy(io.Discard, nc)
		_, _ = nc.Write(b)
		nc.Close()
		roundTrip(t, open(t, l, "id"), "fresh")
	})
}
