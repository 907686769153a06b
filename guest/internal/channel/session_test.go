package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func TestSessionCarriesBytes(t *testing.T) {
	l := newLine()
	start(l, &Endpoint{})
	c := open(t, l, "")
	roundTrip(t, c, "hello")
	roundTrip(t, c, strings.Repeat("x", 3*maxData+17))
}

func TestHelloAndRefusal(t *testing.T) {
	var got []string
	l := newLine()
	start(l, &Endpoint{Go: func(hello []byte) error {
		got = append(got, string(hello))
		if len(got) == 1 {
			return errRefused
		}
		return nil
	}})
	_, err := tryOpen(t, l, "first")
	if ge := (*GuestError)(nil); !errors.As(err, &ge) || ge.Text != errRefused.Error() {
		t.Fatalf("a refused hello gives %v, want the guest's own text", err)
	}
	big := strings.Repeat("e", MaxHello)
	roundTrip(t, open(t, l, big), "still alive")
	if len(got) != 2 || got[0] != "first" || got[1] != big {
		t.Fatalf("the guest got %d hellos", len(got))
	}
}

func TestGateIsTold(t *testing.T) {
	l := newLine()
	ep := start(l, &Endpoint{AtGate: true})
	nc, _ := l.dial(t.Context())
	hs, err := Knock(t.Context(), nc, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer hs.Close()
	if !hs.AtGate || hs.Version != ep.Version {
		t.Errorf("the host learns gate %v, version %d; want true, %d", hs.AtGate, hs.Version, ep.Version)
	}
}

// A session ends when its host closes it, when its host vanishes, and when a
// new host begins another one: the guest's end must not outlive it.
func TestSessionEnds(t *testing.T) {
	for name, end := range map[string]func(l *line, c *Conn){
		"goodbye":  func(_ *line, c *Conn) { c.Close() },
		"killed":   func(_ *line, c *Conn) { c.nc.Close() },
		"replaced": func(l *line, _ *Conn) { go tryOpen(t, l, "") },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			ended, left := make(chan error, 2), make(chan struct{}, 2)
			start(l, &Endpoint{
				Serve: func(c net.Conn) {
					_, err := c.Read(make([]byte, 1))
					ended <- err
				},
				Ended: func() { left <- struct{}{} },
			})
			end(l, open(t, l, ""))
			if err := <-ended; err != io.EOF {
				t.Errorf("the session's read gives %v, want EOF", err)
			}
			<-left
		})
	}
}

// The bytes of a host that was killed in the middle of a frame, with nobody to
// tell the guest: the next session must come through all the same.
func TestStaleBytesTowardsGuest(t *testing.T) {
	old := uint64(42)
	data := frame(kindData, old, bytes.Repeat([]byte("x"), maxData))
	for name, stale := range map[string][]byte{
		"nothing":                nil,
		"junk":                   []byte("what is this \xe9 and \xe9VP that"),
		"half a header":          data[:7],
		"a header":               data[:headerSize],
		"half a frame":           data[:len(data)/2],
		"a frame but one byte":   data[:len(data)-1],
		"whole frames":           append(append([]byte{}, data...), data...),
		"half a hello":           frame(kindGO, old, make([]byte, MaxHello))[:headerSize+9],
		"an old handshake":       append(frame(kindSYN, old, make([]byte, 4)), frame(kindGO, old, nil)...),
		"padding":                padding[:],
		"a SYN inside old bytes": frame(kindData, old, frame(kindSYN, 99, nil)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine()
			l.silent = true
			start(l, &Endpoint{})
			nc, _ := l.dial(t.Context())
			go io.Copy(io.Discard, nc)
			if _, err := nc.Write(stale); err != nil {
				t.Fatal(err)
			}
			nc.Close()
			roundTrip(t, open(t, l, "id"), "fresh")
		})
	}
}

// What a guest had under way for an old host reaches the new one first.
func TestStaleBytesTowardsHost(t *testing.T) {
	old := uint64(42)
	data := frame(kindData, old, bytes.Repeat([]byte("x"), 5000))
	for name, stale := range map[string][]byte{
		"half a frame":      data[len(data)/2:],
		"whole frames":      append(append([]byte{}, data...), data...),
		"a frame cut short": data[:headerSize+10],
		"an old ACK":        frame(kindACK, old, make([]byte, 5)),
		"magic":             bytes.Repeat(magic[:], 1000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine()
			start(l, &Endpoint{})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			nc, _ := l.dial(ctx)
			hs, err := Knock(ctx, &prefixed{nc, io.MultiReader(bytes.NewReader(stale), nc)}, 7)
			if err != nil {
				t.Fatal(err)
			}
			c, err := hs.Go(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			roundTrip(t, c, "fresh")
		})
	}
}

