package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// pathParam reads a path of a request.
func pathParam(r *http.Request) (string, error) {
	p, err := wire.DecodeBytes(r.URL.Query().Get(wire.ParamPath))
	if err != nil {
		return "", badRequest(err)
	}
	return p, eqvps.ValidatePath(p)
}

// fileError gives an error of the file system its place in the vocabulary.
func fileError(p string, err error) error {
	shown := fmt.Sprintf("%.200q", p)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return eqvps.Errorf(eqvps.CodeDiskFull, "The sandbox's disk is full.")
	case errors.Is(err, fs.ErrNotExist):
		return eqvps.Errorf(eqvps.CodeFileNotFound, "There is no file %s in the sandbox.", shown)
	case errors.Is(err, unix.ENOTDIR):
		return eqvps.Errorf(eqvps.CodeNotADirectory, "A part of %s is not a folder.", shown)
	case errors.Is(err, unix.EISDIR):
		return notAFile(p, "folder")
	case errors.As(err, new(unix.Errno)):
		// The file system has the last word: EACCES, ELOOP, EROFS, EBUSY, or EIO
		// from a file of /proc that cannot be read.
		return eqvps.Errorf(eqvps.CodeInvalidPath, "The path %s cannot be used: %s.", shown, strings.ToLower(reason(err)))
	}
	return err
}

func notAFile(p, is string) error {
	return eqvps.Errorf(eqvps.CodeNotAFile, "The path %.200q names a %s, not a regular file.", p, is)
}

// kindOf is the domain's type of a file, and its name for people.
func kindOf(m fs.FileMode) (eqvps.FileType, string) {
	switch m.Type() {
	case 0:
		return eqvps.TypeFile, "file"
	case fs.ModeDir:
		return eqvps.TypeDir, "folder"
	case fs.ModeSymlink:
		return eqvps.TypeSymlink, "link"
	case fs.ModeNamedPipe:
		return eqvps.TypeOther, "pipe"
	case fs.ModeSocket:
		return eqvps.TypeOther, "socket"
	}
	return eqvps.TypeOther, "device"
}

func entry(name, file string, st fs.FileInfo) wire.Entry {
	kind, _ := kindOf(st.Mode())
	e := wire.Entry{
		Name: []byte(name), Type: string(kind), Size: st.Size(),
		Mode: unixMode(st.Mode()), MtimeN: st.ModTime().UnixNano(),
	}
	if kind == eqvps.TypeSymlink {
		target, _ := os.Readlink(file)
		e.Target = []byte(target)
	}
	return e
}

// unixMode is the permission bits with setuid, setgid and sticky, as chmod
// numbers them.
func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= unix.S_ISUID
	}
	if m&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	if m&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}

func (a *Agent) stat(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	st, err := os.Lstat(p)
	if err != nil {
		return fileError(p, err)
	}
	return reply(w, entry(p, p, st))
}

// upload writes a file whole or not at all. It is not forced to disk: the
// machine and its disk live and die together.
func (a *Agent) upload(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	mode, err := strconv.ParseUint(r.URL.Query().Get(wire.ParamMode), 8, 32)
	if err != nil || mode > 0o7777 {
		return badRequest(errors.New("bad mode"))
	}
	if strings.HasSuffix(p, "/") {
		return notAFile(p, "folder")
	}
	target, err := resolve(p)
	if err != nil {
		return fileError(p, err)
	}
	if st, err := os.Lstat(target); err == nil && !st.Mode().IsRegular() {
		_, is := kindOf(st.Mode())
		return notAFile(p, is)
	}
	dir := path.Dir(target)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fileError(p, err)
	}
	tmp, err := createTemp(dir)
	if err != nil {
		return fileError(p, err)
	}
	defer func() {
		if tmp != nil {
			_ = tmp.Close()
			_ = os.Remove(tmp.Name())
		}
	}()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	n, err := io.CopyBuffer(struct{ io.Writer }{tmp}, io.LimitReader(r.Body, eqvps.MaxFileBytes+1), buf[:])
	if err != nil {
		return fileError(p, err)
	}
	if n > eqvps.MaxFileBytes {
		return eqvps.Errorf(eqvps.CodeTooLarge, "The file is larger than %d bytes.", eqvps.MaxFileBytes)
	}
	if err := unix.Fchmod(int(tmp.Fd()), uint32(mode)); err != nil {
		return fileError(p, err)
	}
	st, err := tmp.Stat()
	if err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return fileError(p, err)
	}
	if err := os.Rename(tmp.Name(), target); err != nil {
		return fileError(p, err)
	}
	tmp = nil
	return reply(w, entry(p, p, st))
}

