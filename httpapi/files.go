package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type pathInput struct {
	ID   string `path:"id" doc:"Id of the sandbox."`
	Path string `query:"path" required:"true" doc:"Absolute path; bytes that are not UTF-8 are percent-encoded like any other." example:"/root/task.py"`
}

type downloadInput struct {
	ID    string `path:"id" doc:"Id of the sandbox."`
	Path  string `query:"path" required:"true" doc:"Absolute path; bytes that are not UTF-8 are percent-encoded like any other." example:"/root/task.py"`
	Range string `header:"Range" doc:"One range of bytes: bytes=0-499, bytes=500- or bytes=-500. Anything else, and a range with If-Range, is answered with the whole file."`
}

type uploadInput struct {
	ID   string `path:"id" doc:"Id of the sandbox."`
	Path string `query:"path" required:"true" doc:"Absolute path; bytes that are not UTF-8 are percent-encoded like any other." example:"/root/task.py"`
	Mode string `query:"mode" doc:"Octal permission bits; the default is 0644." example:"0755"`
}

type listFilesInput struct {
	ID    string `path:"id" doc:"Id of the sandbox."`
	Path  string `query:"path" required:"true" doc:"Absolute path; bytes that are not UTF-8 are percent-encoded like any other." example:"/root/task.py"`
	After string `query:"after" doc:"next_after of the page before."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"The most entries to return."`
}

func (s *server) fileRoutes() {
	bytesIn := &mediaType{name: "application/octet-stream", schema: octets, doc: "The content."}
	bytesOut := &mediaType{name: "application/octet-stream", schema: octets, doc: "The content. A connection that is cut before Content-Length is reached gave a part only."}
	bytesPart := &mediaType{name: "application/octet-stream", schema: octets, doc: "The range that was asked for; Content-Range tells which."}
	readCodes := codes(eqvps.CodeInvalidPath, eqvps.CodeFileNotFound, eqvps.CodeNotAFile)
	downloadCodes := append(readCodes, eqvps.CodeInvalidRange, eqvps.CodeTooLarge)
	writeCodes := codes(eqvps.CodeInvalidPath, eqvps.CodeInvalidValue, eqvps.CodeNotAFile, eqvps.CodeNotADirectory, eqvps.CodeDiskFull, eqvps.CodeTooLarge)

	handle(s, route{
		method: http.MethodPut, path: "/sandboxes/{id}/files", id: "putFile", tag: "files", limit: maxPutFile, codes: writeCodes,
		summary:     "Write a file of up to 5 MB",
		description: "Parents are created. The file appears whole or not at all.",
	}, s.putFile)
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/files", id: "getFile", tag: "files", codes: append(readCodes, eqvps.CodeTooLarge),
		summary: "Read a file of up to 5 MB",
	}, s.getFile)
	handle(s, route{
		method: http.MethodPut, path: "/sandboxes/{id}/files/raw", id: "uploadFile", tag: "files", codes: writeCodes, upload: bytesIn,
		summary:     "Upload a file of up to 2 GB",
		description: "The body is the content. Parents are created. The file appears whole or not at all: an upload that is cut leaves nothing.",
	}, s.upload)
	handleRaw(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/files/raw", id: "downloadFile", tag: "files", codes: downloadCodes, answer: bytesOut, partial: bytesPart,
		summary:     "Download a file, or a range of it",
		description: "HEAD answers with the same headers. A file of the kernel's, such as those of /proc, is read for at most 5 seconds and 8 MiB.",
	}, s.download)
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/files/stat", id: "statFile", tag: "files", codes: readCodes,
		summary: "Describe what is at a path",
	}, func(ctx context.Context, _ *call, in *pathInput, _ *none) (wire.FileInfo, error) {
		g, err := s.guest(ctx, in.ID, in.Path)
		if err != nil {
			return wire.FileInfo{}, err
		}
		fi, err := g.Stat(ctx, in.Path)
		return wire.NewFileInfo(fi), err
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/files/list", id: "listFiles", tag: "files",
		codes:   codes(eqvps.CodeInvalidPath, eqvps.CodeFileNotFound, eqvps.CodeNotADirectory),
		summary: "List a folder in the order of names",
	}, s.listFiles)
	s.arrangeRoutes()
	s.linkRoutes(downloadCodes, writeCodes, bytesIn, bytesOut, bytesPart)
}

func (s *server) guest(ctx context.Context, id, path string) (eqvps.Guest, error) {
	if err := eqvps.ValidatePath(path); err != nil {
		return nil, err
	}
	return s.Sandboxes.Use(ctx, id)
}

