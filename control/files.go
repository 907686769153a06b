package control

import (
	"context"
	"io"
	"io/fs"

	"github.com/eqvps/eqvps"
)

// during makes one call of a machine, which counts as activity. check is what
// is known to be wrong with it before.
func during[T any](ctx context.Context, u used, check error, call func(eqvps.Machine) (T, error)) (T, error) {
	if check != nil {
		var zero T
		return zero, check
	}
	l, end, err := u.enter(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	defer end()
	v, err := call(l.machine)
	return v, u.s.explain(ctx, l, err)
}

func (u used) Upload(ctx context.Context, req eqvps.UploadRequest) (eqvps.FileInfo, error) {
	return during(ctx, u, eqvps.ValidatePath(req.Path), func(m eqvps.Machine) (eqvps.FileInfo, error) { return m.Upload(ctx, req) })
}

func (u used) UploadPart(ctx context.Context, part eqvps.UploadPart) (eqvps.UploadProgress, error) {
	check := eqvps.ValidatePath(part.Path)
	if check == nil {
		check = part.Validate()
	}
	return during(ctx, u, check, func(m eqvps.Machine) (eqvps.UploadProgress, error) { return m.UploadPart(ctx, part) })
}

func (u used) Download(ctx context.Context, req eqvps.DownloadRequest) (eqvps.FileInfo, io.ReadCloser, error) {
	if err := eqvps.ValidatePath(req.Path); err != nil {
		return eqvps.FileInfo{}, nil, err
	}
	l, end, err := u.enter(ctx)
	if err != nil {
		return eqvps.FileInfo{}, nil, err
	}
	fi, r, err := l.machine.Download(ctx, req)
	if err != nil {
		end()
		return fi, nil, u.s.explain(ctx, l, err)
	}
	return fi, &endingReader{ReadCloser: r, end: end}, nil
}

// endingReader ends the call it belongs to when it is closed.
type endingReader struct {
	io.ReadCloser
	end func()
}

func (r *endingReader) Close() error {
	defer r.end()
	return r.ReadCloser.Close()
}

func (u used) Stat(ctx context.Context, path string) (eqvps.FileInfo, error) {
	return during(ctx, u, eqvps.ValidatePath(path), func(m eqvps.Machine) (eqvps.FileInfo, error) { return m.Stat(ctx, path) })
}

func (u used) ListFiles(ctx context.Context, path, after string, limit int) (entries []eqvps.FileInfo, more bool, err error) {
	entries, err = during(ctx, u, eqvps.ValidatePath(path), func(m eqvps.Machine) (e []eqvps.FileInfo, err error) {
		e, more, err = m.ListFiles(ctx, path, after, limit)
		return e, err
	})
	return entries, more, err
}

func (u used) MakeDir(ctx context.Context, path string, mode fs.FileMode) (eqvps.FileInfo, error) {
	return during(ctx, u, eqvps.ValidatePath(path), func(m eqvps.Machine) (eqvps.FileInfo, error) { return m.MakeDir(ctx, path, mode) })
}

func (u used) Move(ctx context.Context, mv eqvps.Move) (eqvps.FileInfo, error) {
	return during(ctx, u, mv.Validate(), func(m eqvps.Machine) (eqvps.FileInfo, error) { return m.Move(ctx, mv) })
}

func (u used) Remove(ctx context.Context, path string, recursive bool) (eqvps.Removal, error) {
	return during(ctx, u, eqvps.ValidatePath(path), func(m eqvps.Machine) (eqvps.Removal, error) { return m.Remove(ctx, path, recursive) })
}