// uploads counts temporary files, for their names.
var uploads atomic.Uint64

func createTemp(dir string) (*os.File, error) {
	for {
		name := fmt.Sprintf("%s/.eqvps-upload-%d", dir, uploads.Add(1))
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}

// resolve follows the links a path ends in, also to a file that is not there
// yet, as a shell's redirection does.
func resolve(p string) (string, error) {
	for range 40 {
		to, err := os.Readlink(p)
		if err != nil {
			return p, nil // not a link, or nothing there
		}
		if !filepath.IsAbs(to) {
			// The link's folder may be reached through links itself.
			dir, err := filepath.EvalSymlinks(path.Dir(p))
			if err != nil {
				return "", err
			}
			to = path.Join(dir, to)
		}
		p = to
	}
	return "", unix.ELOOP
}

// openRegular opens a regular file. Nothing else is ever opened: opening a
// pipe waits and opening a device may do something.
func openRegular(p string) (*os.File, fs.FileInfo, error) {
	fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fileError(p, err)
	}
	at := os.NewFile(uintptr(fd), p)
	defer at.Close()
	st, err := at.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		_, is := kindOf(st.Mode())
		return nil, nil, notAFile(p, is)
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fileError(p, err)
	}
	return f, st, nil
}

// maxUnsized is how much is read of a file that says it is empty and is not,
// such as those of /proc.
const maxUnsized = 1 << 20

func (a *Agent) download(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	f, st, err := openRegular(p)
	if err != nil {
		return err
	}
	defer f.Close()
	e := entry(p, p, st)
	var content io.Reader = f
	if e.Size == 0 {
		b, err := io.ReadAll(io.LimitReader(f, maxUnsized))
		if err != nil {
			return fileError(p, err)
		}
		e.Size, content = int64(len(b)), bytes.NewReader(b)
	}
	head, err := json.Marshal(e)
	if err != nil {
		return err
	}
	bareHeader(w)
	w.Header().Set(wire.HeaderEntry, string(head))
	w.Header().Set("Content-Length", strconv.FormatInt(e.Size, 10))
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	// A file that ends early ends the connection early, and so fails there.
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(content, e.Size), buf[:])
	return nil
}

// maxListed bounds the bytes of names and targets in one page.
const maxListed = 4 << 20

func (a *Agent) list(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	after, err := wire.DecodeBytes(r.URL.Query().Get(wire.ParamAfter))
	if err != nil {
		return badRequest(err)
	}
	limit, err := strconv.Atoi(r.URL.Query().Get(wire.ParamLimit))
	if err != nil || limit < 1 || limit > wire.MaxEntries {
		return badRequest(errors.New("bad limit"))
	}
	names, err := namesAfter(p, after, limit+1)
	if err != nil {
		return fileError(p, err)
	}
	out := wire.Listing{Entries: []wire.Entry{}, More: len(names) > limit}
	names = names[:min(limit, len(names))]
	size := 0
	for _, name := range names {
		if size > maxListed {
			out.More = true
			break
		}
		file := strings.TrimRight(p, "/") + "/" + name
		st, err := os.Lstat(file)
		if err != nil {
			continue // gone in the meantime
		}
		e := entry(name, file, st)
		size += len(e.Name) + len(e.Target) + 100
		out.Entries = append(out.Entries, e)
	}
	return reply(w, out)
}

// namesAfter returns the first n names of a folder after the one given, in the
// order of bytes. It never holds many more than that, however large the folder
// is.
func namesAfter(dir, after string, n int) ([]string, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var kept []string
	for {
		batch, err := f.Readdirnames(1024)
		for _, name := range batch {
			if name > after {
				kept = append(kept, name)
			}
		}
		if len(kept) > 4*n+1024 || err != nil {
			slices.Sort(kept)
			kept = slices.Clone(kept[:min(n, len(kept))])
		}
		if errors.Is(err, io.EOF) {
			return kept, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
