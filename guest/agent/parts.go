package agent

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// maxPartials bounds the uploads in parts that are remembered. One more, and
// the one that is longest unused is dropped.
const maxPartials = 64

// maxKeep is the longest that an upload is remembered.
const maxKeep = 2 * eqvps.MaxLinkTTL

// partials are the uploads in parts, by their names.
type partials struct {
	mu  sync.Mutex
	all map[string]*partial
}

// partial is one upload in parts. It stays for a while when it is complete, so
// that its last part can be sent again.
type partial struct {
	total int64
	used  time.Time // with the lock of partials
	timer *time.Timer

	mu       sync.Mutex
	staged   *staged // nil: complete, or dropped
	received int64
	writers  int // parts on their way
	done     *wire.Entry
}

// drop ends an upload; a part on its way fails.
func (p *partial) drop() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.staged != nil {
		p.staged.drop()
		p.staged = nil
	}
}

// open finds the upload that a part belongs to. The first part begins one, also
// in the place of one that is complete or had another size.
func (ps *partials) open(name, path string, offset, total int64, keep time.Duration) (*partial, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[name]
	if p != nil && offset == 0 && (p.total != total || p.complete()) {
		ps.dropLocked(name)
		p = nil
	}
	switch {
	case p != nil && p.total != total:
		return nil, eqvps.Errorf(eqvps.CodeInvalidValue, "The upload's first part said %d bytes in all, this one says %d.", p.total, total)
	case p == nil && offset > 0:
		return nil, gap(offset, 0)
	case p == nil:
		s, err := stage(path)
		if err != nil {
			return nil, err
		}
		if len(ps.all) >= maxPartials {
			ps.dropOldest()
		}
		p = &partial{total: total, staged: s}
		p.timer = time.AfterFunc(min(keep, maxKeep), func() { ps.expire(name, p) })
		if ps.all == nil {
			ps.all = map[string]*partial{}
		}
		ps.all[name] = p
	}
	p.used = time.Now()
	return p, nil
}

func (p *partial) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done != nil
}

func (ps *partials) expire(name string, p *partial) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.all[name] == p {
		ps.dropLocked(name)
	}
}

func (ps *partials) dropOldest() {
	oldest := ""
	for name, p := range ps.all {
		if oldest == "" || p.used.Before(ps.all[oldest].used) {
			oldest = name
		}
	}
	ps.dropLocked(oldest)
}

func (ps *partials) dropLocked(name string) {
	ps.all[name].drop()
	delete(ps.all, name)
}

// progress tells how far an upload is, if there is one.
func (ps *partials) progress(name string, total int64) wire.Progress {
	ps.mu.Lock()
	p := ps.all[name]
	ps.mu.Unlock()
	if p == nil || p.total != total {
		return wire.Progress{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return wire.Progress{Received: p.received, Done: p.done}
}

func gap(offset, received int64) error {
	return eqvps.Errorf(eqvps.CodeInvalidValue, "The part begins at byte %d, but the upload has %d bytes so far; go on with offset=%d.", offset, received, received)
}

// uploadPart adds a part. One without a byte only asks how far the upload is.
func (a *Agent) uploadPart(w http.ResponseWriter, r *http.Request) error {
	path, err := pathParam(r)
	if err != nil {
		return err
	}
	mode, err := modeParam(r)
	if err != nil {
		return err
	}
	var offset, total, keep int64
	for name, v := range map[string]*int64{wire.ParamOffset: &offset, wire.ParamTotal: &total, wire.ParamKeep: &keep} {
		if *v, err = intParam(r, name); err != nil {
			return err
		}
	}
	name := r.URL.Query().Get(wire.ParamUpload)
	part := eqvps.UploadPart{UploadRequest: eqvps.UploadRequest{Size: r.ContentLength}, Offset: offset, Total: total}
	if err := part.Validate(); err != nil {
		return err
	}
	if name == "" || keep <= 0 || keep > int64(maxKeep/time.Second) {
		return badRequest(errors.New("an upload needs a name and a time"))
	}
	if r.ContentLength == 0 && total > 0 {
		return reply(w, a.parts.progress(name, total))
	}
	p, err := a.parts.open(name, path, offset, total, time.Duration(keep)*time.Second)
	if err != nil {
		return err
	}
	done, err := p.add(r.Body, path, mode, offset)
	if err != nil {
		return err
	}
	return reply(w, done)
}

// add writes a part and, with the last one, publishes the file.
func (p *partial) add(content io.Reader, path string, mode uint32, offset int64) (wire.Progress, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset > p.received {
		return wire.Progress{}, gap(offset, p.received)
	}
	p.writers++
	end, err := p.copy(content, path, offset)
	p.writers--
	if err != nil {
		if p.writers == 0 && p.staged != nil {
			// A part that fails gives back its share of the disk.
			_ = p.staged.f.Truncate(p.received)
		}
		return wire.Progress{}, err
	}
	// Only a part that came whole counts: of one that was cut, the sender does
	// not know how far it came.
	p.received = max(p.received, end)
	if p.staged != nil && p.received == p.total && end == p.total {
		e, err := p.staged.publish(mode)
		if err != nil {
			return wire.Progress{}, err
		}
		p.staged.drop()
		p.staged, p.done = nil, &e
	}
	return wire.Progress{Received: p.received, Done: p.done}, nil
}

// copy writes a part and returns where it ends. It holds the lock only while it
// writes.
func (p *partial) copy(content io.Reader, path string, offset int64) (end int64, err error) {
	p.mu.Unlock()
	defer p.mu.Lock()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for end = offset; ; {
		n, readErr := content.Read(buf[:])
		if err := p.write(buf[:n], path, end, offset); err != nil {
			return 0, err
		}
		end += int64(n)
		if readErr == io.EOF {
			return end, nil
		}
		if readErr != nil {
			return 0, badRequest(readErr)
		}
	}
}

// write puts a piece of a part in its place. The bytes of a complete file are
// its owner's: what comes late goes nowhere.
func (p *partial) write(b []byte, path string, at, offset int64) error {
	end := at + int64(len(b))
	if end > p.total {
		return eqvps.Errorf(eqvps.CodeInvalidValue, "The part at byte %d goes beyond the file's size of %d bytes.", offset, p.total)
	}
	if end-offset > eqvps.MaxPartBytes {
		return eqvps.Errorf(eqvps.CodeTooLarge, "The part has more than %d bytes.", eqvps.MaxPartBytes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.done != nil:
		return nil
	case p.staged == nil:
		return eqvps.Errorf(eqvps.CodeInvalidValue, "The upload was given up; begin again with offset=0.")
	}
	_, err := p.staged.f.WriteAt(b, at)
	if err != nil {
		return fileError(path, err)
	}
	return nil
}
