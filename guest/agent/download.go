package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// openRegular opens a regular file. Nothing else is ever opened: opening a
// pipe waits and opening a device may do something.
func openRegular(p string) (fd int, st fs.FileInfo, err error) {
	at, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fileError(p, err)
	}
	f := os.NewFile(uintptr(at), p)
	defer f.Close()
	if st, err = f.Stat(); err != nil {
		return -1, nil, err
	}
	if !st.Mode().IsRegular() {
		_, is := kindOf(st.Mode())
		return -1, nil, notAFile(p, is)
	}
	fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fileError(p, err)
	}
	return fd, st, nil
}

// download sends a file or a range of it. Where there is not a byte of the
// range it sends none: the host finds out by the size in the header.
func (a *Agent) download(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	part := eqvps.DownloadRequest{Path: p}
	if part.Offset, err = intParam(r, wire.ParamOffset); err != nil {
		return err
	}
	if part.Length, err = intParam(r, wire.ParamLength); err != nil {
		return err
	}
	fd, st, err := openRegular(p)
	if err != nil {
		return err
	}
	e := entry(p, p, st)
	var content io.ReaderAt
	if unsized(st) {
		b, err := readUnsized(p, fd)
		if err != nil {
			return err
		}
		e.Size, content = int64(len(b)), bytes.NewReader(b)
	} else {
		f := os.NewFile(uintptr(fd), p)
		defer f.Close()
		content = f
	}
	offset, length, _ := part.Resolve(e.Size)
	head, err := json.Marshal(e)
	if err != nil {
		return err
	}
	bareHeader(w)
	w.Header().Set(wire.HeaderEntry, string(head))
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	// A file that ends early ends the connection early, and so fails there.
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(content, offset, length), buf[:])
	return nil
}

const (
	// maxUnsized is the most that is read of a file whose size says nothing.
	maxUnsized = 8 << 20
	// unsizedTimeout is how long such a file may take.
	unsizedTimeout = 5 * time.Second
)

// unsized reports whether a file's size may not be what there is to read: files
// of /proc say 0, those of /sys say a page.
func unsized(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return st.Size() == 0 || ok && sys.Blocks == 0 && st.Size() <= maxUnsized
}

// unsizedReads bounds the threads that wait in reads that never return.
var unsizedReads = make(chan struct{}, 8)

// readUnsized reads what there is of a file that the kernel, or a file system
// of the sandbox's own, makes up while it is read. It closes fd.
func readUnsized(p string, fd int) ([]byte, error) {
	waits := eqvps.Errorf(eqvps.CodeNotAFile, "The file %.200q has nothing to read now and makes its readers wait.", p)
	select {
	case unsizedReads <- struct{}{}:
	default:
		_ = unix.Close(fd)
		return nil, waits
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := readAvailable(fd)
		_ = unix.Close(fd)
		<-unsizedReads
		done <- result{b, err}
	}()
	timeout := time.NewTimer(unsizedTimeout)
	defer timeout.Stop()
	select {
	case r := <-done:
		switch {
		case errors.Is(r.err, unix.EAGAIN):
			return nil, waits
		case r.err != nil:
			return nil, fileError(p, r.err)
		case len(r.b) > maxUnsized:
			return nil, eqvps.Errorf(eqvps.CodeTooLarge, "The file %.200q has no size of its own and more than %d bytes; copy it to another file first.", p, maxUnsized)
		}
		return r.b, nil
	case <-timeout.C:
		return nil, waits
	}
}

// readAvailable reads to the end, or to where the file would make it wait.
func readAvailable(fd int) ([]byte, error) {
	var all bytes.Buffer
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for all.Len() <= maxUnsized {
		n, err := unix.Read(fd, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && all.Len() > 0:
			return all.Bytes(), nil
		case err != nil:
			return nil, err
		case n == 0:
			return all.Bytes(), nil
		}
		all.Write(buf[:n])
	}
	return all.Bytes(), nil
}
