package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// removeTimeout is how long one call removes.
const removeTimeout = 30 * time.Second

// remove removes what a path names, never what a link leads to.
func (a *Agent) remove(w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	name := strings.TrimRight(p, "/")
	switch name[strings.LastIndexByte(name, '/')+1:] {
	case "", ".", "..":
		return eqvps.Errorf(eqvps.CodeInvalidPath, "The path %.200q is not removed; name what is to go by its own name.", p)
	}
	st, err := os.Lstat(name)
	if err != nil {
		return fileError(p, err)
	}
	if !st.IsDir() {
		if name != p {
			return fileError(p, unix.ENOTDIR)
		}
		if err := unix.Unlink(name); err != nil {
			return fileError(p, err)
		}
		return reply(w, wire.Removal{Entries: 1, Complete: true})
	}
	if r.URL.Query().Get(wire.ParamRecursive) == "" {
		if err := unix.Rmdir(name); err != nil {
			return fileError(p, err)
		}
		return reply(w, wire.Removal{Entries: 1, Complete: true})
	}
	ctx, cancel := context.WithTimeout(r.Context(), removeTimeout)
	defer cancel()
	n, err := removeTree(ctx, name)
	if err != nil && ctx.Err() == nil {
		return fileError(p, err)
	}
	return reply(w, wire.Removal{Entries: n, Complete: err == nil})
}

// level is a folder on the way down. Only the deepest one is open, so that a
// tree may be deeper than there are descriptors.
type level struct {
	name     string // in the folder above
	dev, ino uint64
	left     []string // folders in it that were seen
}

const (
	// batch is how many names are read at once.
	batch = 512
	// maxLeft is the depth below which no names are kept: deep trees are read
	// anew instead.
	maxLeft = 64
)

// removeTree removes a folder and what is below it, until ctx ends. It goes
// from folder to folder by descriptor and follows no link; it stays on one file
// system, so that what is mounted below is not emptied.
func removeTree(ctx context.Context, root string) (removed int64, err error) {
	above, outside, err := openLevel(unix.AT_FDCWD, parent(root), 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(above)
	dir, first, err := openLevel(above, root[strings.LastIndexByte(root, '/')+1:], unix.O_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(dir) }()
	if first.dev != outside.dev {
		return 0, unix.EBUSY // a file system is mounted here
	}
	way := []*level{first}
	enter := func(fd int, l *level) {
		_ = unix.Close(dir)
		dir = fd
		way = append(way, l)
	}
	for {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		here := way[len(way)-1]
		if n := len(here.left); n > 0 {
			name := here.left[n-1]
			here.left = here.left[:n-1]
			fd, l, err := openLevel(dir, name, unix.O_NOFOLLOW)
			if gone(err) {
				continue
			}
			if err != nil {
				return removed, err
			}
			enter(fd, l)
			if l.dev != first.dev {
				return removed, unix.EBUSY
			}
			continue
		}
		names, err := readNames(dir)
		if err != nil {
			return removed, err
		}
		if len(names) > 0 {
			n, err := here.removeNames(ctx, dir, names)
			removed += n
			if err != nil {
				return removed, err
			}
			if len(way) > maxLeft {
				here.left = here.left[:min(1, len(here.left))]
			}
			continue
		}
		// Empty: up, and away with it.
		way = way[:len(way)-1]
		if len(way) == 0 {
			if err := unix.Unlinkat(above, here.name, unix.AT_REMOVEDIR); err != nil {
				return removed, err
			}
			return removed + 1, nil
		}
		fd, l, err := openLevel(dir, "..", 0)
		if err != nil {
			return removed, err
		}
		_ = unix.Close(dir)
		dir = fd
		if want := way[len(way)-1]; l.dev != want.dev || l.ino != want.ino {
			return removed, eqvps.Errorf(eqvps.CodeInvalidPath, "The folder %.200q was moved while it was being removed.", root)
		}
		switch err := unix.Unlinkat(dir, here.name, unix.AT_REMOVEDIR); {
		case err == nil:
			removed++
		case !gone(err) && !errors.Is(err, unix.ENOTEMPTY): // filled again meanwhile
			return removed, err
		}
	}
}

// gone reports whether something has changed since its folder was read.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func openLevel(at int, name string, flags int) (fd int, l *level, err error) {
	fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1, nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	return fd, &level{name: name, dev: st.Dev, ino: st.Ino}, nil
}

// readNames returns some of what is in a folder, from its start; none: it is
// empty.
func readNames(dir int) ([]string, error) {
	// A description of its own, whose position is the start.
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "folder")
	defer f.Close()
	names, err := f.Readdirnames(batch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// removeNames removes entries of a folder, except for folders, which it keeps
// for later.
func (l *level) removeNames(ctx context.Context, dir int, names []string) (removed int64, err error) {
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		switch err := unix.Unlinkat(dir, name, 0); {
		case err == nil:
			removed++
		case errors.Is(err, unix.EISDIR):
			l.left = append(l.left, name)
		case !errors.Is(err, unix.ENOENT):
			return removed, err
		}
	}
	return removed, nil
}
