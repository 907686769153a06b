package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

func pathQuery(p string) url.Values {
	return url.Values{wire.ParamPath: {wire.EncodeBytes(p)}}
}

// Upload writes one file, whole or not at all; parents are created. A link is
// followed. The guest does not force the file to disk. Codes:
// CodeInvalidPath, CodeNotAFile (a folder, pipe or device), CodeNotADirectory,
// CodeDiskFull, CodeTooLarge, CodeInvalidRequest (another size than announced),
// CodeUnreachable; an error of req.Content is returned as it is.
func (c *Client) Upload(ctx context.Context, req eqvps.UploadRequest) (eqvps.FileInfo, error) {
	if err := eqvps.ValidatePath(req.Path); err != nil {
		return eqvps.FileInfo{}, err
	}
	var e wire.Entry
	if err := c.put(ctx, wire.PathFile, pathQuery(req.Path), req, &e); err != nil {
		return eqvps.FileInfo{}, err
	}
	return fileInfo(e, req.Path)
}

// put sends the content of an upload and reads the answer.
func (c *Client) put(ctx context.Context, path string, q url.Values, req eqvps.UploadRequest, answer any) error {
	setMode(q, req.Mode, 0o644)
	src := &source{r: req.Content, size: req.Size}
	var body io.Reader = src
	if req.Size == 0 {
		body = http.NoBody
	}
	res, err := c.send(ctx, http.MethodPut, path, q, req.Size, body)
	if err != nil {
		if src.err != nil {
			return src.err
		}
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, wire.MaxReply)).Decode(answer); err != nil {
		return unreachable(err)
	}
	return nil
}

func setMode(q url.Values, mode, otherwise fs.FileMode) {
	if mode == 0 {
		mode = otherwise
	}
	q.Set(wire.ParamMode, strconv.FormatUint(uint64(mode)&0o7777, 8))
}

// source is the content of an upload. It keeps the reason when it fails, and
// it fails where the content has another size than announced: before the last
// byte is handed out, so that the guest never sees a whole file.
type source struct {
	r    io.Reader
	size int64 // -1: unknown
	read int64
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.read += int64(n)
	switch {
	case err != nil && err != io.EOF:
		s.err = err
	case s.size < 0:
	case s.read == s.size && err == nil:
		if extra, _ := io.ReadFull(s.r, make([]byte, 1)); extra > 0 {
			s.err = s.mismatch("more")
		}
	case s.read > s.size:
		s.err = s.mismatch("more")
	case err == io.EOF && s.read < s.size:
		s.err = s.mismatch("less")
	}
	if s.err != nil {
		return 0, s.err
	}
	return n, err
}

func (s *source) mismatch(than string) error {
	return eqvps.Errorf(eqvps.CodeInvalidRequest, "The content has %s than the %d bytes that were announced.", than, s.size)
}

// Stat describes what a path names; links are not followed.
func (c *Client) Stat(ctx context.Context, path string) (eqvps.FileInfo, error) {
	if err := eqvps.ValidatePath(path); err != nil {
		return eqvps.FileInfo{}, err
	}
	var e wire.Entry
	if err := c.ask(ctx, http.MethodGet, wire.PathStat, pathQuery(path), nil, &e); err != nil {
		return eqvps.FileInfo{}, err
	}
	return fileInfo(e, path)
}

// ListFiles returns a page of a folder, at most limit entries and never more
// than 1000, in the order of the bytes of their names, after the name given.
// Codes: CodeFileNotFound, CodeNotADirectory, CodeUnreachable.
func (c *Client) ListFiles(ctx context.Context, path, after string, limit int) (entries []eqvps.FileInfo, more bool, err error) {
	if err := eqvps.ValidatePath(path); err != nil {
		return nil, false, err
	}
	limit = min(max(limit, 1), wire.MaxEntries)
	q := pathQuery(path)
	q.Set(wire.ParamAfter, wire.EncodeBytes(after))
	q.Set(wire.ParamLimit, strconv.Itoa(limit))
	var l wire.Listing
	if err := c.askUpTo(ctx, wire.MaxListing, http.MethodGet, wire.PathList, q, nil, &l); err != nil {
		return nil, false, err
	}
	if len(l.Entries) == 0 && l.More {
		return nil, false, unreachable(errors.New("the guest lists nothing and says that more follows"))
	}
	if len(l.Entries) > limit {
		return nil, false, unreachable(fmt.Errorf("the guest lists %d entries where %d were asked for", len(l.Entries), limit))
	}
	dir := strings.TrimRight(path, "/") + "/"
	for _, e := range l.Entries {
		name := string(e.Name)
		if name <= after || len(name) > wire.MaxNameBytes || strings.ContainsAny(name, "/\x00") {
			return nil, false, unreachable(fmt.Errorf("the guest lists the name %.300q after %.300q", name, after))
		}
		after = name
		info, err := fileInfo(e, dir+name)
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, info)
	}
	return entries, l.More, nil
}

// fileInfo checks what a guest says of a file.
func fileInfo(e wire.Entry, path string) (eqvps.FileInfo, error) {
	switch eqvps.FileType(e.Type) {
	case eqvps.TypeFile, eqvps.TypeDir, eqvps.TypeSymlink, eqvps.TypeOther:
	default:
		return eqvps.FileInfo{}, unreachable(fmt.Errorf("the guest names a file type %.40q", e.Type))
	}
	if e.Size < 0 || len(e.Target) > eqvps.MaxPathBytes {
		return eqvps.FileInfo{}, unreachable(errors.New("the guest describes an impossible file"))
	}
	return e.FileInfo(path), nil
}
