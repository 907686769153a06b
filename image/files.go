package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// discard removes a folder of the store. A builder that was killed may have
// left file systems mounted in it, the host's /dev among them; they are
// unmounted first, and nothing is deleted through one.
func (s *Store) discard(path string) error {
	mounts, err := mountsUnder(path)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s, left by an interrupted build, cannot be unmounted; unmount it by hand: %w", m, err)
		}
	}
	// A rename first: nobody may find half of an image under its id.
	if filepath.Dir(path) == s.dir && !strings.HasPrefix(filepath.Base(path), tempPrefix) {
		hidden := filepath.Join(s.dir, tempPrefix+"trash-"+filepath.Base(path))
		if err := os.Rename(path, hidden); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s cannot be removed: %w", path, err)
		}
		path = hidden
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("%s cannot be removed: %w", path, err)
	}
	return nil
}

// mountsUnder lists the mount points below path, innermost first.
func mountsUnder(path string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("the host's mounts cannot be read: %w", err)
	}
	return mountPoints(string(b), path), nil
}

func mountPoints(mountinfo, path string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if m := unescape.Replace(fields[4]); strings.HasPrefix(m, path+"/") {
			found = append(found, m)
		}
	}
	sort.Slice(found, func(i, j int) bool { return len(found[i]) > len(found[j]) })
	return found
}

func hashFile(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return File{Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

// syncTree brings every file and folder below dir to disk.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncDir(path)
	})
}

// syncDir brings one folder, or one file, to disk.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
