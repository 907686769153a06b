package httpapi_test

import (
	"context"
	"io"
	"io/fs"
	"strings"
	"testing/iotest"

	"github.com/eqvps/eqvps"
)

func (f *fake) Download(ctx context.Context, req eqvps.DownloadRequest) (eqvps.FileInfo, io.ReadCloser, error) {
	p := req.Path
	fi := eqvps.FileInfo{Path: p, Type: eqvps.TypeFile, Size: 100_000, ModTime: epoch}
	var content io.Reader
	switch p {
	case "/proc/version": // its size is known once it is read
		fi.Size, content = 5, strings.NewReader("Linux")
	case "/short":
		content = strings.NewReader(strings.Repeat("x", 90_000))
	case "/broken":
		content = iotest.ErrReader(eqvps.WrapError(eqvps.CodeUnreachable, io.ErrUnexpectedEOF))
	case "/huge":
		fi.Size, content = eqvps.MaxInlineFileBytes+1, strings.NewReader("")
	default:
		var err error
		if fi, err = f.Stat(ctx, p); err != nil {
			return fi, nil, err
		}
		offset, length, err := req.Resolve(fi.Size)
		if err != nil {
			return fi, nil, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		content = strings.NewReader(string(f.files[p].content[offset : offset+length]))
	}
	return fi, io.NopCloser(content), nil
}

// fakeUpload is an upload in parts.
type fakeUpload struct{ content []byte }

func (f *fake) UploadPart(_ context.Context, p eqvps.UploadPart) (eqvps.UploadProgress, error) {
	if err := p.Validate(); err != nil {
		return eqvps.UploadProgress{}, err
	}
	if p.Path == "/dev/null" { // for what is too large to keep
		n, err := io.Copy(io.Discard, p.Content)
		return eqvps.UploadProgress{Received: n}, err
	}
	b, err := io.ReadAll(p.Content)
	if err != nil {
		return eqvps.UploadProgress{}, eqvps.WrapError(eqvps.CodeUnreachable, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.parts[p.Upload]
	if u == nil {
		u = &fakeUpload{}
		f.parts[p.Upload] = u
	}
	if p.Offset > int64(len(u.content)) {
		return eqvps.UploadProgress{}, eqvps.Errorf(eqvps.CodeInvalidValue, "go on with offset=%d.", len(u.content))
	}
	u.content = append(u.content[:p.Offset], b...)
	out := eqvps.UploadProgress{Received: int64(len(u.content))}
	if out.Received == p.Total {
		f.files[p.Path] = file{p.Mode, u.content}
		out.File = &eqvps.FileInfo{Path: p.Path, Type: eqvps.TypeFile, Size: p.Total, Mode: p.Mode, ModTime: epoch}
	}
	return out, nil
}

func (f *fake) MakeDir(_ context.Context, p string, mode fs.FileMode) (eqvps.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.files[p]; ok {
		return eqvps.FileInfo{}, eqvps.WrapError(eqvps.CodeFileExists, nil)
	}
	return eqvps.FileInfo{Path: p, Type: eqvps.TypeDir, Mode: mode, ModTime: epoch}, nil
}

func (f *fake) Move(ctx context.Context, m eqvps.Move) (eqvps.FileInfo, error) {
	if _, err := f.Stat(ctx, m.From); err != nil {
		return eqvps.FileInfo{}, err
	}
	if _, err := f.Stat(ctx, m.To); err == nil && !m.Overwrite {
		return eqvps.FileInfo{}, eqvps.WrapError(eqvps.CodeFileExists, nil)
	}
	f.mu.Lock()
	f.files[m.To] = f.files[m.From]
	delete(f.files, m.From)
	f.mu.Unlock()
	return f.Stat(ctx, m.To)
}

// Remove takes "/dir" for a folder that is not empty, and large.
func (f *fake) Remove(ctx context.Context, p string, recursive bool) (eqvps.Removal, error) {
	if p == "/dir" {
		if !recursive {
			return eqvps.Removal{}, eqvps.WrapError(eqvps.CodeNotEmpty, nil)
		}
		return eqvps.Removal{Entries: 1000}, nil
	}
	if _, err := f.Stat(ctx, p); err != nil {
		return eqvps.Removal{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.files, p)
	return eqvps.Removal{Entries: 1, Complete: true}, nil
}
