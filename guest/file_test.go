package guest_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

func upload(t *testing.T, c *guest.Client, path, content string) (eqvps.FileInfo, error) {
	t.Helper()
	return c.Upload(t.Context(), eqvps.UploadRequest{Path: path, Content: strings.NewReader(content), Size: int64(len(content))})
}

func download(t *testing.T, c *guest.Client, path string) (string, error) {
	t.Helper()
	_, r, err := c.Download(t.Context(), eqvps.DownloadRequest{Path: path})
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestUploadAndDownload(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty": "", "text": "hello\n", "deep/er/file": "x", "bytes \xff\xfe?&%": "\x00\xff", "ü": "ü",
		"large": strings.Repeat("0123456789abcdef", 100_000),
	} {
		path := dir + "/" + name
		info, err := upload(t, c, path, content)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		want := eqvps.FileInfo{Path: path, Type: eqvps.TypeFile, Size: int64(len(content)), Mode: 0o644}
		if diff := cmp.Diff(want, info, cmpopts.IgnoreFields(want, "ModTime")); diff != "" {
			t.Errorf("%q: %s", name, diff)
		}
		if got, err := download(t, c, path); err != nil || got != content {
			t.Errorf("%q comes back with %d bytes, %v", name, len(got), err)
		}
		if st, err := c.Stat(t.Context(), path); err != nil || st.Size != want.Size || time.Since(st.ModTime) > time.Minute {
			t.Errorf("%q is described as %+v, %v", name, st, err)
		}
	}
	if st, err := os.Stat(dir + "/deep/er"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("a parent is made as %v, %v", st.Mode(), err)
	}
}

