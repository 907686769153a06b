package vmm_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

func TestSealMemory(t *testing.T) {
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "memory")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for offset, b := range map[int64][]byte{
		0:              []byte("first"),
		1<<20 - 1:      []byte("across a chunk"),
		10 << 20:       make([]byte, 8<<20), // allocated zeroes
		30<<20 + 12345: bytes.Repeat([]byte("x"), 3<<20),
		size - 1:       []byte("l"),
	} {
		if _, err := f.WriteAt(b, offset); err != nil {
			t.Fatal(err)
		}
	}
	sealed, err := vmm.SealMemory(path)
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()

	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	if _, err := sealed.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the copy differs")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(sealed.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	if used := stat.Blocks * 512; stat.Size != size || used > 4<<20 {
		t.Errorf("%d bytes of %d are allocated, want the 3 MiB that are not zero", used, stat.Size)
	}
	if _, err := sealed.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the sealed memory can be written")
	}
	if err := sealed.Truncate(0); err == nil {
		t.Error("the sealed memory can be cut")
	}
	if err := sealed.Truncate(2 * size); err == nil {
		t.Error("the sealed memory can grow")
	}
	if _, err := unix.Mmap(int(sealed.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the sealed memory can be mapped for writing")
	}
	if _, err := vmm.SealMemory(path + "x"); err == nil {
		t.Error("a missing file was sealed")
	}
}
