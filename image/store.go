package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

const (
	idPrefix    = "img_"
	idDigits    = 20
	tempPrefix  = ".build-"
	lockFile    = ".lock"
	minIDDigits = 4 // an abbreviated id has at least so many
)

// Store is a folder of images. It is safe for concurrent use, also by several
// processes.
type Store struct {
	dir  string
	host host
}

// Open returns the store in dir. The folder is made by the first build.
func Open(dir string) *Store {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return &Store{dir: dir, host: realHost()}
}

// Dir returns the store's folder, absolute.
func (s *Store) Dir() string { return s.dir }

// List returns all usable images, newest first. A damaged one is left out.
func (s *Store) List() ([]*Image, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var list []*Image
	for _, id := range ids {
		img, err := open(filepath.Join(s.dir, id))
		if errors.Is(err, ErrDamaged) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, img)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].CreatedAt.After(list[j].CreatedAt) })
	return list, nil
}

// Get finds an image by name, by id, or by the beginning of an id (at least
// four digits). It checks that every file is there in its right size. The error
// wraps ErrNotFound or ErrDamaged.
func (s *Store) Get(ref string) (*Image, error) {
	id, err := s.resolve(ref)
	if err != nil {
		return nil, err
	}
	return open(filepath.Join(s.dir, id))
}

// Verify reads every byte of an image and compares it with the manifest. The
// error wraps ErrNotFound or ErrDamaged.
func (s *Store) Verify(ref string) error {
	img, err := s.Get(ref)
	if err != nil {
		return err
	}
	for name, want := range img.Files {
		got, err := hashFile(filepath.Join(img.Dir, name))
		if err != nil {
			return damaged(img.Dir, name, "cannot be read")
		}
		if got != want {
			return damaged(img.Dir, name, fmt.Sprintf("has the hash %s instead of %s", got.SHA256, want.SHA256))
		}
	}
	return nil
}

// Remove deletes an image and the names that lead to it; damaged ones too. The
// caller knows that no machine needs it any more.
func (s *Store) Remove(ref string) error {
	id, err := s.resolve(ref)
	if err != nil {
		return err
	}
	unlock, err := s.lock(context.Background(), nil)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := s.names()
	if err != nil {
		return err
	}
	for name, target := range names {
		if target == id {
			if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
				return fmt.Errorf("the name %s cannot be removed: %w", name, err)
			}
		}
	}
	return s.discard(filepath.Join(s.dir, id))
}

// resolve turns a reference into the id of an existing folder.
func (s *Store) resolve(ref string) (string, error) {
	missing := fmt.Errorf("%w: %q; build it with `eqvps image build`", ErrNotFound, ref)
	digits, isID := strings.CutPrefix(ref, idPrefix)
	if !isID {
		if !namePattern.MatchString(ref) {
			return "", missing
		}
		id, err := os.Readlink(filepath.Join(s.dir, ref))
		if err != nil || !isImageID(id) {
			return "", missing
		}
		return id, nil
	}
	if len(digits) < minIDDigits {
		return "", missing
	}
	ids, err := s.ids()
	if err != nil {
		return "", err
	}
	var found []string
	for _, id := range ids {
		if strings.HasPrefix(id, ref) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", missing
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: %q is the beginning of %d ids; give more digits", ErrNotFound, ref, len(found))
}

// ids lists the image folders.
func (s *Store) ids() ([]string, error) {
	entries, err := s.entries()
	var ids []string
	for _, e := range entries {
		if e.IsDir() && isImageID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// names lists the named references and the ids they lead to.
func (s *Store) names() (map[string]string, error) {
	entries, err := s.entries()
	names := map[string]string{}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 || !namePattern.MatchString(e.Name()) {
			continue
		}
		if id, err := os.Readlink(filepath.Join(s.dir, e.Name())); err == nil {
			names[e.Name()] = id
		}
	}
	return names, err
}

func (s *Store) entries() ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the image store cannot be read: %w", err)
	}
	return entries, nil
}

func isImageID(s string) bool {
	digits, ok := strings.CutPrefix(s, idPrefix)
	return ok && len(digits) == idDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// link makes name lead to id, replacing what it led to in one step. The caller
// holds the lock.
func (s *Store) link(name, id string) error {
	temp := filepath.Join(s.dir, tempPrefix+"link")
	err := os.Symlink(id, temp)
	if err == nil {
		err = os.Rename(temp, filepath.Join(s.dir, name))
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		os.Remove(temp)
		return fmt.Errorf("the name %s cannot be given to %s: %w", name, id, err)
	}
	return nil
}

// lock makes this process the only one that changes the store, and clears away
// what builders left that were killed. waiting is called once if another holds
// the lock.
func (s *Store) lock(ctx context.Context, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("the image store cannot be made: %w", err)
	}
	l := flock.New(filepath.Join(s.dir, lockFile))
	ok, err := l.TryLock()
	if err == nil && !ok {
		if waiting != nil {
			waiting()
		}
		_, err = l.TryLockContext(ctx, 100*time.Millisecond)
	}
	if ctx.Err() != nil {
		l.Unlock()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("the image store cannot be locked: %w", err)
	}
	entries, err := s.entries()
	for _, e := range entries {
		if err == nil && strings.HasPrefix(e.Name(), tempPrefix) {
			err = s.discard(filepath.Join(s.dir, e.Name()))
		}
	}
	if err != nil {
		l.Unlock()
		return nil, err
	}
	return func() { l.Unlock() }, nil
}
