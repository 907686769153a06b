package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"sync"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type pathInput struct {
	ID   string `path:"id" doc:"Id of the sandbox."`
	Path string `query:"path" required:"true" doc:"Absolute path; bytes that are not UTF-8 are percent-encoded like any other." example:"/root/task.py"`
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
	readCodes := codes(eqvps.CodeInvalidPath, eqvps.CodeFileNotFound, eqvps.CodeNotAFile)
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
		method: http.MethodGet, path: "/sandboxes/{id}/files/raw", id: "downloadFile", tag: "files", codes: readCodes, answer: bytesOut,
		summary: "Download a file",
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
	size := c.r.ContentLength
	if size > eqvps.MaxFileBytes {
		c.drain()
		return wire.FileInfo{}, tooLarge()
	}
	var content io.Reader = bytes.NewReader(nil)
	if c.body != nil {
		content = &limited{r: c.body, left: eqvps.MaxFileBytes}
	}
	fi, err := s.write(ctx, in.ID, in.Mode, eqvps.UploadRequest{Path: in.Path, Content: content, Size: size})
	// What broke the upload is told, not what it broke further on.
	var own *eqvps.Error
	if c.body != nil && err != nil && errors.As(c.body.err, &own) {
		return fi, own
	}
	if err != nil {
		c.drain()
	}
	return fi, err
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

func tooLarge() error {
	return eqvps.Errorf(eqvps.CodeTooLarge, "The file is larger than the %d bytes that one transfer takes.", eqvps.MaxFileBytes)
}

// limited fails a body that turns out to be larger than allowed, so that its
// file never comes to be.
type limited struct {
	r    *body
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		l.r.err = tooLarge()
		return 0, l.r.err
	}
	return n, err
}

func (s *server) getFile(ctx context.Context, _ *call, in *pathInput, _ *none) (wire.File, error) {
	g, err := s.guest(ctx, in.ID, in.Path)
	if err != nil {
		return wire.File{}, err
	}
	fi, rd, err := g.Download(ctx, in.Path)
	if err != nil {
		return wire.File{}, err
	}
	defer rd.Close()
	if fi.Size > eqvps.MaxInlineFileBytes {
		return wire.File{}, wire.TooLargeInline(fi.Size)
	}
	// The size is a hint only: files of /proc say 0, and a file may grow.
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

// copyBuffers keep a transfer's memory constant, however many there were.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

func (s *server) download(ctx context.Context, _ *call, in *pathInput, _ *none) (raw, error) {
	g, err := s.guest(ctx, in.ID, in.Path)
	if err != nil {
		return nil, err
	}
	fi, rd, err := g.Download(ctx, in.Path)
	if err != nil {
		return nil, err
	}
	return func(c *call) error {
		defer rd.Close()
		h := c.w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", attachment(path.Base(fi.Path)))
		if fi.Size > 0 { // files of /proc say 0 and have content
			h.Set("Content-Length", strconv.FormatInt(fi.Size, 10))
		}
		if c.r.Method == http.MethodHead {
			return nil
		}
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		n, err := io.CopyBuffer(struct{ io.Writer }{c.w}, struct{ io.Reader }{rd}, *buf)
		if err == nil && n < fi.Size {
			err = io.ErrUnexpectedEOF
		}
		return err
	}, nil
}

// attachment keeps a browser from showing what a sandbox made.
func attachment(name string) string {
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "attachment"
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
