package eqvps

import (
	"fmt"
	"unicode/utf8"
)

// Capture keeps the head and the tail of a stream within a bound and counts
// the rest. The zero value keeps MaxOutputBytes.
type Capture struct {
	Limit int   // bytes kept in all; 0 is MaxOutputBytes
	Total int64 // bytes written, kept or not

	head []byte
	ring []byte // the tail: a ring of Limit/2 bytes once the head is full
	next int    // where the ring is written next
}

func (c *Capture) limit() int {
	if c.Limit <= 0 {
		return MaxOutputBytes
	}
	return c.Limit
}

// Write keeps what fits. It never fails and never keeps p.
func (c *Capture) Write(p []byte) (int, error) {
	n := len(p)
	c.Total += int64(n)
	half := c.limit() / 2
	if room := c.limit() - half - len(c.head); room > 0 {
		take := min(room, len(p))
		c.head = append(c.head, p[:take]...)
		p = p[take:]
	}
	if len(p) > half {
		// Only the last half survives anyway.
		p = p[len(p)-half:]
	}
	if grow := min(half-len(c.ring), len(p)); grow > 0 {
		c.ring = append(c.ring, p[:grow]...)
		p = p[grow:]
	}
	for len(p) > 0 {
		k := copy(c.ring[c.next:], p)
		p = p[k:]
		c.next = (c.next + k) % half
	}
	return n, nil
}

// Truncated reports whether bytes were dropped.
func (c *Capture) Truncated() bool { return c.Total > int64(len(c.head)+len(c.ring)) }

// Bytes returns what was kept. Where bytes were dropped, a line in their place
// says how many, and neither side ends in half a character.
func (c *Capture) Bytes() []byte {
	tail := append(append([]byte{}, c.ring[c.next:]...), c.ring[:c.next]...)
	if !c.Truncated() {
		return append(append([]byte{}, c.head...), tail...)
	}
	head := cutEnd(c.head)
	tail = cutStart(tail)
	dropped := c.Total - int64(len(head)+len(tail))
	out := append([]byte{}, head...)
	out = fmt.Appendf(out, "\n[... %d bytes dropped ...]\n", dropped)
	return append(out, tail...)
}

// cutEnd drops an incomplete character from the end of b.
func cutEnd(b []byte) []byte {
	for i := 1; i <= utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
}

// cutStart drops the rest of a character from the start of b.
func cutStart(b []byte) []byte {
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}
