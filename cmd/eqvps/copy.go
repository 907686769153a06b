package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
)

// upload copies a local file into a sandbox; mode 0 keeps the local
// permissions.
func (a *app) upload(ctx context.Context, c *client.Client, id string, t transfer, mode fs.FileMode) (eqvps.FileInfo, error) {
	f, err := os.Open(t.local)
	if err != nil {
		return eqvps.FileInfo{}, localError(t.local, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return eqvps.FileInfo{}, localError(t.local, err)
	}
	size := fi.Size()
	switch {
	case fi.IsDir():
		return eqvps.FileInfo{}, fmt.Errorf("%s is a folder; pack it with tar and upload the archive", t.local)
	case !fi.Mode().IsRegular():
		size = -1 // a pipe
	case size > eqvps.MaxFileBytes:
		return eqvps.FileInfo{}, fmt.Errorf("%s has %s; a file may have at most %s", t.local, humanize.Bytes(uint64(size)), humanize.Bytes(eqvps.MaxFileBytes))
	}
	if mode == 0 {
		mode = fi.Mode().Perm()
	}
	var content io.Reader = f
	if size == 0 {
		content = nil
	}
	done := a.progress(filepath.Base(t.local), size, &content)
	info, err := c.Upload(ctx, id, t.remote, mode, content, size)
	done()
	return info, orSignal(ctx, err)
}

// localError says what is wrong with a file of this machine.
func localError(name string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("the local file %s cannot be used: %w", name, err)
}

// download copies a file out of a sandbox. The local file appears whole or not
// at all. A local folder receives the file under its own name; "-" is standard
// output.
func (a *app) download(ctx context.Context, c *client.Client, id string, t transfer) (name string, size int64, err error) {
	if t.local != "-" {
		if t.local, err = downloadTarget(t); err != nil {
			return "", 0, err
		}
	}
	content, size, err := c.Download(ctx, id, t.remote)
	if err != nil {
		return "", 0, orSignal(ctx, err)
	}
	defer content.Close()
	var from io.Reader = content
	if t.local == "-" {
		size, err = io.Copy(a.stdout, from)
		return "-", size, orSignal(ctx, err)
	}
	done := a.progress(path.Base(t.remote), size, &from)
	size, err = writeWhole(t.local, from)
	done()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the download of %s was cut and nothing is kept; try again", t.remote)
	}
	return t.local, size, orSignal(ctx, err)
}

// downloadTarget decides which local file a download makes. Only a regular
// file is ever replaced: putting a file in the place of a device or a link
// would do something else than its name says.
func downloadTarget(t transfer) (string, error) {
	fi, err := os.Stat(t.local)
	if err == nil && fi.IsDir() {
		name := path.Base(path.Clean(t.remote))
		if name == "/" || name == ".." || name == "." {
			return "", fmt.Errorf("%s names no file; give the local file a name", t.remote)
		}
		t.local = filepath.Join(t.local, name)
	}
	fi, err = os.Lstat(t.local)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t.local, nil
	case err != nil:
		return "", localError(t.local, err)
	case !fi.Mode().IsRegular():
		return "", fmt.Errorf("%s exists and is not a regular file; choose another name", t.local)
	}
	return t.local, nil
}

// writeWhole writes a file beside its final name and renames it, so that no
// half of it is ever seen.
func writeWhole(name string, content io.Reader) (n int64, err error) {
	tmp := filepath.Join(filepath.Dir(name), ".eqvps-"+rand.Text())
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return 0, localError(name, err)
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	w := bufio.NewWriterSize(f, 256<<10)
	n, err = io.Copy(w, content)
	if err = errors.Join(err, w.Flush(), f.Close()); err != nil {
		return 0, err
	}
	return n, os.Rename(tmp, name)
}

// progressEvery is how often the line is drawn anew.
const progressEvery = 100 * time.Millisecond

// progress lets a person watch what is read from *r; the function it returns
// clears the line. Nothing is drawn where nobody watches.
func (a *app) progress(name string, size int64, r *io.Reader) (done func()) {
	if !isTerminal(a.stderr) || *r == nil {
		return func() {}
	}
	p := &progressReader{r: *r, w: a.stderr, name: inert(name), size: size, began: time.Now()}
	*r = p
	return func() {
		if !p.drawn.IsZero() {
			fmt.Fprint(a.stderr, "\r\x1b[K")
		}
	}
}

type progressReader struct {
	r            io.Reader
	w            io.Writer
	name         string
	size, read   int64 // size is -1 when unknown
	began, drawn time.Time
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.read += int64(n)
	if now := time.Now(); now.Sub(p.began) > progressEvery && now.Sub(p.drawn) > progressEvery {
		p.drawn = now
		rate := float64(p.read) / now.Sub(p.began).Seconds()
		of := ""
		if p.size > 0 {
			of = fmt.Sprintf(" of %s (%d %%)", humanize.Bytes(uint64(p.size)), 100*p.read/p.size)
		}
		fmt.Fprintf(p.w, "\r\x1b[K%s  %s%s  %s/s", p.name, humanize.Bytes(uint64(p.read)), of, humanize.Bytes(uint64(rate)))
	}
	return n, err
}
