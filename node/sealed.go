package node

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/tink-crypto/tink-go/v2/streamingaead/subtle"
)

// Files of a paused machine are encrypted with a key of the sandbox's own, by
// AES-GCM in segments: what was changed, cut, swapped with the other file or
// taken from another sandbox does not decrypt.
const (
	keyBytes     = 32
	segmentBytes = 1 << 20
)

// The kinds of encrypted files, part of what is authenticated.
const (
	kindMemory = "memory"
	kindState  = "state"
)

func checkKey(key []byte) error {
	if len(key) != keyBytes {
		return fmt.Errorf("the key of a sandbox has %d bytes, not %d", keyBytes, len(key))
	}
	return nil
}

func cipherFor(key []byte) (*subtle.AESGCMHKDF, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	return subtle.NewAESGCMHKDF(key, "SHA256", keyBytes, segmentBytes, 0)
}

// belongsTo is authenticated with a file.
func belongsTo(id, kind string) []byte { return []byte("eqvps paused " + kind + " of " + id) }

// seal encrypts what fill writes into a new file, and syncs it.
func seal(path string, key []byte, id, kind string, fill func(io.Writer) error) (err error) {
	c, err := cipherFor(key)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := c.NewEncryptingWriter(f, belongsTo(id, kind))
	if err != nil {
		return err
	}
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Sync()
}

// unseal gives read the content of a file that seal has written. What read
// gets is authentic; that nothing is missing at the end shows at io.EOF.
func unseal(path string, key []byte, id, kind string, read func(io.Reader) error) error {
	r, err := openSealed(path, key, id, kind)
	if err != nil {
		return err
	}
	defer r.Close()
	return read(r)
}

// openSealed opens a file that seal has written and begins to decrypt it. The
// caller closes it.
func openSealed(path string, key []byte, id, kind string) (io.ReadCloser, error) {
	c, err := cipherFor(key)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := c.NewDecryptingReader(bufio.NewReaderSize(f, segmentBytes), belongsTo(id, kind))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return readAhead(r, f), nil
}

// ahead reads in a goroutine of its own, so that decrypting and what is done
// with the content go on side by side.
type ahead struct {
	file  io.Closer
	next  chan []byte
	stop  chan struct{}
	piece []byte
	err   error // what ended the reading; read after next is closed
}

// aheadPieces bounds the memory of one reader, with the size of a piece.
const aheadPieces = 32

func readAhead(r io.Reader, file io.Closer) *ahead {
	a := &ahead{file: file, next: make(chan []byte, aheadPieces), stop: make(chan struct{})}
	go func() {
		defer close(a.next)
		for a.err == nil {
			b := make([]byte, segmentBytes)
			var n int
			n, a.err = r.Read(b)
			select {
			case a.next <- b[:n]:
			case <-a.stop:
				return
			}
		}
	}()
	return a
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.piece) == 0 {
		var ok bool
		if a.piece, ok = <-a.next; !ok {
			return 0, a.err
		}
	}
	n := copy(p, a.piece)
	a.piece = a.piece[n:]
	return n, nil
}

// Close ends the reading, waits for its end and closes the file.
func (a *ahead) Close() error {
	close(a.stop)
	for range a.next {
	}
	return a.file.Close()
}

// A file of pages is a sequence of runs: address and length in bytes, 8 bytes
// big endian each, then the pages. Length 0 ends it.
const runHeader = 16

// maxRun bounds what is read at once.
const maxRun = 1 << 20

// pageWriter writes runs of pages. Copying them from the guest and encrypting
// them go on side by side.
type pageWriter struct {
	full, empty chan []byte
	broken      atomic.Bool
	failed      error // why; read after done
	done        chan struct{}
}

// pageBuffers are under way between the two.
const pageBuffers = 4

func newPageWriter(w io.Writer) *pageWriter {
	p := &pageWriter{full: make(chan []byte, pageBuffers), empty: make(chan []byte, pageBuffers+1), done: make(chan struct{})}
	for range pageBuffers {
		p.empty <- make([]byte, 0, runHeader+maxRun)
	}
	go func() {
		defer close(p.done)
		for b := range p.full {
			if p.failed == nil {
				_, p.failed = w.Write(b)
				p.broken.Store(p.failed != nil)
			}
			p.empty <- b[:0]
		}
	}()
	return p
}

// errBroken is told to who has more pages; finish has the reason.
var errBroken = errors.New("the pages cannot be written")

// put adds a run. It may return before the run is written.
func (p *pageWriter) put(address uint64, pages []byte) error {
	for len(pages) > 0 {
		n := min(len(pages), maxRun)
		b := <-p.empty
		if p.broken.Load() {
			p.empty <- b
			return errBroken
		}
		b = binary.BigEndian.AppendUint64(b, address)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
		p.full <- append(b, pages[:n]...)
		address, pages = address+uint64(n), pages[n:]
	}
	return nil
}

// finish returns when all is written.
func (p *pageWriter) finish() error {
	p.full <- make([]byte, runHeader)
	close(p.full)
	<-p.done
	return p.failed
}

// readPages passes on what a pageWriter has written.
func readPages(r io.Reader, put func(address uint64, pages []byte) error) error {
	buf := make([]byte, maxRun)
	for {
		var head [runHeader]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return unexpected(err)
		}
		address, n := binary.BigEndian.Uint64(head[:]), binary.BigEndian.Uint64(head[8:])
		if n > maxRun {
			return errors.New("a run of pages is longer than any that is written")
		}
		if n == 0 {
			break
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return unexpected(err)
		}
		if err := put(address, buf[:n]); err != nil {
			return err
		}
	}
	// The end, too, is authenticated.
	if _, err := io.ReadFull(r, buf[:1]); err != io.EOF {
		return errors.Join(errors.New("there is more than the pages"), err)
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
