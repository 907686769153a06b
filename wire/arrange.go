package wire

import (
	"time"

	"github.com/eqvps/eqvps"
)

// MakeDir makes a folder.
type MakeDir struct {
	Path       string `json:"path,omitempty" doc:"Absolute path; parents are created." example:"/root/data"`
	PathBase64 []byte `json:"path_base64,omitempty" doc:"The path as bytes, when it is not UTF-8."`
	Mode       string `json:"mode,omitempty" doc:"Octal permission bits of a folder that is made; the default is 0755." example:"0700"`
}

// Name returns the path.
func (m MakeDir) Name() (string, error) { return either("path", m.Path, m.PathBase64) }

// MoveFile gives a file, a folder or a link another name.
type MoveFile struct {
	From       string `json:"from,omitempty" doc:"Absolute path." example:"/root/old.txt"`
	FromBase64 []byte `json:"from_base64,omitempty" doc:"The path as bytes, when it is not UTF-8."`
	To         string `json:"to,omitempty" doc:"The new absolute path itself, not a folder to move into; parents are created." example:"/root/new.txt"`
	ToBase64   []byte `json:"to_base64,omitempty" doc:"The path as bytes, when it is not UTF-8."`
	Overwrite  bool   `json:"overwrite,omitempty" doc:"Replace what is there: a file, a link or an empty folder. The default is false."`
}

// NewMoveFile renders a move.
func NewMoveFile(m eqvps.Move) MoveFile {
	out := MoveFile{Overwrite: m.Overwrite}
	out.From, out.FromBase64 = TextOrBytes(m.From)
	out.To, out.ToBase64 = TextOrBytes(m.To)
	return out
}

// Domain reads it.
func (m MoveFile) Domain() (out eqvps.Move, err error) {
	out.Overwrite = m.Overwrite
	if out.From, err = either("from", m.From, m.FromBase64); err != nil {
		return out, err
	}
	out.To, err = either("to", m.To, m.ToBase64)
	return out, err
}

// Removed tells what a removal has done.
type Removed struct {
	Path     string `json:"path" doc:"Bytes that are not UTF-8 are replaced."`
	Entries  int64  `json:"entries" doc:"How many files, folders and links are gone."`
	Complete bool   `json:"complete" doc:"False when a large folder takes longer than 30 seconds: a part of it is gone, and the same call goes on."`
}

// NewRemoved renders a removal.
func NewRemoved(path string, r eqvps.Removal) Removed {
	return Removed{Path: valid(path), Entries: r.Entries, Complete: r.Complete}
}

// CreateLink asks for a signed link.
type CreateLink struct {
	Path       string `json:"path,omitempty" doc:"Absolute path of the one file that the link is for." example:"/root/data.csv"`
	PathBase64 []byte `json:"path_base64,omitempty" doc:"The path as bytes, when it is not UTF-8."`
	Method     string `json:"method,omitempty" enum:"GET,PUT" doc:"What the link does: GET (the default) downloads, PUT uploads."`
	TTL        *int64 `json:"ttl,omitempty" minimum:"60" maximum:"3600" doc:"Seconds that the link lives; the default is 900."`
	Mode       string `json:"mode,omitempty" doc:"Octal permission bits of an uploaded file; the default is 0644."`
}

// Name returns the path.
func (l CreateLink) Name() (string, error) { return either("path", l.Path, l.PathBase64) }

// Link is a signed link. Whoever has it can use it.
type Link struct {
	URL          string    `json:"url" doc:"Needs no token."`
	Method       string    `json:"method" enum:"GET,PUT"`
	ExpiresAt    time.Time `json:"expires_at"`
	MaxPartBytes int64     `json:"max_part_bytes" doc:"The most bytes that one PUT takes; a larger file is sent in parts."`
}

// LinkUpload tells what an upload through a link has done.
type LinkUpload struct {
	Received int64     `json:"received" doc:"Bytes from the start without a gap: the offset of the next part."`
	Size     int64     `json:"size" doc:"Bytes of the whole file."`
	Complete bool      `json:"complete" doc:"Whether the file is there."`
	File     *FileInfo `json:"file" doc:"The file once it is complete, null before."`
}
