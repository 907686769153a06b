package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// makeDir makes a folder and its parents. A link to a folder is one.
func (a *Agent) makeDir(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	mode, err := modeParam(r)
	if err != nil {
		return err
	}
	st, err := os.Stat(p)
	if err == nil && !st.IsDir() {
		return fileError(p, unix.EEXIST)
	}
	if err != nil {
		undo, err := makeDirs(p)
		if err == nil {
			if err = unix.Chmod(p, mode); err == nil {
				st, err = os.Stat(p)
			}
			if err != nil {
				undo()
			}
		}
		if err != nil {
			return fileError(p, err)
		}
	}
	return reply(w, entry(p, p, st))
}

// moveTimeout bounds the copy that a move to another file system is.
const moveTimeout = 45 * time.Second

// move renames. What is at the new name stays unless it may be replaced.
func (a *Agent) move(w http.ResponseWriter, r *http.Request) error {
	from, err := pathParam(r)
	if err != nil {
		return err
	}
	to, err := wire.DecodeBytes(r.URL.Query().Get(wire.ParamTo))
	if err != nil {
		return badRequest(err)
	}
	if err := eqvps.ValidatePath(to); err != nil {
		return err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if r.URL.Query().Get(wire.ParamOverwrite) != "" {
		flags = 0
	}
	st, err := os.Lstat(from)
	if err != nil {
		return fileError(from, err)
	}
	undo, err := makeDirs(parent(to))
	if err != nil {
		return fileError(to, err)
	}
	err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	if errors.Is(err, unix.EXDEV) {
		ctx, cancel := context.WithTimeout(r.Context(), moveTimeout)
		defer cancel()
		err = moveAcross(ctx, from, to, st, flags)
	}
	if err != nil {
		undo()
		return moveError(from, to, err)
	}
	if st, err = os.Lstat(to); err != nil {
		return fileError(to, err)
	}
	return reply(w, entry(to, to, st))
}

func moveError(from, to string, err error) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return eqvps.Errorf(eqvps.CodeInvalidPath, "The folder %.100q cannot be moved into itself, to %.100q.", from, to)
	case errors.Is(err, unix.EBUSY):
		return eqvps.Errorf(eqvps.CodeInvalidPath, "The path %.200q is in use by the system and stays.", from)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY):
		return eqvps.Errorf(eqvps.CodeFileExists, "There is a folder at %.200q already, and it is not replaced.", to)
	}
	return fileError(to, err)
}

// moveAcross moves a file or a link to another file system: the copy is whole
// before the original goes.
func moveAcross(ctx context.Context, from, to string, st fs.FileInfo, flags uint) error {
	if kind, is := kindOf(st.Mode()); kind != eqvps.TypeFile && kind != eqvps.TypeSymlink {
		return eqvps.Errorf(eqvps.CodeInvalidValue, "The %s %.200q lies on another file system, where only files and links are moved to; use the command mv.", is, from)
	}
	s, err := stageIn(parent(to))
	if err != nil {
		return err
	}
	defer s.drop()
	s.base = to[strings.LastIndexByte(to, '/')+1:]
	if st.Mode().IsRegular() {
		err = s.copyFile(ctx, from, st)
	} else {
		err = s.copyLink(from)
	}
	if err != nil {
		return err
	}
	if err := s.rename(flags); err != nil {
		return err
	}
	return os.Remove(from)
}

// copyLink makes a link in the place of the staged file.
func (s *staged) copyLink(from string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if s.temp != "" {
		_ = unix.Unlinkat(s.dir, s.temp, 0)
	}
	s.temp, err = unusedName(func(name string) error { return unix.Symlinkat(target, s.dir, name) })
	return err
}

// copyFile copies a file with its owner, mode and time.
func (s *staged) copyFile(ctx context.Context, from string, st fs.FileInfo) error {
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	if now, err := src.Stat(); err != nil || !os.SameFile(st, now) {
		return errors.Join(err, unix.ENOENT)
	}
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	if _, err := io.CopyBuffer(struct{ io.Writer }{s.f}, untilDone{ctx, src}, buf[:]); err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		if err := s.f.Chown(int(sys.Uid), int(sys.Gid)); err != nil {
			return err
		}
	}
	fd := int(s.f.Fd())
	if err := unix.Fchmod(fd, unixMode(st.Mode())); err != nil {
		return err
	}
	return os.Chtimes("/proc/self/fd/"+strconv.Itoa(fd), time.Time{}, st.ModTime())
}

// untilDone reads until ctx is over.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, eqvps.Errorf(eqvps.CodeTooLarge, "The file lies on another file system and takes longer than %d seconds to copy; use the command mv.", int(moveTimeout.Seconds()))
	}
	return u.r.Read(p)
}
