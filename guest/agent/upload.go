package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// upload writes a file whole or not at all. It is not forced to disk: the
// machine and its disk live and die together.
func (a *Agent) upload(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	mode, err := modeParam(r)
	if err != nil {
		return err
	}
	s, err := stage(p)
	if err != nil {
		return err
	}
	defer s.drop()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	n, err := io.CopyBuffer(struct{ io.Writer }{s.f}, io.LimitReader(r.Body, eqvps.MaxFileBytes+1), buf[:])
	if err != nil {
		return fileError(p, err)
	}
	if n > eqvps.MaxFileBytes {
		return eqvps.Errorf(eqvps.CodeTooLarge, "The file is larger than %d bytes.", eqvps.MaxFileBytes)
	}
	e, err := s.publish(mode)
	if err != nil {
		return err
	}
	return reply(w, e)
}

// staged is a file that is not there yet: it is being written beside its final
// place. All goes by the descriptor of its folder: a longer path than the final
// one may be too long.
type staged struct {
	path string // as it was asked for
	dir  int
	base string // the final name
	f    *os.File
	temp string // "": it has no name, and goes with its last descriptor
	undo func() // removes the folders that were made for it
	done bool
}

// stage begins a file. What is at its path already, and is not a regular file,
// is refused at once.
func stage(p string) (*staged, error) {
	if strings.HasSuffix(p, "/") {
		return nil, notAFile(p, "folder")
	}
	target, err := resolve(p)
	if err != nil {
		return nil, fileError(p, err)
	}
	if st, err := os.Lstat(target); err == nil && !st.Mode().IsRegular() {
		_, is := kindOf(st.Mode())
		return nil, notAFile(p, is)
	}
	undo, err := makeDirs(parent(target))
	if err != nil {
		return nil, fileError(p, err)
	}
	s, err := stageIn(parent(target))
	if err != nil {
		undo()
		return nil, fileError(p, err)
	}
	s.path, s.base, s.undo = p, target[strings.LastIndexByte(target, '/')+1:], undo
	return s, nil
}

// stageIn begins a file that has no name yet, so that nobody sees it and
// nothing is left of it, whatever happens. In a file system that has none of
// these it gets one.
func stageIn(dir string) (*staged, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &staged{dir: fd, undo: func() {}}
	file, err := unix.Openat(fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		s.temp, err = unusedName(func(name string) (err error) {
			file, err = unix.Openat(fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
			return err
		})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.f = os.NewFile(uintptr(file), dir)
	return s, nil
}

// publish gives the file its name, in the place of what had it before.
func (s *staged) publish(mode uint32) (wire.Entry, error) {
	if err := unix.Fchmod(int(s.f.Fd()), mode); err != nil {
		return wire.Entry{}, fileError(s.path, err)
	}
	st, err := s.f.Stat()
	if err != nil {
		return wire.Entry{}, err
	}
	if err := s.rename(0); err != nil {
		return wire.Entry{}, fileError(s.path, err)
	}
	return entry(s.path, s.path, st), nil
}

// rename moves the file to its final name. A nameless one gets another name
// before, for a moment: without one it cannot take the place of another.
func (s *staged) rename(flags uint) error {
	if s.temp == "" {
		from := "/proc/self/fd/" + strconv.Itoa(int(s.f.Fd()))
		name, err := unusedName(func(name string) error {
			return unix.Linkat(unix.AT_FDCWD, from, s.dir, name, unix.AT_SYMLINK_FOLLOW)
		})
		if err != nil {
			return err
		}
		s.temp = name
	}
	if err := unix.Renameat2(s.dir, s.temp, s.dir, s.base, flags); err != nil {
		return err
	}
	s.done = true
	return nil
}

// drop lets go of a file, and removes every trace of one that was not
// published.
func (s *staged) drop() {
	if s.f != nil {
		_ = s.f.Close()
	}
	if !s.done && s.temp != "" {
		_ = unix.Unlinkat(s.dir, s.temp, 0)
	}
	_ = unix.Close(s.dir)
	if !s.done {
		s.undo()
	}
}

// uploads counts temporary names.
var uploads atomic.Uint64

// unusedName finds a name that is free for create.
func unusedName(create func(name string) error) (string, error) {
	for {
		name := fmt.Sprintf(".eqvps-upload-%d", uploads.Add(1))
		err := create(name)
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return "", err
		}
	}
}

// parent is the folder of an absolute path. Unlike path.Dir it leaves ".." to
// the kernel, for which it may lead elsewhere behind a link.
func parent(p string) string {
	p = strings.TrimRight(p, "/")
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "/"
}

// makeDirs makes a folder and its parents. undo removes those that it has made,
// as far as they are still empty.
func makeDirs(dir string) (undo func(), err error) {
	var made []string
	undo = func() {
		for i := len(made) - 1; i >= 0; i-- {
			_ = unix.Rmdir(made[i])
		}
	}
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		return undo, nil
	}
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' || dir[i-1] == '/' {
			continue
		}
		switch err := os.Mkdir(dir[:i], 0o755); {
		case err == nil:
			made = append(made, dir[:i])
		case !errors.Is(err, fs.ErrExist):
			undo()
			return nil, err
		}
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		undo()
		return nil, err
	}
	return undo, nil
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
			to = parent(p) + "/" + to
		}
		p = to
	}
	return "", unix.ELOOP
}
