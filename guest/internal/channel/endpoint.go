package channel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Endpoint is the guest's end of the channel.
type Endpoint struct {
	// Port is the byte channel. Its Read returns ErrHostGone, once, when the
	// host side was closed.
	Port    io.ReadWriter
	Version int
	AtGate  bool // tell the host that an identity is needed
	// Go takes the hello of a session that begins. Its error goes to the host.
	// It may change AtGate, as Ended may.
	Go func(hello []byte) error
	// Serve handles one session, in a goroutine of its own. The connection
	// fails when the session ends.
	Serve func(net.Conn)
	// Ended is called after a session has ended; nil: do nothing.
	Ended func()

	wmu     sync.Mutex // one frame at a time on the port
	session uint64
	asked   bool // ACK is sent, GO is awaited
	conn    *guestConn
}

// Run reads frames until the port fails for good.
func (e *Endpoint) Run() error {
	br := bufio.NewReaderSize(e.Port, 2*(headerSize+maxData))
	for {
		err := e.step(br)
		switch {
		case errors.Is(err, ErrHostGone):
			// Whatever was begun will not be completed.
			br.Reset(e.Port)
			e.end()
		case err != nil:
			e.end()
			return err
		}
	}
}

func (e *Endpoint) step(br *bufio.Reader) error {
	h, err := nextHeader(br, func(header) bool { return true })
	if err != nil {
		return err
	}
	if h.kind == kindData {
		conn := e.conn
		if h.session != e.session {
			conn = nil
		}
		return deliver(br, h.length, conn)
	}
	payload := make([]byte, h.length)
	if _, err := io.ReadFull(br, payload); err != nil {
		return err
	}
	switch {
	case h.kind == kindSYN:
		return e.syn(h.session)
	case h.session != e.session:
		// A stale session: not meant for us.
	case h.kind == kindGO && e.asked:
		return e.begin(e.Go(payload))
	case h.kind == kindBye:
		e.end()
	}
	return nil
}

func (e *Endpoint) syn(session uint64) error {
	if session == e.session && !e.asked {
		return nil // repeated by a host whose session is under way
	}
	if session != e.session {
		e.end()
		e.session, e.asked = session, true
	}
	ack := binary.BigEndian.AppendUint32(nil, uint32(e.Version))
	gate := byte(0)
	if e.AtGate {
		gate = 1
	}
	return e.send(frame(kindACK, session, append(ack, gate)))
}

// begin answers GO.
func (e *Endpoint) begin(failed error) error {
	e.asked = false
	var text []byte
	if failed != nil {
		text = []byte(failed.Error())
		text = text[:min(len(text), maxNote)]
	} else {
		e.conn = newGuestConn(e)
		go e.Serve(e.conn)
	}
	return e.send(frame(kindReady, e.session, text))
}

func (e *Endpoint) end() {
	e.session, e.asked = 0, false
	if e.conn != nil {
		e.conn.Close()
		e.conn = nil
		if e.Ended != nil {
			e.Ended()
		}
	}
}

// send writes a frame of the handshake. A port takes nothing while its queue is
// full and its host has gone: a failure is the session's, and the next host
// begins another.
func (e *Endpoint) send(b []byte) error {
	e.wmu.Lock()
	defer e.wmu.Unlock()
	if _, err := e.Port.Write(b); err != nil {
		return ErrHostGone
	}
	return nil
}

// deliver hands the payload of a DATA frame to its session, or drops it.
func deliver(br *bufio.Reader, n int, conn *guestConn) error {
	for n > 0 {
		if br.Buffered() == 0 {
			if _, err := br.Peek(1); err != nil {
				return err
			}
		}
		b, err := br.Peek(min(n, br.Buffered()))
		if err != nil {
			return err
		}
		if conn != nil {
			conn.deliver(b)
		}
		if _, err := br.Discard(len(b)); err != nil {
			return err
		}
		n -= len(b)
	}
	return nil
}

// guestConn is the guest's end of a session. The endpoint's reader lends it
// its buffer, one piece at a time.
type guestConn struct {
	out dataWriter

	done   chan struct{} // closed with it
	mu     sync.Mutex
	turn   sync.Cond // piece or closed changed
	piece  []byte    // unread part of what is lent
	closed bool
}

func newGuestConn(e *Endpoint) *guestConn {
	c := &guestConn{done: make(chan struct{})}
	c.turn.L = &c.mu
	c.out = newDataWriter(sessionWriter{e, c}, e.session)
	return c
}

// sessionWriter writes frames while their session lives.
type sessionWriter struct {
	e *Endpoint
	c *guestConn
}

func (w sessionWriter) Write(p []byte) (int, error) {
	w.e.wmu.Lock()
	defer w.e.wmu.Unlock()
	w.c.mu.Lock()
	closed := w.c.closed
	w.c.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return w.e.Port.Write(p)
}

// deliver lends b to Read and returns when it is used up, or the session over.
func (c *guestConn) deliver(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.piece = b
	c.turn.Broadcast()
	for len(c.piece) > 0 && !c.closed {
		c.turn.Wait()
	}
	c.piece = nil
}

func (c *guestConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.piece) == 0 && !c.closed {
		c.turn.Wait()
	}
	if c.closed {
		return 0, io.EOF
	}
	n := copy(p, c.piece)
	c.piece = c.piece[n:]
	if len(c.piece) == 0 {
		c.turn.Broadcast()
	}
	return n, nil
}

func (c *guestConn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *guestConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.done)
	}
	c.turn.Broadcast()
	return nil
}

// Done is closed when the session is over, before the next one begins.
func (c *guestConn) Done() <-chan struct{} { return c.done }

func (c *guestConn) LocalAddr() net.Addr              { return portAddr{} }
func (c *guestConn) RemoteAddr() net.Addr             { return portAddr{} }
func (c *guestConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *guestConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *guestConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

type portAddr struct{}

func (portAddr) Network() string { return "virtio-serial" }
func (portAddr) String() string  { return "host" }
