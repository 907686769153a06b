package eqvps

import (
	"bytes"
	"fmt"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestCapture: however the output arrives, what is kept is its head and its
// tail, and the count is true.
func TestCapture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Capture{Limit: rapid.IntRange(2, 40).Draw(t, "limit")}
		var all []byte
		for _, p := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 60)).Draw(t, "writes") {
			if n, err := c.Write(p); n != len(p) || err != nil {
				t.Fatalf("Write: %d, %v", n, err)
			}
			all = append(all, p...)
		}
		if c.Total != int64(len(all)) || c.Truncated() != (len(all) > c.Limit) {
			t.Fatalf("%d bytes: total %d, truncated %v", len(all), c.Total, c.Truncated())
		}
		got := c.Bytes()
		if !c.Truncated() {
			if !bytes.Equal(got, all) {
				t.Fatalf("kept %q of %q", got, all)
			}
			return
		}
		var dropped int
		i := bytes.LastIndex(got, []byte("\n[... "))
		if _, err := fmt.Sscanf(string(got[i:]), "\n[... %d bytes dropped ...]\n", &dropped); err != nil {
			t.Fatalf("no line tells what was dropped: %q", got)
		}
		head := got[:i]
		tail := got[i+len(fmt.Sprintf("\n[... %d bytes dropped ...]\n", dropped)):]
		if !bytes.HasPrefix(all, head) || !bytes.HasSuffix(all, tail) || len(head)+dropped+len(tail) != len(all) {
			t.Fatalf("kept %q and %q, dropped %d, of %q", head, tail, dropped, all)
		}
	})
}

// FuzzCapture: whatever is printed, in whatever pieces, nothing is kept that was
// not printed, and what was dropped is told to the byte.
func FuzzCapture(f *testing.F) {
	f.Add([]byte("head and tail of something longer"), 7, 10)
	f.Add(bytes.Repeat([]byte("\xe2\x82\xac"), 9), 1, 5)
	f.Add([]byte("\n[... 5 bytes dropped ...]\n\n[... 5 bytes dropped ...]\n"), 3, 16)
	f.Add(bytes.Repeat([]byte{0xff, 0xc3, 0x80}, 20), 64, 2)
	f.Fuzz(func(t *testing.T, all []byte, piece, limit int) {
		if piece < 1 || limit < 2 || limit > 1<<16 {
			return
		}
		c := Capture{Limit: limit}
		for rest := all; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			c.Write(rest[:min(piece, len(rest))])
		}
		got := c.Bytes()
		if c.Total != int64(len(all)) || c.Truncated() != (len(all) > limit) || !c.Truncated() && !bytes.Equal(got, all) {
			t.Fatalf("%d bytes, limit %d: total %d, truncated %v, kept %q", len(all), limit, c.Total, c.Truncated(), got)
		}
		if !c.Truncated() {
			return
		}
		// What was printed may hold such a line itself.
		for i := range got {
			var dropped int
			if _, err := fmt.Sscanf(string(got[i:]), "\n[... %d bytes dropped ...]\n", &dropped); err != nil {
				continue
			}
			note := fmt.Sprintf("\n[... %d bytes dropped ...]\n", dropped)
			tail, ok := bytes.CutPrefix(got[i:], []byte(note))
			if ok && i+len(tail) <= limit && i+dropped+len(tail) == len(all) && bytes.HasPrefix(all, got[:i]) && bytes.HasSuffix(all, tail) {
				return
			}
		}
		t.Fatalf("limit %d: of %q is kept %q", limit, all, got)
	})
}

// FuzzCaptureText: text that was cut stays text.
func FuzzCaptureText(f *testing.F) {
	f.Add("häßlich und 日本語 und 🙂 so weiter, bis es zu lang ist", 20)
	f.Add("", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if !utf8.ValidString(s) || limit < 16 || limit > 1<<16 {
			return
		}
		c := Capture{Limit: limit}
		for i := range len(s) { // a byte at a time: the worst case
			c.Write([]byte{s[i]})
		}
		if text, marked := c.Text(); marked || !utf8.ValidString(text) {
			t.Fatalf("cut to %q", text)
		}
	})
}
