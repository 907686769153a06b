package eqvps

import (
	"testing"
	"unicode/utf8"
)

// FuzzCutText: whoever reads a stream piece by piece gets all of it once, and
// text in pieces of text.
func FuzzCutText(f *testing.F) {
	f.Add("häßlich und 日本語 und 🙂", 4, 3, true)
	f.Add("\xe2\x82", 4, 0, true)
	f.Add("a\xff\xc3", 5, 0, false)
	f.Add("000\x9c\xac\xe8\xaa0", 4, 3, true) // a read that only skips
	f.Add("\x80\x80\x80\x80\x80", 4, 2, true)
	f.Fuzz(func(t *testing.T, s string, most, gone int, ended bool) {
		// A read asks for a character at least, see guest.Client.ReadTask.
		if most < utf8.UTFMax || gone < 0 || gone > len(s) {
			return
		}
		total := int64(len(s))
		at, read, skipped := int64(0), "", int64(0)
		for range len(s) + 1 {
			c := Chunk{Offset: max(at, int64(gone))}
			c.Skipped = c.Offset - at
			c.Data = []byte(s[c.Offset:min(total, c.Offset+int64(most))])
			c = c.CutText(total, ended)
			if c.Offset < at || c.Offset-at != c.Skipped || c.Next() > total || string(c.Data) != s[c.Offset:c.Next()] {
				t.Fatalf("asked for %d of %q, got %+v", at, s, c)
			}
			if utf8.ValidString(s) && !utf8.Valid(c.Data) {
				t.Fatalf("%q is cut to %q", s, c.Data)
			}
			read, skipped = read+string(c.Data), skipped+c.Skipped
			if c.Next() == at {
				break
			}
			at = c.Next()
		}
		// Of a stream that goes on, the start of a character waits for its rest.
		if left := total - skipped - int64(len(read)); left < 0 || left >= utf8.UTFMax || ended && left > 0 || skipped >= int64(gone)+utf8.UTFMax {
			t.Fatalf("of %q (%d gone, ended %v) %q was read, %d skipped", s, gone, ended, read, skipped)
		}
	})
}
