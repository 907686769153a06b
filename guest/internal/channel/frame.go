// Package channel turns the one byte channel between a host and a guest agent
// (a virtio-serial port, a vsock connection) into sessions.
//
// The channel is never closed for the guest's eyes in a way it could rely on:
// the host's process may be killed in the middle of a write, a snapshot taken
// in one session may be restored into the next, and the bytes of an old
// session may still be under way. So everything travels in frames that carry
// the session they belong to, and a session begins with a handshake:
//
//	host  → SYN(session)  repeated every 15 ms until it is answered
//	guest → ACK(session)  protocol version, and whether it waits for an identity
//	host  → GO(session)   the identity, or nothing
//	guest → READY(session) an error text, or nothing
//	both  → DATA(session) bytes of the multiplexer
//	host  → BYE(session)  the host is done; optional
//
// A session's number is random. The host looks for its own number and skips
// everything else byte by byte, so nothing stale can be taken for an answer.
// The guest reads frames one after another; where a killed host left half a
// frame, the host's padding (zeros, as many as the longest frame has) completes
// it.
package channel

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/eqvps/eqvps"
)

// kind is the type of a frame.
type kind byte

const (
	kindSYN kind = 1 + iota
	kindACK
	kindGO
	kindReady
	kindData
	kindBye
)

const (
	// headerSize is magic (3), kind (1), session (8), length (4), checksum of
	// these (4).
	headerSize = 20
	// maxData bounds the payload of a DATA frame: with its header it is what
	// Linux's virtio-serial port takes in one write, so that a frame of the
	// guest is never cut by the guest itself.
	maxData = 32<<10 - headerSize
	// MaxHello bounds the payload of GO: an identity with the largest
	// environment, and 32 KiB for the rest.
	MaxHello = eqvps.MaxEnvBytes + 32<<10
	// maxNote bounds the payload of the other frames.
	maxNote = 1 << 10
)

var magic = [3]byte{0xE9, 'V', 'P'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the start of every frame.
type header struct {
	kind    kind
	session uint64
	length  int
}

// limit is the longest payload of a kind; -1 for a kind there is not.
func (k kind) limit() int {
	switch k {
	case kindData:
		return maxData
	case kindGO:
		return MaxHello
	case kindSYN, kindACK, kindReady, kindBye:
		return maxNote
	}
	return -1
}

func putHeader(b []byte, h header) {
	copy(b, magic[:])
	b[3] = byte(h.kind)
	binary.BigEndian.PutUint64(b[4:], h.session)
	binary.BigEndian.PutUint32(b[12:], uint32(h.length))
	binary.BigEndian.PutUint32(b[16:], crc32.Checksum(b[:16], castagnoli))
}

// parseHeader reads a header; ok is false for anything that is not one,
// including a payload longer than its kind may have.
func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < headerSize || !bytes.HasPrefix(b, magic[:]) {
		return header{}, false
	}
	if crc32.Checksum(b[:16], castagnoli) != binary.BigEndian.Uint32(b[16:]) {
		return header{}, false
	}
	h.kind = kind(b[3])
	h.session = binary.BigEndian.Uint64(b[4:])
	n := binary.BigEndian.Uint32(b[12:])
	if limit := h.kind.limit(); limit < 0 || n > uint32(limit) {
		return header{}, false
	}
	h.length = int(n)
	return h, true
}

func frame(k kind, session uint64, payload []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(payload))
	putHeader(b, header{k, session, len(payload)})
	return append(b, payload...)
}

// nextHeader skips bytes until a header that want accepts starts, and consumes
// it.
func nextHeader(r *bufio.Reader, want func(header) bool) (header, error) {
	for {
		b, err := r.Peek(headerSize)
		if err != nil {
			return header{}, err
		}
		if h, ok := parseHeader(b); ok && want(h) {
			_, err := r.Discard(headerSize)
			return h, err
		}
		// Padding and stale payload are long: skip to the next candidate in
		// all that is buffered.
		b, _ = r.Peek(r.Buffered())
		skip := len(b) - headerSize + 1
		if i := bytes.IndexByte(b[1:], magic[0]); i >= 0 {
			skip = min(skip, i+1)
		}
		if _, err := r.Discard(max(skip, 1)); err != nil {
			return header{}, err
		}
	}
}
