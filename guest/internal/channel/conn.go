package channel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// stallTimeout is how long the peer may take between the first and the last
// byte of something it has begun.
const stallTimeout = 20 * time.Second

// writeTimeout is how long the peer may leave the channel full.
const writeTimeout = 30 * time.Second

// errProtocol is the cause when a guest breaks the protocol.
var errProtocol = errors.New("the guest broke the channel protocol")

// Conn is the host's end of a session: a byte stream for the multiplexer.
type Conn struct {
	nc      net.Conn
	session uint64
	in      *stallReader
	br      *bufio.Reader
	left    int // unread payload of the current frame
	guard   muxGuard
	out     dataWriter
	close   sync.Once
}

// stallReader gives reads a deadline while more bytes are owed.
type stallReader struct {
	nc   net.Conn
	owed bool
}

func (r *stallReader) Read(p []byte) (int, error) {
	var by time.Time
	if r.owed {
		by = time.Now().Add(stallTimeout)
	}
	if err := r.nc.SetReadDeadline(by); err != nil {
		return 0, err
	}
	return r.nc.Read(p)
}

// Read returns bytes of this session.
func (c *Conn) Read(p []byte) (int, error) {
	if c.left == 0 {
		if err := c.nextFrame(); err != nil {
			return 0, err
		}
	}
	c.in.owed = true
	n, err := c.br.Read(p[:min(len(p), c.left)])
	c.left -= n
	if err != nil {
		return n, err
	}
	return n, c.guard.feed(p[:n])
}

func (c *Conn) nextFrame() error {
	c.in.owed = c.guard.inside()
	if _, err := c.br.Peek(1); err != nil {
		return err
	}
	c.in.owed = true
	b, err := c.br.Peek(headerSize)
	if err != nil {
		return err
	}
	h, ok := parseHeader(b)
	if !ok || h.session != c.session || h.kind != kindData || h.length == 0 {
		return errProtocol
	}
	c.left = h.length
	_, err = c.br.Discard(headerSize)
	return err
}

// Write sends bytes of this session.
func (c *Conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends the session and the connection below it.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.close.Do(func() {
		// Tell the guest, unless a write is stuck: then it learns it from the
		// closed channel.
		if c.out.mu.TryLock() {
			_ = c.nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = c.nc.Write(frame(kindBye, c.session, nil))
			c.out.mu.Unlock()
		}
		err = c.nc.Close()
	})
	return err
}

// The rest makes Conn a net.Conn. The multiplexer sets no deadlines.

func (c *Conn) LocalAddr() net.Addr              { return c.nc.LocalAddr() }
func (c *Conn) RemoteAddr() net.Addr             { return c.nc.RemoteAddr() }
func (c *Conn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *Conn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *Conn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// deadlineWriter bounds each write to a connection.
type deadlineWriter struct{ nc net.Conn }

func (w deadlineWriter) Write(p []byte) (int, error) {
	if err := w.nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.nc.Write(p)
}

// The multiplexer's own frame header (yamux): version, type, flags (2), stream
// (4), length (4).
const (
	muxHeaderSize = 12
	muxData       = 0
	muxPing       = 2
	muxFlagSYN    = 1
)

// dataWriter cuts a byte stream into DATA frames.
type dataWriter struct {
	mu      sync.Mutex
	w       io.Writer
	session uint64
	buf     []byte // one frame; what lies behind its header is not sent yet
}

func newDataWriter(w io.Writer, session uint64) dataWriter {
	return dataWriter{w: w, session: session, buf: make([]byte, headerSize, headerSize+maxData)}
}

// write sends p. The multiplexer writes a header and its body one after the
// other; a header that announces a body waits for it, so that both take one
// frame and wake the peer once.
func (d *dataWriter) write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.buf) == headerSize && announcesBody(p) {
		d.buf = append(d.buf, p...)
		return len(p), nil
	}
	sent := 0
	for sent < len(p) {
		n := min(len(p)-sent, cap(d.buf)-len(d.buf))
		d.buf = append(d.buf, p[sent:sent+n]...)
		putHeader(d.buf, header{kindData, d.session, len(d.buf) - headerSize})
		_, err := d.w.Write(d.buf)
		d.buf = d.buf[:headerSize]
		if err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

func announcesBody(p []byte) bool {
	return len(p) == muxHeaderSize && p[0] == 0 && p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0
}

// muxGuard follows the multiplexer's frames that a guest sends and refuses
// what would cost the host memory: pings (each is answered by a goroutine of
// its own) and streams opened from inside. It also knows when a frame is
// incomplete: the multiplexer holds locks then, so it must not last.
type muxGuard struct {
	hdr  [muxHeaderSize]byte
	have int    // bytes of hdr
	body uint32 // bytes of the body still to come
}

func (g *muxGuard) inside() bool { return g.have > 0 || g.body > 0 }

func (g *muxGuard) feed(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(len(p), int(min(g.body, 1<<30)))
			g.body -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(g.hdr[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < muxHeaderSize {
			return nil
		}
		g.have = 0
		switch flags := binary.BigEndian.Uint16(g.hdr[2:]); {
		case g.hdr[1] == muxPing:
			return fmt.Errorf("%w: unexpected ping", errProtocol)
		case flags&muxFlagSYN != 0:
			return fmt.Errorf("%w: it opened a stream", errProtocol)
		case g.hdr[1] == muxData:
			g.body = binary.BigEndian.Uint32(g.hdr[8:])
			if g.body > Window {
				return fmt.Errorf("%w: a frame of %d bytes", errProtocol, g.body)
			}
		}
	}
	return nil
}
