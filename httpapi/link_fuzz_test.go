package httpapi

import (
	"encoding/base64"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

// FuzzLink: a link survives the way there and back, with any path, and nothing
// but what was signed is taken for one.
func FuzzLink(f *testing.F) {
	f.Add("/root/a", int64(1785232800), uint16(0o644), "")
	f.Add("/\n\xff\x00", int64(-1), uint16(0o7777), "AAAA")
	f.Add("", int64(0), uint16(0), strings.Repeat("A", 44))
	key := []byte("a key")
	f.Fuzz(func(t *testing.T, path string, expires int64, mode uint16, forged string) {
		l := link{
			account: "acc_1", sandbox: "sb_1", method: "PUT", expires: time.Unix(expires, 0), mode: fs.FileMode(mode) & 0o7777,
			id: "id", path: path,
		}
		signed := l.sign(key)
		if len(signed) <= maxLinkKey {
			got, err := parseLink(key, signed)
			if err != nil || !cmp.Equal(l, got, cmp.AllowUnexported(link{})) {
				t.Fatalf("%+v comes back as %+v, %v", l, got, err)
			}
		}
		if _, err := parseLink([]byte("another key"), signed); err == nil {
			t.Fatal("a link of another server is taken")
		}
		for _, s := range []string{forged, forged + signed, signed + forged, base64.RawURLEncoding.EncodeToString([]byte(forged))} {
			if _, err := parseLink(key, s); err == nil && s != signed {
				t.Fatalf("%q is taken for a link", s)
			} else if err != nil && eqvps.ErrorCode(err) != eqvps.CodeInvalidLink {
				t.Fatal(err)
			}
		}
	})
}

// FuzzRange: a header never makes a range that its file does not have.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=5-2", "bytes=-0", "bytes=-", "bytes=1-2,3-4", "bytes=9223372036854775807-9223372036854775807", "x", ""} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, s string, size int64) {
		if size < 0 {
			return
		}
		offset, length, ok := parseRange(s)
		if !ok {
			return
		}
		o, l, err := eqvps.DownloadRequest{Offset: offset, Length: length}.Resolve(size)
		if err == nil && (o < 0 || l < 0 || o+l > size || l == 0 && size > 0) {
			t.Fatalf("%q of %d bytes is %d bytes at %d", s, size, l, o)
		}
	})
}
