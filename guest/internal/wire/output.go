package wire

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/eqvps/eqvps"
)

// The answer to an exec is a sequence of frames: kind (1 byte), length (4
// bytes, big endian), data. The last one is the result.
const (
	FrameStdout = byte(eqvps.Stdout)
	FrameStderr = byte(eqvps.Stderr)
	FrameResult = 3 // a Result
	FrameFailed = 4 // JSON of a Failure: the agent could not do it

	FrameHeader = 5
	// MaxFrame bounds the data of a frame; up to version 3 it was 64 KiB. A
	// full one takes eight frames of the channel.
	MaxFrame = 252 << 10
	// maxResult bounds the data of the last frame.
	maxResult = 4 << 10
)

// PutFrameHeader writes a frame's header into b.
func PutFrameHeader(b []byte, kind byte, n int) {
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(n))
}

// Frame makes a frame.
func Frame(kind byte, data []byte) []byte {
	b := make([]byte, FrameHeader, FrameHeader+len(data))
	PutFrameHeader(b, kind, len(data))
	return append(b, data...)
}

// ReadOutput passes the output frames of r on and returns the result. The
// guest's word is not taken for more than the protocol allows.
func ReadOutput(r io.Reader, out eqvps.Output) (Result, error) {
	var hdr [FrameHeader]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(r, hdr[:]); err != nil {
			return Result{}, ended(err)
		}
		kind, n := hdr[0], binary.BigEndian.Uint32(hdr[1:])
		limit := uint32(MaxFrame)
		if kind == FrameResult || kind == FrameFailed {
			limit = maxResult
		}
		if kind < FrameStdout || kind > FrameFailed || n > limit {
			return Result{}, fmt.Errorf("bad output frame: kind %d, %d bytes", kind, n)
		}
		if int(n) > len(buf) {
			buf = make([]byte, min(max(n, 2*uint32(len(buf))), limit))
		}
		data := buf[:n]
		if _, err := io.ReadFull(r, data); err != nil {
			return Result{}, ended(err)
		}
		switch kind {
		case FrameResult:
			return parseResult(data)
		case FrameFailed:
			return Result{}, ParseFailure(data)
		}
		if n == 0 {
			continue
		}
		if err := out(eqvps.Stream(kind), data); err != nil {
			return Result{}, &OutputError{err}
		}
	}
}

// OutputError wraps an error of the receiver of output.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }

// ended: an output without a result is never complete.
func ended(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func parseResult(data []byte) (Result, error) {
	var r Result
	if err := r.Decode(data); err != nil {
		return Result{}, err
	}
	if r.Code < 0 || r.Code > 255 || r.DurationNS < 0 || len(r.Signal) > 20 || !plain(r.Signal) {
		return Result{}, fmt.Errorf("bad result: %.200q", data)
	}
	return r, nil
}
