package node

import (
	"context"
	"io"
	"io/fs"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// ask makes one call of a guest.
func ask[T any](ctx context.Context, m *machine, call func(*guest.Client) (T, error)) (T, error) {
	c, err := m.connect(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	return call(c)
}

func (m *machine) Upload(ctx context.Context, req eqvps.UploadRequest) (eqvps.FileInfo, error) {
	return ask(ctx, m, func(c *guest.Client) (eqvps.FileInfo, error) { return c.Upload(ctx, req) })
}

func (m *machine) UploadPart(ctx context.Context, part eqvps.UploadPart) (eqvps.UploadProgress, error) {
	return ask(ctx, m, func(c *guest.Client) (eqvps.UploadProgress, error) { return c.UploadPart(ctx, part) })
}

func (m *machine) Download(ctx context.Context, req eqvps.DownloadRequest) (eqvps.FileInfo, io.ReadCloser, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return eqvps.FileInfo{}, nil, err
	}
	return c.Download(ctx, req)
}

func (m *machine) Stat(ctx context.Context, path string) (eqvps.FileInfo, error) {
	return ask(ctx, m, func(c *guest.Client) (eqvps.FileInfo, error) { return c.Stat(ctx, path) })
}

func (m *machine) ListFiles(ctx context.Context, path, after string, limit int) ([]eqvps.FileInfo, bool, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return nil, false, err
	}
	return c.ListFiles(ctx, path, after, limit)
}

func (m *machine) MakeDir(ctx context.Context, path string, mode fs.FileMode) (eqvps.FileInfo, error) {
	return ask(ctx, m, func(c *guest.Client) (eqvps.FileInfo, error) { return c.MakeDir(ctx, path, mode) })
}

func (m *machine) Move(ctx context.Context, mv eqvps.Move) (eqvps.FileInfo, error) {
	return ask(ctx, m, func(c *guest.Client) (eqvps.FileInfo, error) { return c.Move(ctx, mv) })
}

func (m *machine) Remove(ctx context.Context, path string, recursive bool) (eqvps.Removal, error) {
	return ask(ctx, m, func(c *guest.Client) (eqvps.Removal, error) { return c.Remove(ctx, path, recursive) })
}
