package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// readStall is how long a guest may take to send the next bytes of a file.
const readStall = time.Minute

var errStalled = errors.New("the guest stopped sending the file")

// Download opens a regular file, or a range of it. Codes: CodeFileNotFound,
// CodeNotAFile (also a file of the kernel's that makes its readers wait),
// CodeInvalidPath, CodeInvalidRange, CodeTooLarge, CodeUnreachable; reads fail
// with io.ErrUnexpectedEOF when the file ends before its announced size.
func (c *Client) Download(ctx context.Context, req eqvps.DownloadRequest) (eqvps.FileInfo, io.ReadCloser, error) {
	if err := eqvps.ValidatePath(req.Path); err != nil {
		return eqvps.FileInfo{}, nil, err
	}
	q := pathQuery(req.Path)
	q.Set(wire.ParamOffset, strconv.FormatInt(req.Offset, 10))
	q.Set(wire.ParamLength, strconv.FormatInt(req.Length, 10))
	ctx, cancel := context.WithCancelCause(ctx)
	f := &flow{cancel: cancel}
	f.timer = time.AfterFunc(c.replyTimeout, func() { cancel(errStalled) })
	res, err := c.send(ctx, http.MethodGet, wire.PathFile, q, 0, nil)
	f.timer.Stop()
	if err != nil {
		cancel(nil)
		return eqvps.FileInfo{}, nil, err
	}
	f.ReadCloser = res.Body
	info, err := c.checkDownload(res, f, req)
	if err != nil {
		_ = f.Close()
		return info, nil, err
	}
	return info, f, nil
}

// checkDownload holds what a guest says of a file against what it sends.
func (c *Client) checkDownload(res *http.Response, f *flow, req eqvps.DownloadRequest) (eqvps.FileInfo, error) {
	var e wire.Entry
	if err := json.Unmarshal([]byte(res.Header.Get(wire.HeaderEntry)), &e); err != nil {
		return eqvps.FileInfo{}, unreachable(err)
	}
	info, err := fileInfo(e, req.Path)
	if err != nil {
		return eqvps.FileInfo{}, err
	}
	offset, length, rangeErr := req.Resolve(info.Size)
	sends := length
	if c.version < filesSince { // it knows no ranges and sends all
		sends = info.Size
	}
	if info.Type != eqvps.TypeFile || res.ContentLength != sends {
		return eqvps.FileInfo{}, unreachable(fmt.Errorf("the guest announced a file of %d bytes and sends %d", info.Size, res.ContentLength))
	}
	if rangeErr != nil {
		return info, rangeErr
	}
	if sends != length {
		if _, err := io.CopyN(io.Discard, f, offset); err != nil {
			return eqvps.FileInfo{}, unreachable(err)
		}
		f.ReadCloser = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(f.ReadCloser, length), f.ReadCloser}
	}
	return info, nil
}

// flow is a file on its way, which may be slow but not stand still.
type flow struct {
	io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func (f *flow) Read(p []byte) (int, error) {
	f.timer.Reset(readStall)
	defer f.timer.Stop()
	return f.ReadCloser.Read(p)
}

func (f *flow) Close() error {
	f.timer.Stop()
	defer f.cancel(nil)
	return f.ReadCloser.Close()
}