func TestUploadReplaces(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	file, link, dangling := dir+"/file", dir+"/link", dir+"/dangling"
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("new", dangling); err != nil {
		t.Fatal(err)
	}
	_, err := c.Upload(t.Context(), eqvps.UploadRequest{Path: link, Mode: 0o4751, Content: strings.NewReader("through"), Size: -1})
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(file)
	if b, _ := os.ReadFile(file); err != nil || string(b) != "through" || st.Mode() != 0o751|fs.ModeSetuid {
		t.Errorf("through a link the file is %q, %v", b, st.Mode())
	}
	if _, err := upload(t, c, dangling, "made"); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(dir + "/new"); string(b) != "made" {
		t.Errorf("through a dangling link the file is %q", b)
	}
	if diff := cmp.Diff([]string{"dangling", "file", "link", "new"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// An upload that does not come to its end leaves nothing, not even a folder's
// worth of temporary files, and the old content stays.
func TestCutUpload(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, req := range map[string]eqvps.UploadRequest{
		"failing, size known":   {Content: failing{strings.NewReader("half")}, Size: 8},
		"failing, size unknown": {Content: failing{strings.NewReader("half")}, Size: -1},
		"too short":             {Content: strings.NewReader("half"), Size: 8},
		"too long":              {Content: strings.NewReader("twice what was said"), Size: 8},
	} {
		req.Path = dir + "/file"
		if _, err := c.Upload(t.Context(), req); err == nil {
			t.Errorf("%s: the upload succeeds", name)
		} else if strings.HasPrefix(name, "failing") && err != errStop {
			t.Errorf("%s: the error is %v, want the source's", name, err)
		}
	}
	wait(t, "only the old file is there", func() bool { return cmp.Equal(names(t, dir), []string{"file"}) })
	if b, _ := os.ReadFile(dir + "/file"); string(b) != "old" {
		t.Errorf("the file is now %q", b)
	}
}

func TestFileErrors(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(dir+"/file", nil, 0o600))
	must(os.Mkdir(dir+"/dir", 0o700))
	must(unix.Mkfifo(dir+"/pipe", 0o600))
	must(unix.Mknod(dir+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(os.Symlink("loop", dir+"/loop"))
	must(os.Symlink("pipe", dir+"/to-pipe"))
	up := func(p string) error { _, err := upload(t, c, p, "x"); return err }
	down := func(p string) error { _, err := download(t, c, p); return err }
	stat := func(p string) error { _, err := c.Stat(t.Context(), p); return err }
	list := func(p string) error { _, _, err := c.ListFiles(t.Context(), p, "", 10); return err }
	for _, test := range []struct {
		name string
		do   func(string) error
		path string
		want eqvps.Code
	}{
		{"upload", up, dir + "/dir", eqvps.CodeNotAFile},
		{"upload", up, dir + "/new/", eqvps.CodeNotAFile},
		{"upload", up, dir + "/pipe", eqvps.CodeNotAFile},
		{"upload", up, dir + "/to-pipe", eqvps.CodeNotAFile},
		{"upload", up, dir + "/null", eqvps.CodeNotAFile},
		{"upload", up, dir + "/file/x", eqvps.CodeNotADirectory},
		{"upload", up, dir + "/loop", eqvps.CodeInvalidPath},
		{"upload", up, "/proc/x", eqvps.CodeFileNotFound},
		{"upload", up, dir + "/" + strings.Repeat("n", 256), eqvps.CodeInvalidPath},
		{"upload", up, "relative", eqvps.CodeInvalidPath},
		{"download", down, dir + "/dir", eqvps.CodeNotAFile},
		{"download", down, dir + "/pipe", eqvps.CodeNotAFile},
		{"download", down, dir + "/to-pipe", eqvps.CodeNotAFile},
		{"download", down, dir + "/null", eqvps.CodeNotAFile},
		{"download", down, dir + "/none", eqvps.CodeFileNotFound},
		{"download", down, dir + "/file/x", eqvps.CodeNotADirectory},
		{"download", down, dir + "/loop", eqvps.CodeInvalidPath},
		{"download", down, "a\x00b", eqvps.CodeInvalidPath},
		{"download", down, "/proc/self/mem", eqvps.CodeInvalidPath}, // cannot be read at its start
		{"stat", stat, dir + "/none", eqvps.CodeFileNotFound},
		{"list", list, dir + "/none", eqvps.CodeFileNotFound},
		{"list", list, dir + "/file", eqvps.CodeNotADirectory},
		{"list", list, dir + "/pipe", eqvps.CodeNotADirectory},
	} {
		err := test.do(test.path)
		if eqvps.ErrorCode(err) != test.want {
			t.Errorf("%s %q: %v, want %s", test.name, strings.TrimPrefix(test.path, dir), err, test.want)
		}
	}
}

func TestFullDisk(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	_, err := c.Upload(t.Context(), eqvps.UploadRequest{Path: dir + "/big", Content: io.LimitReader(zeros{}, 64<<20), Size: 64 << 20})
	if eqvps.ErrorCode(err) != eqvps.CodeDiskFull {
		t.Errorf("the error is %v, want %s", err, eqvps.CodeDiskFull)
	}
	wait(t, "nothing is left", func() bool { return len(names(t, dir)) == 0 })
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestProcFile(t *testing.T) {
	c := newMachine(t).connect(t)
	got, err := download(t, c, "/proc/version")
	want, _ := os.ReadFile("/proc/version")
	if err != nil || got != string(want) {
		t.Errorf("a file of /proc gives %q, %v", got, err)
	}
}

// A file that is cut while it is sent must not look complete.
func TestDownloadEndsEarly(t *testing.T) {
	c := newMachine(t).connect(t)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	info, r, err := c.Download(t.Context(), eqvps.DownloadRequest{Path: file})
	if err != nil || info.Size != 8<<20 {
		t.Fatal(info, err)
	}
	defer r.Close()
	// The multiplexer's window is far smaller than the file.
	if err := os.Truncate(file, 10); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); err != io.ErrUnexpectedEOF {
		t.Errorf("after %d bytes the error is %v", n, err)
	}
}

func TestListFiles(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	for i := range 2500 {
		if err := os.WriteFile(fmt.Sprintf("%s/f%04d", dir, i), make([]byte, i%3), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/Z", 0o1777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("to\xff", dir+"/\xff\xfe"); err != nil {
		t.Fatal(err)
	}
	var all []string
	after, pages := "", 0
	for {
		entries, more, err := c.ListFiles(t.Context(), dir+"/", after, 700)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, e := range entries {
			after = filepath.Base(e.Path)
			all = append(all, after)
			if filepath.Dir(e.Path) != dir {
				t.Fatalf("the path of an entry is %q", e.Path)
			}
		}
		if !more {
			break
		}
	}
	if pages != 4 {
		t.Errorf("%d pages, want 4", pages)
	}
	if diff := cmp.Diff(names(t, dir), all); diff != "" {
		t.Error(diff)
	}
	entries, more, err := c.ListFiles(t.Context(), dir, "f2498", 10)
	want := []eqvps.FileInfo{
		{Path: dir + "/f2499", Type: eqvps.TypeFile, Size: 0, Mode: 0o640},
		{Path: dir + "/\xff\xfe", Type: eqvps.TypeSymlink, Size: 3, Mode: 0o777, Target: "to\xff"},
	}
	if diff := cmp.Diff(want, entries, cmpopts.IgnoreFields(eqvps.FileInfo{}, "ModTime")); diff != "" || more || err != nil {
		t.Error(diff, more, err)
	}
}

// Files larger than any buffer pass through in constant memory, byte by byte
// the same.
func TestLargeFile(t *testing.T) {
	c := newMachine(t).connect(t)
	file := t.TempDir() + "/large"
	src := bytes.Repeat([]byte("0123456789abcde\n"), 4<<20/16)
	const times = 16
	in, out := sha256.New(), sha256.New()
	var parts []io.Reader
	for range times {
		parts = append(parts, bytes.NewReader(src))
	}
	_, err := c.Upload(t.Context(), eqvps.UploadRequest{Path: file, Content: io.TeeReader(io.MultiReader(parts...), in), Size: times * int64(len(src))})
	if err != nil {
		t.Fatal(err)
	}
	_, r, err := c.Download(t.Context(), eqvps.DownloadRequest{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(out, r); err != nil || n != times*int64(len(src)) {
		t.Fatal(n, err)
	}
	if !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Error("the file comes back changed")
	}
}
