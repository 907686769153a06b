package guest_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
)

// check fails the test where an error is not the one that is wanted; "" is
// none.
func check(t *testing.T, what string, err error, want eqvps.Code) {
	t.Helper()
	if got := eqvps.ErrorCode(err); got != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestMakeDir(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	write(t, dir+"/file", "x")
	if err := os.Symlink(".", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	info, err := c.MakeDir(t.Context(), dir+"/a\n\xff/b/", 0o2710)
	if err != nil || info.Type != eqvps.TypeDir || info.Mode != 0o2710 {
		t.Errorf("%+v, %v", info, err)
	}
	if st, err := os.Stat(dir + "/a\n\xff"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the parent: %v, %v", st, err)
	}
	for path, want := range map[string]eqvps.Code{
		dir + "/a\n\xff/b": "", "/": "", dir + "/link": "", dir + "//x//y": "", dir + "/file": eqvps.CodeFileExists,
		dir + "/file/x": eqvps.CodeNotADirectory, "/proc/nothing/x": eqvps.CodeFileNotFound,
		dir + "/new/" + strings.Repeat("n", 256): eqvps.CodeInvalidPath, "": eqvps.CodeInvalidPath, "x": eqvps.CodeInvalidPath,
	} {
		_, err := c.MakeDir(t.Context(), path, 0)
		check(t, fmt.Sprintf("%q", path), err, want)
	}
	if info, err := c.MakeDir(t.Context(), dir+"/a\n\xff/b", 0o700); err != nil || info.Mode != 0o2710 {
		t.Errorf("a folder that is there: %+v, %v", info, err)
	}
	// What fails leaves none of the parents that were made for it.
	if diff := cmp.Diff([]string{"a\n\xff", "file", "link", "x"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestMove(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	write(t, dir+"/a", "a")
	write(t, dir+"/b", "b")
	write(t, dir+"/d/x", "x")
	for _, err := range []error{os.Mkdir(dir+"/empty", 0o700), os.Symlink("/nowhere", dir+"/link")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string, overwrite bool) error {
		_, err := c.Move(t.Context(), eqvps.Move{From: dir + from, To: dir + to, Overwrite: overwrite})
		return err
	}
	for _, w := range []struct {
		from, to  string
		overwrite bool
		want      eqvps.Code
	}{
		{"/a", "/b", false, eqvps.CodeFileExists},
		{"/a", "/a", false, eqvps.CodeFileExists},
		{"/a", "/link", false, eqvps.CodeFileExists}, // not through it either
		{"/none", "/made/for/it", false, eqvps.CodeFileNotFound},
		{"/d", "/d/e/f", false, eqvps.CodeInvalidPath},
		{"/a", "/d", true, eqvps.CodeFileExists},
		{"/empty", "/d", true, eqvps.CodeFileExists},
		{"/a", "/b/x", false, eqvps.CodeNotADirectory},
		{"/a", "/new/" + strings.Repeat("n", 256), false, eqvps.CodeInvalidPath},
		{"/d", "/empty", true, ""},
		{"/empty", "/d", false, ""},
		{"/a", "/b", true, ""},
		{"/b", "/deep/er/\xff\n", false, ""},
		{"/link", "/moved", false, ""},
	} {
		check(t, w.from+" to "+w.to, move(w.from, w.to, w.overwrite), w.want)
	}
	if got := content(t, dir+"/deep/er/\xff\n"); got != "a" {
		t.Errorf("the moved file is %q", got)
	}
	if to, err := os.Readlink(dir + "/moved"); err != nil || to != "/nowhere" {
		t.Errorf("the moved link: %q, %v", to, err)
	}
	if diff := cmp.Diff([]string{"d", "deep", "moved"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// To another file system a file is copied, and whole before the original goes.
func TestMoveAcross(t *testing.T) {
	c := newMachine(t).connect(t)
	dir, other := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", other, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(other, unix.MNT_DETACH)
	write(t, dir+"/file", "content")
	write(t, dir+"/big", strings.Repeat("x", 2<<20))
	write(t, dir+"/d/x", "x")
	if err := os.Symlink("x", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(dir + "/file")
	for name, want := range map[string]eqvps.Code{"file": "", "link": "", "big": eqvps.CodeDiskFull, "d": eqvps.CodeInvalidValue} {
		_, err := c.Move(t.Context(), eqvps.Move{From: dir + "/" + name, To: other + "/to/" + name})
		check(t, name, err, want)
	}
	st, err := os.Stat(other + "/to/file")
	if err != nil || st.Mode() != before.Mode() || !st.ModTime().Equal(before.ModTime()) || content(t, other+"/to/file") != "content" {
		t.Errorf("the copy: %v, %v", st, err)
	}
	if diff := cmp.Diff([]string{"file", "link"}, names(t, other+"/to")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"big", "d"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
	write(t, dir+"/file", "again")
	_, err = c.Move(t.Context(), eqvps.Move{From: dir + "/file", To: other + "/to/file"})
	check(t, "onto a file", err, eqvps.CodeFileExists)
	if got := content(t, other+"/to/file"); got != "content" || content(t, dir+"/file") != "again" {
		t.Errorf("what was there is %q", got)
	}
}

func TestRemove(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	keep := t.TempDir()
	write(t, keep+"/kept", "x")
	for i := range 1500 {
		write(t, fmt.Sprintf("%s/tree/d%d/f", dir, i%700), "x")
		write(t, fmt.Sprintf("%s/tree/f%d", dir, i), "x")
	}
	deep := dir + "/tree" + strings.Repeat("/dd", 1000)
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/one", "x")
	write(t, dir+"/full/x", "x")
	for link, to := range map[string]string{"/tree/out": keep, "/link": keep, deep[len(dir):] + "/up": "../.."} {
		if err := os.Symlink(to, dir+link); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		path      string
		recursive bool
		want      eqvps.Code
		entries   int64
	}{
		{path: "/", recursive: true, want: eqvps.CodeInvalidPath},
		{path: "//.", recursive: true, want: eqvps.CodeInvalidPath},
		{path: dir + "/full/..", recursive: true, want: eqvps.CodeInvalidPath},
		{path: "/proc", recursive: true, want: eqvps.CodeInvalidPath},
		{path: dir + "/none", want: eqvps.CodeFileNotFound},
		{path: dir + "/full", want: eqvps.CodeNotEmpty},
		{path: dir + "/link/", recursive: true, want: eqvps.CodeNotADirectory},
		{path: dir + "/one/", want: eqvps.CodeNotADirectory},
		{path: dir + "/one", entries: 1},
		{path: dir + "/pipe", entries: 1},
		{path: dir + "/link", recursive: true, entries: 1},
		{path: dir + "/full", recursive: true, entries: 2},
		{path: dir + "/tree/", recursive: true, entries: 1 + 2*700 + 1500 + 1000 + 2},
	} {
		r, err := c.Remove(t.Context(), w.path, w.recursive)
		check(t, w.path, err, w.want)
		if err == nil && (!r.Complete || r.Entries != w.entries) {
			t.Errorf("%s: %+v, want %d entries", w.path, r, w.entries)
		}
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if content(t, keep+"/kept") != "x" {
		t.Error("a link was followed")
	}
}

// What is mounted below a folder is not emptied with it.
func TestRemoveStaysOnItsFileSystem(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	mounted := dir + "/a/mounted"
	write(t, mounted+"/below", "x")
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(mounted, unix.MNT_DETACH)
	write(t, mounted+"/kept", "x")
	for _, path := range []string{dir + "/a", mounted} {
		_, err := c.Remove(t.Context(), path, true)
		check(t, path, err, eqvps.CodeInvalidPath)
	}
	if content(t, mounted+"/kept") != "x" {
		t.Error("what is mounted was emptied")
	}
}

func TestRanges(t *testing.T) {
	c := newMachine(t).connect(t)
	file := t.TempDir() + "/file"
	write(t, file, "0123456789")
	for _, w := range []struct {
		offset, length int64
		want           string
		code           eqvps.Code
	}{
		{0, 0, "0123456789", ""}, {2, 3, "234", ""}, {7, 0, "789", ""}, {-3, 0, "789", ""}, {-30, 2, "01", ""}, {9, 50, "9", ""},
		{10, 0, "", eqvps.CodeInvalidRange}, {11, 5, "", eqvps.CodeInvalidRange},
	} {
		info, r, err := c.Download(t.Context(), eqvps.DownloadRequest{Path: file, Offset: w.offset, Length: w.length})
		check(t, fmt.Sprint(w), err, w.code)
		if info.Size != 10 {
			t.Errorf("%v: the size is %d", w, info.Size)
		}
		if err != nil {
			continue
		}
		b, err := io.ReadAll(r)
		r.Close()
		if string(b) != w.want || err != nil {
			t.Errorf("%v: %q, %v", w, b, err)
		}
	}
	// A range of a file that the kernel makes up.
	all, err := download(t, c, "/proc/self/mounts")
	if err != nil || len(all) < 10 {
		t.Fatal(all, err)
	}
	_, r, err := c.Download(t.Context(), eqvps.DownloadRequest{Path: "/proc/self/mounts", Offset: 2, Length: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, _ := io.ReadAll(r); string(b) != all[2:7] {
		t.Errorf("%q, want %q", b, all[2:7])
	}
	// Files of /sys say that they have a page.
	want, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if got, gotErr := download(t, c, "/sys/kernel/mm/transparent_hugepage/enabled"); err != nil || gotErr != nil || got != string(want) {
		t.Errorf("%q, %v; want %q, %v", got, gotErr, want, err)
	}
}

// Entries that vanish while a folder is read do not make an empty page that
// says that more follows.
func TestListWhileEntriesVanish(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			a, b := fmt.Sprintf("%s/a%d", dir, i), fmt.Sprintf("%s/b%d", dir, i)
			_ = os.WriteFile(a, nil, 0o600)
			_ = os.WriteFile(b, nil, 0o600)
			_ = os.Remove(a)
			_ = os.Remove(b)
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 2000 {
		if entries, more, err := c.ListFiles(t.Context(), dir, "", 1); err != nil || more && len(entries) == 0 {
			t.Fatal(entries, more, err)
		}
	}
}
