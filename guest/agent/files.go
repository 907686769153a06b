package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

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

// intParam reads a number of a request; absent is 0.
func intParam(r *http.Request, name string) (int64, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, badRequest(err)
	}
	return n, nil
}

// modeParam reads permission bits.
func modeParam(r *http.Request) (uint32, error) {
	mode, err := strconv.ParseUint(r.URL.Query().Get(wire.ParamMode), 8, 32)
	if err != nil || mode > 0o7777 {
		return 0, badRequest(errors.New("bad mode"))
	}
	return uint32(mode), nil
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
	case errors.Is(err, unix.ENOTEMPTY):
		return eqvps.Errorf(eqvps.CodeNotEmpty, "The folder %s is not empty.", shown)
	case errors.Is(err, unix.EEXIST):
		return eqvps.Errorf(eqvps.CodeFileExists, "There is something at %s already.", shown)
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
	out := wire.Listing{Entries: []wire.Entry{}}
	size := 0
	// A page is empty only at the end: names that vanish before they are looked
	// at are made up for by the next ones.
	for range maxVanished {
		names, err := namesAfter(p, after, limit+1)
		if err != nil {
			return fileError(p, err)
		}
		out.More = len(names) > limit
		for _, name := range names[:min(limit, len(names))] {
			if size > maxListed {
				out.More = true
				break
			}
			after = name
			file := strings.TrimRight(p, "/") + "/" + name
			st, err := os.Lstat(file)
			if err != nil {
				continue // gone in the meantime
			}
			e := entry(name, file, st)
			size += len(e.Name) + len(e.Target) + 100
			out.Entries = append(out.Entries, e)
		}
		if len(out.Entries) > 0 || !out.More {
			return reply(w, out)
		}
	}
	return eqvps.Errorf(eqvps.CodeInvalidPath, "The folder %.200q changes faster than it can be read.", p)
}

// maxVanished bounds how often a page is read anew.
const maxVanished = 1000

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
