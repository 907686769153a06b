package guest_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// part sends one part of an upload of ten bytes.
func part(t *testing.T, c *guest.Client, upload, path, content string, offset int64) (eqvps.UploadProgress, error) {
	t.Helper()
	return c.UploadPart(t.Context(), eqvps.UploadPart{
		UploadRequest: eqvps.UploadRequest{Path: path, Mode: 0o600, Content: strings.NewReader(content), Size: int64(len(content))},
		Upload:        upload, Offset: offset, Total: 10, Keep: time.Minute,
	})
}

func TestUploadInParts(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	file := dir + "/new/file"
	send := func(content string, offset, received int64, want eqvps.Code) {
		t.Helper()
		p, err := part(t, c, "u", file, content, offset)
		check(t, content, err, want)
		if err == nil && (p.Received != received || (p.File != nil) != (received == 10)) {
			t.Errorf("%q: %+v, want %d", content, p, received)
		}
	}
	send("", 0, 0, "") // asks
	send("345", 3, 0, eqvps.CodeInvalidValue)
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("a part out of order leaves %q", left)
	}
	send("012", 0, 3, "")
	send("012", 0, 3, "")
	if left := names(t, dir+"/new"); len(left) > 0 {
		t.Errorf("before its end the upload shows: %q", left)
	}
	_, err := part(t, c, "u", file, "6", 6)
	if err == nil || !strings.Contains(err.Error(), "go on with offset=3") {
		t.Errorf("a gap: %v", err)
	}
	send("3456789X", 3, 0, eqvps.CodeInvalidValue) // too long
	send("34567", 3, 8, "")
	send("2345", 2, 8, "") // what is there already
	send("", 0, 8, "")
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is there too early")
	}
	send("89", 8, 10, "")
	send("89", 8, 10, "") // its answer was lost
	send("34567", 3, 10, "")
	send("", 0, 10, "")
	st, err := os.Stat(file)
	if got := content(t, file); got != "0123456789" || err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file is %q, %v, %v", got, st, err)
	}
	// The same link again, in the place of what is there.
	send("ab", 0, 2, "")
	if got := content(t, file); got != "0123456789" {
		t.Errorf("the old file is %q", got)
	}
	send("cdefghij", 2, 10, "")
	if got := content(t, file); got != "abcdefghij" {
		t.Errorf("the new file is %q", got)
	}
	if diff := cmp.Diff([]string{"file"}, names(t, dir+"/new")); diff != "" {
		t.Error(diff)
	}
}

// A part that is cut does not count, an upload that is not finished leaves
// nothing, and they cannot be piled up.
func TestAbandonedParts(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	p := eqvps.UploadPart{
		UploadRequest: eqvps.UploadRequest{Path: dir + "/x/file", Content: failing{strings.NewReader("01234")}, Size: -1},
		Upload:        "cut", Total: 10, Keep: time.Minute,
	}
	if _, err := c.UploadPart(t.Context(), p); err != errStop {
		t.Errorf("the error is %v, want the source's", err)
	}
	if p, err := part(t, c, "cut", dir+"/x/file", "", 0); err != nil || p.Received != 0 {
		t.Errorf("after a cut: %+v, %v", p, err)
	}
	p.Upload, p.Path, p.Content, p.Size, p.Keep = "short", dir+"/y/file", strings.NewReader("01234"), 5, time.Second
	if _, err := c.UploadPart(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	wait(t, "the upload's time is over", func() bool { _, err := os.Stat(dir + "/y"); return err != nil })
	for i := range 70 {
		if _, err := part(t, c, fmt.Sprint(i), fmt.Sprintf("%s/%d/f", dir, i), "01", 0); err != nil {
			t.Fatal(err)
		}
	}
	// Six of 70 are too many, and that of "cut" besides.
	if left := names(t, dir); len(left) != 64 {
		t.Errorf("%d uploads are kept, want 64: %q", len(left), left)
	}
	_, err := part(t, c, "0", dir+"/0/f", "23", 2)
	check(t, "a dropped one", err, eqvps.CodeInvalidValue)
	if p, err := part(t, c, "69", dir+"/69/f", "23456789", 2); err != nil || p.File == nil {
		t.Errorf("the last: %+v, %v", p, err)
	}
}

func TestPartsOnAFullDisk(t *testing.T) {
	c := newMachine(t).connect(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	p := eqvps.UploadPart{Upload: "u", Total: 4 << 20, Keep: time.Minute}
	p.UploadRequest = eqvps.UploadRequest{Path: dir + "/f", Content: strings.NewReader(strings.Repeat("x", 2<<20)), Size: 2 << 20}
	_, err := c.UploadPart(t.Context(), p)
	check(t, "a part", err, eqvps.CodeDiskFull)
	// What is useless does not fill the disk until the link expires.
	if _, err := upload(t, c, dir+"/other", strings.Repeat("x", 1<<19)); err != nil {
		t.Error(err)
	}
}
