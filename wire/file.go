package wire

import (
	"encoding/base64"
	"fmt"
	"path"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
)

// PutFile writes a file whose content fits into a message.
type PutFile struct {
	Path          string  `json:"path,omitempty" doc:"Absolute path; parents are created." example:"/root/task.py"`
	PathBase64    []byte  `json:"path_base64,omitempty" doc:"The path as bytes, when it is not UTF-8."`
	Content       *string `json:"content,omitempty" doc:"The content as text."`
	ContentBase64 *[]byte `json:"content_base64,omitempty" doc:"The content as bytes; either this or content. At most 5,000,000 bytes."`
	Mode          string  `json:"mode,omitempty" doc:"Octal permission bits; the default is 0644." example:"0755"`
}

// Bytes returns the path and the content.
func (p PutFile) Bytes() (name string, content []byte, err error) {
	if name, err = either("path", p.Path, p.PathBase64); err != nil {
		return "", nil, err
	}
	if (p.Content == nil) == (p.ContentBase64 == nil) {
		return "", nil, eqvps.Errorf(eqvps.CodeInvalidRequest, "Give either content or content_base64.")
	}
	if p.Content != nil {
		content = []byte(*p.Content)
	} else {
		content = *p.ContentBase64
	}
	if len(content) > eqvps.MaxInlineFileBytes {
		return "", nil, TooLargeInline(int64(len(content)))
	}
	return name, content, nil
}

// either is a path that a message gives as text or as bytes.
func either(field, text string, bytes []byte) (string, error) {
	switch {
	case bytes == nil:
		return text, nil
	case text != "":
		return "", eqvps.Errorf(eqvps.CodeInvalidRequest, "Give either %s or %s_base64, not both.", field, field)
	}
	return string(bytes), nil
}

// TextOrBytes splits a path for a message: into text, or where it is none into
// bytes.
func TextOrBytes(path string) (text string, bytes []byte) {
	if bytes = invalid(path); bytes == nil {
		text = path
	}
	return text, bytes
}

// TooLargeInline is the error for a file that does not fit into a message.
func TooLargeInline(size int64) error {
	return eqvps.Errorf(eqvps.CodeTooLarge, "The file has %d bytes; at most %d fit into a JSON message, up to %d go through files/raw.",
		size, eqvps.MaxInlineFileBytes, eqvps.MaxFileBytes)
}

// File is a file with its content.
type File struct {
	Path          string `json:"path"`
	Size          int64  `json:"size" doc:"In bytes."`
	Mode          string `json:"mode" doc:"Octal permission bits."`
	ContentBase64 []byte `json:"content_base64" nullable:"false" doc:"The content as bytes."`
}

// FileInfo describes one entry.
type FileInfo struct {
	Name         string    `json:"name" doc:"The last part of the path; bytes that are not UTF-8 are replaced."`
	Path         string    `json:"path"`
	Type         string    `json:"type" enum:"file,dir,symlink,other"`
	Size         int64     `json:"size" doc:"In bytes."`
	Mode         string    `json:"mode" doc:"Octal permission bits."`
	ModifiedAt   time.Time `json:"modified_at"`
	Target       *string   `json:"target" doc:"Where a symbolic link leads, as written; null for anything else."`
	NameBase64   []byte    `json:"name_base64,omitempty" doc:"The name as bytes, when it is not UTF-8."`
	PathBase64   []byte    `json:"path_base64,omitempty" doc:"The path as bytes, when it is not UTF-8."`
	TargetBase64 []byte    `json:"target_base64,omitempty" doc:"The target as bytes, when it is not UTF-8."`
}

// NewFileInfo renders an entry.
func NewFileInfo(fi eqvps.FileInfo) FileInfo {
	return FileInfo{
		Name: valid(path.Base(fi.Path)), Path: valid(fi.Path), Type: string(fi.Type), Size: fi.Size,
		Mode: Mode(fi), ModifiedAt: fi.ModTime.UTC(), Target: optional(valid(fi.Target)),
		NameBase64: invalid(path.Base(fi.Path)), PathBase64: invalid(fi.Path), TargetBase64: invalid(fi.Target),
	}
}

// Mode renders permission bits.
func Mode(fi eqvps.FileInfo) string { return fmt.Sprintf("%04o", fi.Mode&0o7777) }

// Domain is the reverse of NewFileInfo: the bytes of names are whole again.
func (f FileInfo) Domain() (eqvps.FileInfo, error) {
	mode, err := eqvps.ParseMode(f.Mode)
	if err != nil {
		return eqvps.FileInfo{}, err
	}
	fi := eqvps.FileInfo{Path: f.Path, Type: eqvps.FileType(f.Type), Size: f.Size, Mode: mode, ModTime: f.ModifiedAt}
	if f.PathBase64 != nil {
		fi.Path = string(f.PathBase64)
	}
	if f.Target != nil {
		fi.Target = *f.Target
	}
	if f.TargetBase64 != nil {
		fi.Target = string(f.TargetBase64)
	}
	return fi, nil
}

// valid is s as text; invalid is s as bytes where it is none.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s)) // each bad byte becomes U+FFFD
}

func invalid(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

// FileList is one page of a folder in the order of names.
type FileList struct {
	Path      string     `json:"path"`
	Data      []FileInfo `json:"data" nullable:"false"`
	HasMore   bool       `json:"has_more"`
	NextAfter *string    `json:"next_after" doc:"Give it as after to get the next page; opaque, null at the end."`
}

// EncodeCursor makes the opaque form of a name; names need not be UTF-8.
func EncodeCursor(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// DecodeCursor reads it.
func DecodeCursor(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return "", eqvps.Errorf(eqvps.CodeInvalidRequest, "The query parameter after is not a next_after of an earlier page.")
	}
	return string(b), nil
}
