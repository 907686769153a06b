package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// filesSince is the first version of the protocol that has ranges, uploads in
// parts, and changes of the tree.
const filesSince = 6

// treeTimeout is how long a guest may take for a move or a removal. It gives up
// by itself before.
const treeTimeout = time.Minute

// needFiles tells what to do about a guest from before there was all that.
func (c *Client) needFiles() error {
	if c.version >= filesSince {
		return nil
	}
	return eqvps.Errorf(eqvps.CodeInvalidValue, "This sandbox was started by an older version and cannot do this; use a command, or create a new one.")
}

// UploadPart adds a part to a file, which appears whole with its last byte.
// Codes: those of Upload; CodeInvalidValue for a gap, with the offset that is
// expected.
func (c *Client) UploadPart(ctx context.Context, part eqvps.UploadPart) (eqvps.UploadProgress, error) {
	if err := firstOf(c.needFiles(), eqvps.ValidatePath(part.Path), part.Validate()); err != nil {
		return eqvps.UploadProgress{}, err
	}
	q := pathQuery(part.Path)
	q.Set(wire.ParamUpload, part.Upload)
	q.Set(wire.ParamOffset, strconv.FormatInt(part.Offset, 10))
	q.Set(wire.ParamTotal, strconv.FormatInt(part.Total, 10))
	q.Set(wire.ParamKeep, strconv.Itoa(int(part.Keep.Seconds())))
	var p wire.Progress
	if err := c.put(ctx, wire.PathPart, q, part.UploadRequest, &p); err != nil {
		return eqvps.UploadProgress{}, err
	}
	if p.Received < 0 || p.Received > part.Total || p.Done != nil && p.Done.Size != part.Total {
		return eqvps.UploadProgress{}, unreachable(errors.New("the guest tells of an impossible upload"))
	}
	out := eqvps.UploadProgress{Received: p.Received}
	if p.Done != nil {
		fi, err := fileInfo(*p.Done, part.Path)
		if err != nil {
			return eqvps.UploadProgress{}, err
		}
		out.File = &fi
	}
	return out, nil
}

// MakeDir makes a folder and its parents. Codes: CodeFileExists (something else
// is there), CodeNotADirectory, CodeDiskFull, CodeInvalidPath, CodeUnreachable.
func (c *Client) MakeDir(ctx context.Context, path string, mode fs.FileMode) (eqvps.FileInfo, error) {
	if err := firstOf(c.needFiles(), eqvps.ValidatePath(path)); err != nil {
		return eqvps.FileInfo{}, err
	}
	q := pathQuery(path)
	setMode(q, mode, 0o755)
	var e wire.Entry
	if err := c.change(ctx, http.MethodPost, wire.PathDir, q, &e); err != nil {
		return eqvps.FileInfo{}, err
	}
	return fileInfo(e, path)
}

// Move gives a file, a folder or a link another name; a link is moved itself.
// To another file system only files and links are moved. Codes:
// CodeFileNotFound, CodeFileExists, CodeNotADirectory, CodeInvalidPath,
// CodeInvalidValue, CodeDiskFull, CodeTooLarge (a copy that takes too long),
// CodeUnreachable.
func (c *Client) Move(ctx context.Context, m eqvps.Move) (eqvps.FileInfo, error) {
	if err := firstOf(c.needFiles(), m.Validate()); err != nil {
		return eqvps.FileInfo{}, err
	}
	q := pathQuery(m.From)
	q.Set(wire.ParamTo, wire.EncodeBytes(m.To))
	if m.Overwrite {
		q.Set(wire.ParamOverwrite, "1")
	}
	var e wire.Entry
	if err := c.change(ctx, http.MethodPost, wire.PathMove, q, &e); err != nil {
		return eqvps.FileInfo{}, err
	}
	return fileInfo(e, m.To)
}

// Remove removes a file, a link or a folder, and never follows a link. A large
// folder may take several calls: see eqvps.Removal. Codes: CodeFileNotFound,
// CodeNotEmpty, CodeInvalidPath (the root, or where a file system is mounted),
// CodeUnreachable.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) (eqvps.Removal, error) {
	if err := firstOf(c.needFiles(), eqvps.ValidatePath(path)); err != nil {
		return eqvps.Removal{}, err
	}
	q := pathQuery(path)
	if recursive {
		q.Set(wire.ParamRecursive, "1")
	}
	var r wire.Removal
	if err := c.change(ctx, http.MethodDelete, wire.PathFile, q, &r); err != nil {
		return eqvps.Removal{}, err
	}
	if r.Entries < 0 {
		return eqvps.Removal{}, unreachable(errors.New("the guest tells of an impossible removal"))
	}
	return eqvps.Removal{Entries: r.Entries, Complete: r.Complete}, nil
}

// firstOf returns the first error.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// change asks for a change of the tree.
func (c *Client) change(ctx context.Context, method, path string, q url.Values, answer any) error {
	b, err := c.callWithin(ctx, treeTimeout, wire.MaxReply, method, path, q, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return unreachable(err)
	}
	return nil
}
