package httpapi

import (
	"context"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type removeInput struct {
	ID        string `path:"id" doc:"Id of the sandbox."`
	Path      string `query:"path" required:"true" doc:"Absolute path; bytes that are not UTF-8 are percent-encoded like any other." example:"/root/task.py"`
	Recursive bool   `query:"recursive" doc:"Also a folder that is not empty, with all that is in it."`
}

// arrangeRoutes are the calls that change the tree of files.
func (s *server) arrangeRoutes() {
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/files/mkdir", id: "makeDir", tag: "files",
		codes:       codes(eqvps.CodeInvalidPath, eqvps.CodeFileNotFound, eqvps.CodeInvalidValue, eqvps.CodeFileExists, eqvps.CodeNotADirectory, eqvps.CodeDiskFull),
		summary:     "Make a folder and its parents",
		description: "A folder that is there already is no error and keeps its mode. Anything else at its path is 409.",
	}, func(ctx context.Context, _ *call, in *idInput, body *wire.MakeDir) (wire.FileInfo, error) {
		name, err := body.Name()
		if err != nil {
			return wire.FileInfo{}, err
		}
		mode, err := eqvps.ParseMode(body.Mode)
		if err != nil {
			return wire.FileInfo{}, err
		}
		if body.Mode == "" {
			mode = 0
		}
		g, err := s.guest(ctx, in.ID, name)
		if err != nil {
			return wire.FileInfo{}, err
		}
		fi, err := g.MakeDir(ctx, name, mode)
		return wire.NewFileInfo(fi), err
	})
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/files/move", id: "moveFile", tag: "files",
		codes:   codes(eqvps.CodeInvalidPath, eqvps.CodeFileNotFound, eqvps.CodeInvalidValue, eqvps.CodeFileExists, eqvps.CodeNotADirectory, eqvps.CodeDiskFull),
		summary: "Move or rename a file, a folder or a link",
		description: "Parents of the new path are created. What is there stays unless overwrite is set; a folder that is not empty always stays. " +
			"A link is moved itself. To another file system, such as /dev/shm, only files and links are moved.",
	}, func(ctx context.Context, _ *call, in *idInput, body *wire.MoveFile) (wire.FileInfo, error) {
		m, err := body.Domain()
		if err == nil {
			err = m.Validate()
		}
		if err != nil {
			return wire.FileInfo{}, err
		}
		g, err := s.guest(ctx, in.ID, m.From)
		if err != nil {
			return wire.FileInfo{}, err
		}
		fi, err := g.Move(ctx, m)
		return wire.NewFileInfo(fi), err
	})
	handle(s, route{
		method: http.MethodDelete, path: "/sandboxes/{id}/files", id: "removeFile", tag: "files",
		codes:       codes(eqvps.CodeInvalidPath, eqvps.CodeFileNotFound, eqvps.CodeInvalidValue, eqvps.CodeNotEmpty, eqvps.CodeNotADirectory),
		summary:     "Remove a file, a link or a folder",
		description: "A link goes, what it leads to stays. The root and what is mounted below it are not removed. One call takes at most 30 seconds: see complete.",
	}, func(ctx context.Context, _ *call, in *removeInput, _ *none) (wire.Removed, error) {
		g, err := s.guest(ctx, in.ID, in.Path)
		if err != nil {
			return wire.Removed{}, err
		}
		r, err := g.Remove(ctx, in.Path, in.Recursive)
		return wire.NewRemoved(in.Path, r), err
	})
}
