package eqvps

import (
	"context"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// FileType tells what a path names.
type FileType string

// The types of files. Everything that is neither a file, a folder nor a link
// is "other": pipes, sockets and devices are never opened.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FileInfo describes one entry. Names are bytes: they need not be UTF-8.
type FileInfo struct {
	Path    string
	Type    FileType
	Size    int64
	Mode    fs.FileMode // permission bits
	ModTime time.Time
	Target  string // of a symlink, as written
}

// ValidatePath checks a path inside the sandbox: absolute, without NUL, at
// most MaxPathBytes.
func ValidatePath(p string) error {
	switch {
	case p == "":
		return Errorf(CodeInvalidPath, "The path is empty; use an absolute path such as /root/task.py.")
	case strings.IndexByte(p, 0) >= 0:
		return Errorf(CodeInvalidPath, "The path holds a NUL byte.")
	case len(p) > MaxPathBytes:
		return Errorf(CodeInvalidPath, "The path has %d bytes; at most %d are allowed.", len(p), MaxPathBytes)
	case !path.IsAbs(p):
		return Errorf(CodeInvalidPath, "The path %.200q is relative; use an absolute path such as /root/task.py.", p)
	}
	return nil
}

// ParseMode reads octal permission bits such as "0755" or "644"; "" is 0644.
func ParseMode(s string) (fs.FileMode, error) {
	if s == "" {
		return 0o644, nil
	}
	var m fs.FileMode
	for _, c := range s {
		if c < '0' || c > '7' || len(s) > 5 {
			return 0, Errorf(CodeInvalidValue, "The mode %.20q is not octal permission bits such as \"0755\".", s)
		}
		m = m<<3 | fs.FileMode(c-'0')
	}
	if m > 0o7777 {
		return 0, Errorf(CodeInvalidValue, "The mode %.20q is above 7777.", s)
	}
	return m, nil
}

// UploadRequest writes one file. The content appears under its name whole or
// not at all; parents are created.
type UploadRequest struct {
	Path    string
	Mode    fs.FileMode // permission bits, 0 is 0644
	Content io.Reader
	Size    int64 // exact size in bytes, or -1 when unknown
}

// UploadPart is one part of a file that comes in parts, in their order. Until
// the last byte is there nothing shows under the file's name; then it appears
// whole. A part may be sent again.
type UploadPart struct {
	UploadRequest
	Upload string        // names the upload: parts with the same name belong together
	Offset int64         // of the part's first byte in the file
	Total  int64         // bytes of the whole file
	Keep   time.Duration // how long the sandbox keeps an upload that is not complete
}

// Validate checks the request, except for the path.
func (p UploadPart) Validate() error {
	switch {
	case p.Total < 0 || p.Total > MaxFileBytes:
		return Errorf(CodeTooLarge, "The file has %d bytes; at most %d are allowed.", p.Total, MaxFileBytes)
	case p.Offset < 0 || p.Offset > p.Total:
		return Errorf(CodeInvalidValue, "The part begins at byte %d of a file of %d bytes.", p.Offset, p.Total)
	case p.Size > MaxPartBytes:
		return Errorf(CodeTooLarge, "The part has %d bytes; at most %d are allowed.", p.Size, MaxPartBytes)
	case p.Size > p.Total-p.Offset:
		return Errorf(CodeInvalidValue, "The part of %d bytes at byte %d goes beyond the file's size of %d bytes.", p.Size, p.Offset, p.Total)
	}
	return nil
}

// UploadProgress tells how far an upload in parts is.
type UploadProgress struct {
	Received int64     // bytes from the start without a gap: where the next part begins
	File     *FileInfo // the file, once it is complete
}

// DownloadRequest reads a file or a range of it. The zero value of the range is
// the whole file.
type DownloadRequest struct {
	Path string
	// Offset is the range's first byte. A negative one counts from the end: -5
	// is the last five bytes, or all of a file that is shorter.
	Offset int64
	// Length bounds the range's bytes; 0 is up to the end.
	Length int64
}

// Resolve finds the range in a file of size bytes. CodeInvalidRange when there
// is not a byte of it; the whole of an empty file is no error.
func (r DownloadRequest) Resolve(size int64) (offset, length int64, err error) {
	if r.Offset == 0 && r.Length <= 0 {
		return 0, size, nil
	}
	offset = r.Offset
	if offset < 0 {
		offset = max(0, size+offset)
	}
	if offset >= size {
		return 0, 0, Errorf(CodeInvalidRange, "The range lies beyond the end of the file, which has %d bytes.", size)
	}
	length = size - offset
	if r.Length > 0 {
		length = min(length, r.Length)
	}
	return offset, length, nil
}

// Move gives a file, a folder or a link another name.
type Move struct {
	From, To  string
	Overwrite bool // replace what is at To: a file, a link, or an empty folder
}

// Validate checks both paths.
func (m Move) Validate() error {
	if err := ValidatePath(m.From); err != nil {
		return err
	}
	return ValidatePath(m.To)
}

// Removal tells what a removal has done.
type Removal struct {
	Entries  int64 // how many files, folders and links are gone
	Complete bool  // false: time was up before all of a large folder was gone
}

// Filer moves files in and out of one sandbox, and about in it.
type Filer interface {
	Upload(ctx context.Context, req UploadRequest) (FileInfo, error)
	// UploadPart adds a part. CodeInvalidValue tells of a gap, and names the
	// offset that is expected.
	UploadPart(ctx context.Context, part UploadPart) (UploadProgress, error)
	// Download opens a regular file. Its info has the size of the whole file,
	// also with CodeInvalidRange. The reader fails when the file ends early.
	Download(ctx context.Context, req DownloadRequest) (FileInfo, io.ReadCloser, error)
	Stat(ctx context.Context, path string) (FileInfo, error)
	// ListFiles returns a page of a folder in the order of names (bytes): the
	// entries after the name given, at most limit of them. more tells that
	// others follow.
	ListFiles(ctx context.Context, path, after string, limit int) (entries []FileInfo, more bool, err error)
	// MakeDir makes a folder and its parents. One that is there already is no
	// error and keeps its mode; mode 0 is 0755. CodeFileExists.
	MakeDir(ctx context.Context, path string, mode fs.FileMode) (FileInfo, error)
	// Move renames; parents of the new name are made. CodeFileExists.
	Move(ctx context.Context, m Move) (FileInfo, error)
	// Remove removes a file, a link (never what it leads to) or a folder, which
	// must be empty unless recursive is set: CodeNotEmpty.
	Remove(ctx context.Context, path string, recursive bool) (Removal, error)
}
