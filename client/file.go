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
	resp, err := c.do(ctx, http.MethodPut, sandboxPath(id, "/files/raw"), q, "application/octet-stream", size, content)
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

// Download opens a file. size is -1 when the server does not know it. The
// reader fails when the file ends early; the caller closes it.
func (c *Client) Download(ctx context.Context, id, path string) (content io.ReadCloser, size int64, err error) {
	resp, err := c.do(ctx, http.MethodGet, sandboxPath(id, "/files/raw"), url.Values{"path": {path}}, "", -1, nil)
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
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
