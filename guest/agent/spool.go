package agent

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// The output of background tasks lies in one file on the guest's own disk, in
// blocks: in the agent's memory, which nothing can reclaim, it would be taken
// from the commands. The file has no name, so that it goes with the agent.
const (
	spoolBlock = 16 << 10
	// spoolBlocks bounds the file: it is part of the disk that was bought.
	spoolBlocks = 256 << 20 / spoolBlock
	// streamBlocks are kept of one stream.
	streamBlocks = eqvps.TaskRetainBytes / spoolBlock
)

// spool hands out blocks. A full disk, or one that cannot be written, has no
// blocks to give; that is no error.
type spool struct {
	dir string

	mu   sync.Mutex
	fd   int // -1: no file yet
	size uint32
	free []uint32
}

// open returns the file, made when it is first needed.
func (s *spool) open() (int, error) {
	if s.fd >= 0 {
		return s.fd, nil
	}
	fd, err := nameless(s.dir)
	if err != nil {
		return -1, err
	}
	s.fd = fd
	return fd, nil
}

// nameless makes a file that goes when it is closed. It is called with the
// lock held: for a moment the file has a name.
func nameless(dir string) (int, error) {
	name := filepath.Join(dir, ".eqvps-spool")
	_ = unix.Unlink(name) // of an agent that was killed half-way
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	_ = unix.Unlink(name)
	return fd, nil
}

// input makes a file of what a task gets as its standard input: one that never
// reads it must not hold the agent's memory for all its life.
func (s *spool) input(data []byte) (*os.File, error) {
	s.mu.Lock()
	fd, err := nameless(s.dir)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "input")
	if _, err = f.Write(data); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// store writes a block and returns its number.
func (s *spool) store(p []byte) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, err := s.open()
	if err != nil {
		return 0, false
	}
	n := s.size
	last := len(s.free) - 1
	switch {
	case last >= 0:
		n = s.free[last]
	case n == spoolBlocks:
		return 0, false
	}
	if !writeBlock(fd, n, p) {
		return 0, false
	}
	if last >= 0 {
		s.free = s.free[:last]
	} else {
		s.size++
	}
	return n, true
}

// overwrite replaces a block, which takes no more of the disk.
func (s *spool) overwrite(n uint32, p []byte) bool { return writeBlock(s.fd, n, p) }

// load reads len(p) bytes of a block.
func (s *spool) load(n uint32, from int, p []byte) bool {
	k, err := unix.Pread(s.fd, p, int64(n)*spoolBlock+int64(from))
	return err == nil && k == len(p)
}

func (s *spool) release(blocks []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, blocks...)
}

func writeBlock(fd int, n uint32, p []byte) bool {
	for {
		k, err := unix.Pwrite(fd, p, int64(n)*spoolBlock)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && k == len(p)
		}
	}
}

// stream is what is retained of a stream of a task: full blocks in the spool,
// oldest first, and what follows them in memory.
type stream struct {
	wire.Retained
	blocks []uint32
	tail   []byte
}

// write adds p. Where there is no room for more blocks, evict is asked to make
// some, else the oldest of the stream's own goes. A stream without any keeps
// what fits into memory.
func (st *stream) write(s *spool, p []byte, evict func() bool) {
	for len(p) > 0 {
		n := min(len(p), spoolBlock-len(st.tail))
		st.tail = append(st.tail, p[:n]...)
		st.Total += int64(n)
		p = p[n:]
		if len(st.tail) == spoolBlock {
			st.flush(s, evict)
		}
	}
}

// flush moves a full tail into the spool. Where that has no room at all, half
// of the tail is all there is.
func (st *stream) flush(s *spool, evict func() bool) {
	if len(st.blocks) < streamBlocks {
		n, ok := s.store(st.tail)
		for !ok && evict() {
			n, ok = s.store(st.tail)
		}
		if ok {
			st.blocks, st.tail = append(st.blocks, n), st.tail[:0]
			return
		}
	}
	if len(st.blocks) == 0 || !s.overwrite(st.blocks[0], st.tail) {
		st.drop(s)
		st.tail = st.tail[:copy(st.tail, st.tail[spoolBlock/2:])]
		st.Dropped = st.Total - int64(len(st.tail))
		return
	}
	st.blocks, st.tail = append(st.blocks[1:], st.blocks[0]), st.tail[:0]
	st.Dropped += spoolBlock
}

// drop gives up all blocks.
func (st *stream) drop(s *spool) {
	s.release(st.blocks)
	st.Dropped += int64(len(st.blocks)) * spoolBlock
	st.blocks = nil
}

// read returns at most limit bytes from an offset, or from the nearest there
// is.
func (st *stream) read(s *spool, asked int64, limit int) wire.Chunk {
	from := wire.Clamp(asked, eqvps.Retained(st.Retained))
	data := make([]byte, 0, min(int64(limit), st.Total-from))
	for at := from - st.Dropped; len(data) < cap(data); at = from - st.Dropped + int64(len(data)) {
		room := data[len(data):cap(data)]
		i, in := int(at/spoolBlock), int(at%spoolBlock)
		if i >= len(st.blocks) {
			return wire.Chunk{Offset: from, Data: append(data, st.tail[in:in+len(room)]...)}
		}
		n := min(len(room), spoolBlock-in)
		if !s.load(st.blocks[i], in, room[:n]) {
			st.drop(s) // the disk is broken: go on with what is not on it
			return st.read(s, asked, limit)
		}
		data = data[:len(data)+n]
	}
	return wire.Chunk{Offset: from, Data: data}
}
