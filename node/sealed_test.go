package node

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file of pages gives back what went in, and nothing once it was touched.
func TestSealedPages(t *testing.T) {
	key := bytes.Repeat([]byte{7}, keyBytes)
	path := filepath.Join(t.TempDir(), "pages")
	page := func(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n*4096) }
	runs := []struct {
		address uint64
		pages   []byte
	}{{0, page(1, 1)}, {1 << 40, page(2, 700)}, {4096, page(3, 256)}, {8192, page(4, 2)}}
	err := seal(path, key, "sb_a", kindMemory, func(w io.Writer) error {
		p := newPageWriter(w)
		for _, r := range runs {
			if err := p.put(r.address, r.pages); err != nil {
				return err
			}
		}
		return p.finish()
	})
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string, key []byte, id, kind string) (map[uint64]byte, error) {
		got := map[uint64]byte{}
		err := unseal(path, key, id, kind, func(r io.Reader) error {
			return readPages(r, func(address uint64, pages []byte) error {
				for i := 0; i < len(pages); i += 4096 {
					got[address+uint64(i)] = pages[i]
				}
				return nil
			})
		})
		return got, err
	}
	got, err := read(path, key, "sb_a", kindMemory)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		for i := 0; i < len(r.pages); i += 4096 {
			if got[r.address+uint64(i)] != r.pages[i] && r.address != 4096 {
				t.Fatalf("page %x is %d, want %d", r.address+uint64(i), got[r.address+uint64(i)], r.pages[i])
			}
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(whole, page(2, 1)[:64]) {
		t.Error("a page lies in clear")
	}
	for name, test := range map[string]struct {
		damage   func([]byte) []byte
		id, kind string
	}{
		"a bit":           {func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, "sb_a", kindMemory},
		"cut":             {func(b []byte) []byte { return b[:len(b)-1] }, "sb_a", kindMemory},
		"cut by segments": {func(b []byte) []byte { return b[:segmentBytes] }, "sb_a", kindMemory},
		"empty":           {func([]byte) []byte { return nil }, "sb_a", kindMemory},
		"more":            {func(b []byte) []byte { return append(b, b...) }, "sb_a", kindMemory},
		"of another":      {func(b []byte) []byte { return b }, "sb_b", kindMemory},
		"another kind":    {func(b []byte) []byte { return b }, "sb_a", kindState},
		"no key":          {nil, "sb_a", kindMemory},
	} {
		k, file := key, filepath.Join(t.TempDir(), "damaged")
		if test.damage == nil {
			k, file = bytes.Repeat([]byte{8}, keyBytes), path
		} else if err := os.WriteFile(file, test.damage(bytes.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := read(file, k, test.id, test.kind); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
	// What is not in pages ends where it was written to end, or not at all.
	for size, whole := range map[int]bool{len(whole): true, len(whole) - 1: false, segmentBytes: false, segmentBytes + 1: false} {
		file := filepath.Join(t.TempDir(), "cut")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		err = unseal(file, key, "sb_a", kindMemory, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if (err == nil) != whole {
			t.Errorf("%d bytes of it: %v", size, err)
		}
	}
	if _, err := cipherFor(key[:16]); err == nil {
		t.Error("a short key is accepted")
	}
}

type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, unix.ENOSPC
	}
	return len(p), nil
}

// A disk that is full ends the writing early, and is the reason that is told.
func TestPagesOnFullDisk(t *testing.T) {
	p := newPageWriter(&full{room: 3 << 20})
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = p.put(0, make([]byte, 1<<20))
	}
	if err != errBroken || n > 20 {
		t.Errorf("after %d runs: %v", n, err)
	}
	if err := p.finish(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the reason is %v", err)
	}
}
