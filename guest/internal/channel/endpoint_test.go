package channel

import (
	"bytes"
	"io"
	"testing"
)

// brokenPort delivers its input, one frame a read, and fails the first write.
type brokenPort struct {
	in     [][]byte
	out    bytes.Buffer
	writes int
}

func (p *brokenPort) Read(b []byte) (int, error) {
	if len(p.in) == 0 {
		return 0, io.ErrClosedPipe // the port is gone for good
	}
	n := copy(b, p.in[0])
	p.in = p.in[1:]
	return n, nil
}

func (p *brokenPort) Write(b []byte) (int, error) {
	p.writes++
	if p.writes == 1 {
		return 0, io.ErrUnexpectedEOF
	}
	return p.out.Write(b)
}

// TestAnswerThatCannotBeWritten: a port takes nothing while its queue is full
// and its host has gone. That ends a session, never the agent: with it the
// machine would go.
func TestAnswerThatCannotBeWritten(t *testing.T) {
	p := &brokenPort{in: [][]byte{frame(kindSYN, 1, nil), frame(kindSYN, 2, nil)}}
	e := &Endpoint{Port: p, Version: 1, Go: func([]byte) error { return nil }}
	if err := e.Run(); err != io.ErrClosedPipe {
		t.Errorf("Run ends with %v, not when the port does", err)
	}
	if p.writes != 2 || p.out.Len() == 0 {
		t.Errorf("the next host got no answer: %d writes, %d bytes", p.writes, p.out.Len())
	}
}