// prefixed is a connection on which something has arrived already.
type prefixed struct {
	net.Conn
	r io.Reader
}

func (p *prefixed) Read(b []byte) (int, error) { return p.r.Read(b) }

// hostile is a guest that answers the handshake and then sends what it likes.
func hostile(t *testing.T, say func(session uint64) []byte) *Conn {
	t.Helper()
	host, guest := net.Pipe()
	t.Cleanup(func() { guest.Close() })
	go func() {
		hdr := make([]byte, headerSize+4)
		if _, err := io.ReadFull(guest, hdr); err != nil {
			return
		}
		go io.Copy(io.Discard, guest)
		session := binary.BigEndian.Uint64(hdr[4:])
		_, _ = guest.Write(frame(kindACK, session, []byte{0, 0, 0, 7, 0}))
		_, _ = guest.Write(say(session))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	hs, err := Knock(ctx, host, 7)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hs.Go(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestHostileGuest(t *testing.T) {
	head := func(typ, flags byte, length uint32) []byte {
		b := make([]byte, muxHeaderSize)
		b[1], b[3] = typ, flags
		binary.BigEndian.PutUint32(b[8:], length)
		return b
	}
	for name, say := range map[string]func(uint64) []byte{
		"junk":            func(uint64) []byte { return bytes.Repeat([]byte("junk"), 100) },
		"another session": func(s uint64) []byte { return frame(kindData, s+1, mux("x")) },
		"empty data":      func(s uint64) []byte { return frame(kindData, s, nil) },
		"another READY":   func(s uint64) []byte { return frame(kindReady, s, nil) },
		"a SYN":           func(s uint64) []byte { return frame(kindSYN, s, nil) },
		"mux ping":        func(s uint64) []byte { return frame(kindData, s, head(muxPing, 1, 0)) },
		"mux ping reply":  func(s uint64) []byte { return frame(kindData, s, head(muxPing, 2, 0)) },
		"opens a stream":  func(s uint64) []byte { return frame(kindData, s, head(1, muxFlagSYN, 0)) },
		"opens with data": func(s uint64) []byte { return frame(kindData, s, head(muxData, muxFlagSYN, 5)) },
		"huge body":       func(s uint64) []byte { return frame(kindData, s, head(muxData, 0, Window+1)) },
		"length of 4 GiB": func(s uint64) []byte {
			b := frame(kindData, s, nil)
			binary.BigEndian.PutUint32(b[12:], 1<<32-1)
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, func(s uint64) []byte { return append(frame(kindReady, s, nil), say(s)...) })
			_, err := io.Copy(io.Discard, c)
			if !errors.Is(err, errProtocol) {
				t.Errorf("reading gives %v, want a broken protocol", err)
			}
		})
	}
}

// A handshake that goes wrong ends with an error, never with a wait.
func TestHandshakeFails(t *testing.T) {
	for name, guest := range map[string]func(net.Conn){
		"closes":       func(c net.Conn) { c.Close() },
		"never reads":  func(net.Conn) {},
		"never talks":  func(c net.Conn) { io.Copy(io.Discard, c) },
		"talks rubish": func(c net.Conn) { go io.Copy(io.Discard, c); io.Copy(c, zeros{}) },
		"short ACK": func(c net.Conn) {
			hdr := make([]byte, headerSize+4)
			_, _ = io.ReadFull(c, hdr)
			go io.Copy(io.Discard, c)
			_, _ = c.Write(frame(kindACK, binary.BigEndian.Uint64(hdr[4:]), []byte{1}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, other := net.Pipe()
			defer other.Close()
			go guest(other)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := Knock(ctx, host, 7); err == nil {
				t.Error("the handshake succeeds")
			}
			if _, err := host.Write([]byte("x")); err != io.ErrClosedPipe {
				t.Errorf("the channel is left open: %v", err)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
