package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// Upload writes one file of up to eqvps.MaxFileBytes in constant memory. size
// is the exact number of bytes, or -1 when it is not known. mode 0 is 0644. The
// file appears whole or not at all.
func (c *Client) Upload(ctx context.Context, id, path string, mode fs.FileMode, content io.Reader, size int64) (eqvps.FileInfo, error) {
	q := url.Values{"path": {path}}
	if mode != 0 {
		q.Set("mode", fmt.Sprintf("%04o", mode))
	}
	resp, err := c.do(ctx, request{
		method: http.MethodPut, path: sandboxPath(id, "/files/raw"), query: q, contentType: "application/octet-stream", size: size, body: content,
	})
	if err != nil {
		return eqvps.FileInfo{}, err
	}
	defer resp.Body.Close()
	var out wire.FileInfo
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return eqvps.FileInfo{}, c.networkError(ctx, err)
	}
	return out.Domain()
}

// Download opens a file. size is its number of bytes. The reader fails when the
// file ends early; the caller closes it.
func (c *Client) Download(ctx context.Context, id, path string) (content io.ReadCloser, size int64, err error) {
	return c.DownloadRange(ctx, id, eqvps.DownloadRequest{Path: path})
}

// DownloadRange opens a range of a file. size is the number of bytes that come.
func (c *Client) DownloadRange(ctx context.Context, id string, r eqvps.DownloadRequest) (content io.ReadCloser, size int64, err error) {
	resp, err := c.do(ctx, request{
		method: http.MethodGet, path: sandboxPath(id, "/files/raw"), query: url.Values{"path": {r.Path}}, size: -1, ranges: rangeHeader(r),
	})
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
}

// rangeHeader is the value of the header Range; "" for a whole file.
func rangeHeader(r eqvps.DownloadRequest) string {
	switch {
	case r.Offset == 0 && r.Length <= 0:
		return ""
	case r.Offset < 0:
		return fmt.Sprintf("bytes=%d", r.Offset)
	case r.Length <= 0:
		return fmt.Sprintf("bytes=%d-", r.Offset)
	}
	return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)
}

// Stat describes what is at a path.
func (c *Client) Stat(ctx context.Context, id, path string) (eqvps.FileInfo, error) {
	var out wire.FileInfo
	if err := c.call(ctx, http.MethodGet, sandboxPath(id, "/files/stat"), url.Values{"path": {path}}, nil, &out); err != nil {
		return eqvps.FileInfo{}, err
	}
	return out.Domain()
}

// ListFiles returns one page of a folder in the order of names. next is what to
// give as after for the next page; "" at the end. limit 0 is the server's
// default.
func (c *Client) ListFiles(ctx context.Context, id, path, after string, limit int) (entries []eqvps.FileInfo, next string, err error) {
	q := url.Values{"path": {path}}
	set(q, "after", after)
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var out wire.FileList
	if err := c.call(ctx, http.MethodGet, sandboxPath(id, "/files/list"), q, nil, &out); err != nil {
		return nil, "", err
	}
	for _, f := range out.Data {
		fi, err := f.Domain()
		if err != nil {
			return nil, "", err
		}
		entries = append(entries, fi)
	}
	if out.NextAfter != nil {
		next = *out.NextAfter
	}
	return entries, next, nil
}

// MakeDir makes a folder and its parents; mode 0 is 0755. One that is there
// already is no error.
func (c *Client) MakeDir(ctx context.Context, id, path string, mode fs.FileMode) (eqvps.FileInfo, error) {
	var in wire.MakeDir
	in.Path, in.PathBase64 = wire.TextOrBytes(path)
	if mode != 0 {
		in.Mode = fmt.Sprintf("%04o", mode)
	}
	var out wire.FileInfo
	if err := c.call(ctx, http.MethodPost, sandboxPath(id, "/files/mkdir"), nil, in, &out); err != nil {
		return eqvps.FileInfo{}, err
	}
	return out.Domain()
}

// Move gives a file, a folder or a link another name.
func (c *Client) Move(ctx context.Context, id string, m eqvps.Move) (eqvps.FileInfo, error) {
	var out wire.FileInfo
	if err := c.call(ctx, http.MethodPost, sandboxPath(id, "/files/move"), nil, wire.NewMoveFile(m), &out); err != nil {
		return eqvps.FileInfo{}, err
	}
	return out.Domain()
}

// Remove removes a file, a link or a folder, with recursive also one that is
// not empty. It asks on until all of it is gone, and returns how many entries
// that were.
func (c *Client) Remove(ctx context.Context, id, path string, recursive bool) (entries int64, err error) {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "true")
	}
	for {
		var out wire.Removed
		if err := c.call(ctx, http.MethodDelete, sandboxPath(id, "/files"), q, nil, &out); err != nil {
			return entries, err
		}
		entries += out.Entries
		if out.Complete {
			return entries, nil
		}
	}
}

// CreateLink makes a signed link to one file, which works without a token.
// method is GET or PUT; ttl 0 is eqvps.DefaultLinkTTL; mode, of an uploaded
// file, 0 is 0644.
func (c *Client) CreateLink(ctx context.Context, id, path, method string, ttl time.Duration, mode fs.FileMode) (*wire.Link, error) {
	in := wire.CreateLink{Method: method}
	in.Path, in.PathBase64 = wire.TextOrBytes(path)
	if ttl != 0 {
		in.TTL = new(int64(ttl / time.Second))
	}
	if mode != 0 {
		in.Mode = fmt.Sprintf("%04o", mode)
	}
	var out wire.Link
	if err := c.call(ctx, http.MethodPost, sandboxPath(id, "/files/link"), nil, in, &out); err != nil {
		return nil, err
	}
	return &out, nil
}
