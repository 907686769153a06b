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

// Filer moves files in and out of one sandbox.
type Filer interface {
	Upload(ctx context.Context, req UploadRequest) (FileInfo, error)
	// Download opens a regular file. The reader fails when the file ends early.
	Download(ctx context.Context, path string) (FileInfo, io.ReadCloser, error)
	Stat(ctx context.Context, path string) (FileInfo, error)
	// ListFiles returns a page of a folder in the order of names (bytes): the
	// entries after the name given, at most limit of them. more tells that
	// others follow.
	ListFiles(ctx context.Context, path, after string, limit int) (entries []FileInfo, more bool, err error)
}
