package vmm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// SealMemory copies the memory file of a snapshot into anonymous memory and
// seals it for good: no process, whatever its rights, can change it or its
// size any more. Monitors that restore the snapshot may then hold it open for
// writing, and one that a guest took over cannot touch the other machines.
//
// Holes and pages of zeroes stay holes, so the copy takes what the guest used.
// The caller closes the file; its memory is freed with the last machine that
// maps it.
func SealMemory(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("seal guest memory: %w", err)
	}
	defer src.Close()
	fd, err := unix.MemfdCreate("guest-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("seal guest memory: %w", err)
	}
	dst := os.NewFile(uintptr(fd), "guest-memory")
	if err := copyUsed(dst, src); err != nil {
		dst.Close()
		return nil, fmt.Errorf("seal guest memory: %w", err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(dst.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		dst.Close()
		return nil, fmt.Errorf("seal guest memory: %w", err)
	}
	return dst, nil
}

// copyUsed copies src into the empty file dst and leaves out what is zero.
func copyUsed(dst, src *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(info.Size()); err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for end := int64(0); ; {
		begin, err := src.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		if end, err = src.Seek(begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		for begin < end {
			n, err := src.ReadAt(buf[:min(int64(len(buf)), end-begin)], begin)
			if err != nil && err != io.EOF {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF // the file shrank meanwhile
			}
			if err := writeUsed(dst, buf[:n], begin); err != nil {
				return err
			}
			begin += int64(n)
		}
	}
}

var zeroPage = make([]byte, 4096)

// writeUsed writes the runs of pages that are not all zero.
func writeUsed(dst *os.File, b []byte, offset int64) error {
	zero := func(i int) bool {
		page := b[i:min(i+len(zeroPage), len(b))]
		return bytes.Equal(page, zeroPage[:len(page)])
	}
	for i := 0; i < len(b); {
		if zero(i) {
			i += len(zeroPage)
			continue
		}
		begin := i
		for i < len(b) && !zero(i) {
			i += len(zeroPage)
		}
		if _, err := dst.WriteAt(b[begin:min(i, len(b))], offset+int64(begin)); err != nil {
			return err
		}
	}
	return nil
}
