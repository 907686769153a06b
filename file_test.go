package eqvps

import (
	"path"
	"strings"
	"testing"
)

// FuzzPath: what passes is absolute, has no NUL and fits; whatever does not is
// told with a code.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"", "/", "//", "relative", "/root/../etc/x", "/a\x00", "/\xff\n", "/dir/", "/" + strings.Repeat("x", MaxPathBytes), "~/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		err := ValidatePath(p)
		good := path.IsAbs(p) && len(p) <= MaxPathBytes && !strings.Contains(p, "\x00")
		if good != (err == nil) || err != nil && ErrorCode(err) != CodeInvalidPath {
			t.Fatalf("%q: %v", p, err)
		}
		if err := (Move{From: p, To: p}).Validate(); good != (err == nil) {
			t.Fatalf("a move of %q: %v", p, err)
		}
	})
}

// FuzzMode: no text makes more than permission bits.
func FuzzMode(f *testing.F) {
	for _, s := range []string{"", "0", "644", "0755", "07777", "10000", "8", "-1", "0x1", "777777777777"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := ParseMode(s); err == nil && m&^0o7777 != 0 || err != nil && ErrorCode(err) != CodeInvalidValue {
			t.Fatalf("%q: %o, %v", s, m, err)
		}
	})
}

func TestUploadPartIsChecked(t *testing.T) {
	for _, w := range []struct {
		offset, size, total int64
		want                Code
	}{
		{0, 10, 10, ""}, {5, 5, 10, ""}, {10, 0, 10, ""}, {0, -1, 10, ""}, {0, 0, 0, ""},
		{11, 0, 10, CodeInvalidValue}, {-1, 1, 10, CodeInvalidValue}, {5, 6, 10, CodeInvalidValue},
		{0, 1, MaxFileBytes + 1, CodeTooLarge}, {0, MaxPartBytes + 1, MaxFileBytes, CodeTooLarge}, {0, 0, -1, CodeTooLarge},
	} {
		err := UploadPart{UploadRequest: UploadRequest{Size: w.size}, Offset: w.offset, Total: w.total}.Validate()
		if ErrorCode(err) != w.want {
			t.Errorf("%+v: %v", w, err)
		}
	}
}
