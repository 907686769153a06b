package httpapi

import (
	"context"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/eqvps/eqvps"
)

// copyBuffers keep a transfer's memory constant, however many there were.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

func (s *server) download(ctx context.Context, c *call, in *downloadInput, _ *none) (raw, error) {
	g, err := s.guest(ctx, in.ID, in.Path)
	if err != nil {
		return nil, err
	}
	return c.sendFile(ctx, g, in.Path)
}

// sendFile answers with a file, or the range of it that the request names.
func (c *call) sendFile(ctx context.Context, g eqvps.Guest, name string) (raw, error) {
	req, ranged := c.rangeOf(name)
	fi, rd, err := g.Download(ctx, req)
	if eqvps.ErrorCode(err) == eqvps.CodeInvalidRange {
		c.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", fi.Size))
	}
	if err != nil {
		return nil, err
	}
	offset, length, err := req.Resolve(fi.Size)
	if err != nil {
		rd.Close()
		return nil, err
	}
	return func(c *call) error {
		defer rd.Close()
		h := c.w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", attachment(path.Base(fi.Path)))
		h.Set("Accept-Ranges", "bytes")
		h.Set("Content-Length", strconv.FormatInt(length, 10))
		if ranged && length > 0 {
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, fi.Size))
			c.w.WriteHeader(http.StatusPartialContent)
		}
		if c.r.Method == http.MethodHead {
			return nil
		}
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		n, err := io.CopyBuffer(struct{ io.Writer }{c.w}, struct{ io.Reader }{rd}, *buf)
		if err == nil && n < length {
			err = io.ErrUnexpectedEOF
		}
		return err
	}, nil
}

// rangeOf reads the header Range. What is no single range of bytes is ignored,
// as HTTP has it; so is a range under a condition, because files have no
// validator here.
func (c *call) rangeOf(name string) (req eqvps.DownloadRequest, ranged bool) {
	req.Path = name
	if h := c.r.Header; h.Get("If-Range") == "" && len(h.Values("Range")) == 1 {
		req.Offset, req.Length, ranged = parseRange(h.Get("Range"))
	}
	return req, ranged
}

// parseRange reads "bytes=FIRST-LAST", "bytes=FIRST-" or "bytes=-COUNT", in the
// form that eqvps.DownloadRequest has.
func parseRange(s string) (offset, length int64, ok bool) {
	unit, spec, _ := strings.Cut(s, "=")
	first, last, found := strings.Cut(strings.TrimSpace(spec), "-")
	if !strings.EqualFold(unit, "bytes") || !found {
		return 0, 0, false
	}
	if first == "" {
		n, ok := number(last)
		if ok && n == 0 {
			return math.MaxInt64, 0, true // the last 0 bytes: nothing has them
		}
		return -n, 0, ok
	}
	if offset, ok = number(first); !ok || last == "" {
		return offset, 0, ok
	}
	end, ok := number(last)
	if !ok || end < offset {
		return 0, 0, false
	}
	if end < math.MaxInt64 {
		length = end - offset + 1
	}
	return offset, length, true
}

// number reads digits. One that is too large for a file is the largest there is.
func number(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = math.MaxInt64
	}
	return n, true
}

// attachment keeps a browser from showing what a sandbox made.
func attachment(name string) string {
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "attachment"
}