func (s *server) putFile(ctx context.Context, _ *call, in *idInput, body *wire.PutFile) (wire.FileInfo, error) {
	name, content, err := body.Bytes()
	if err != nil {
		return wire.FileInfo{}, err
	}
	return s.write(ctx, in.ID, body.Mode, eqvps.UploadRequest{Path: name, Content: bytes.NewReader(content), Size: int64(len(content))})
}

func (s *server) upload(ctx context.Context, c *call, in *uploadInput, _ *none) (wire.FileInfo, error) {
	content, err := c.content(eqvps.MaxFileBytes)
	if err != nil {
		return wire.FileInfo{}, err
	}
	fi, err := s.write(ctx, in.ID, in.Mode, eqvps.UploadRequest{Path: in.Path, Content: content, Size: c.r.ContentLength})
	return fi, c.uploaded(err)
}

// content is a body that is the content of a file, of at most limit bytes.
func (c *call) content(limit int64) (io.Reader, error) {
	switch {
	case c.r.ContentLength > limit:
		c.drain()
		return nil, tooLarge(limit)
	case c.body == nil:
		return bytes.NewReader(nil), nil
	}
	return &limited{r: c.body, left: limit, limit: limit}, nil
}

// uploaded is what an upload of the body failed with: what broke the upload is
// told, not what it broke further on.
func (c *call) uploaded(err error) error {
	var own *eqvps.Error
	switch {
	case err == nil:
		return nil
	case c.body != nil && errors.As(c.body.err, &own):
		return own
	}
	c.drainUpTo(eqvps.MaxFileBytes)
	return err
}

func (s *server) write(ctx context.Context, id, mode string, req eqvps.UploadRequest) (wire.FileInfo, error) {
	var err error
	if req.Mode, err = eqvps.ParseMode(mode); err != nil {
		return wire.FileInfo{}, err
	}
	g, err := s.guest(ctx, id, req.Path)
	if err != nil {
		return wire.FileInfo{}, err
	}
	fi, err := g.Upload(ctx, req)
	return wire.NewFileInfo(fi), err
}

func tooLarge(limit int64) error {
	return eqvps.Errorf(eqvps.CodeTooLarge, "The content is larger than the %d bytes that one request takes.", limit)
}

// limited fails a body that turns out to be larger than allowed, so that its
// file never comes to be.
type limited struct {
	r           *body
	left, limit int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		l.r.err = tooLarge(l.limit)
		return 0, l.r.err
	}
	return n, err
}

func (s *server) getFile(ctx context.Context, _ *call, in *pathInput, _ *none) (wire.File, error) {
	g, err := s.guest(ctx, in.ID, in.Path)
	if err != nil {
		return wire.File{}, err
	}
	fi, rd, err := g.Download(ctx, eqvps.DownloadRequest{Path: in.Path})
	if err != nil {
		return wire.File{}, err
	}
	defer rd.Close()
	if fi.Size > eqvps.MaxInlineFileBytes {
		return wire.File{}, wire.TooLargeInline(fi.Size)
	}
	var content bytes.Buffer
	content.Grow(int(fi.Size) + bytes.MinRead)
	n, err := io.Copy(&content, io.LimitReader(rd, eqvps.MaxInlineFileBytes+1))
	if err != nil {
		return wire.File{}, err
	}
	if n > eqvps.MaxInlineFileBytes {
		return wire.File{}, wire.TooLargeInline(n)
	}
	info := wire.NewFileInfo(fi)
	return wire.File{Path: info.Path, Size: n, Mode: info.Mode, ContentBase64: content.Bytes()}, nil
}

func (s *server) listFiles(ctx context.Context, _ *call, in *listFilesInput, _ *none) (wire.FileList, error) {
	after, err := wire.DecodeCursor(in.After)
	if err != nil {
		return wire.FileList{}, err
	}
	g, err := s.guest(ctx, in.ID, in.Path)
	if err != nil {
		return wire.FileList{}, err
	}
	entries, more, err := g.ListFiles(ctx, in.Path, after, in.Limit)
	if err != nil {
		return wire.FileList{}, err
	}
	out := wire.FileList{Path: wire.NewFileInfo(eqvps.FileInfo{Path: in.Path}).Path, Data: []wire.FileInfo{}, HasMore: more}
	for _, fi := range entries {
		out.Data = append(out.Data, wire.NewFileInfo(fi))
	}
	if more && len(entries) > 0 {
		next := wire.EncodeCursor(path.Base(entries[len(entries)-1].Path))
		out.NextAfter = &next
	}
	return out, nil
}
