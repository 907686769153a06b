package httpapi

import (
	"context"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// idInput is the sandbox a call is about.
type idInput struct {
	ID string `path:"id" doc:"Id of the sandbox." example:"sb_0123456789abcdef0123"`
}

type listInput struct {
	State string `query:"state" enum:"active,deleted,all" doc:"active (the default): those that have not ended; deleted: those that have; all: both."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most to return."`
	After string `query:"after" maxLength:"64" doc:"Return those after the sandbox with this id: the last one of the page before."`
}

func (s *server) sandboxRoutes() {
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes", id: "createSandbox", tag: "sandboxes", status: http.StatusCreated,
		summary:     "Create a sandbox",
		description: "Answers when the sandbox is ready to run commands. A create that fails is not charged.",
		limit:       maxCreate, optional: true,
		codes: []eqvps.Code{eqvps.CodeInvalidValue, eqvps.CodeUnknownTariff, eqvps.CodeUnknownImage, eqvps.CodeInsufficientBalance,
			eqvps.CodeSpendLimitReached, eqvps.CodeSandboxLimit, eqvps.CodeStartFailed, eqvps.CodeCapacity},
	}, func(ctx context.Context, _ *call, _ *none, body *wire.CreateSandbox) (wire.Sandbox, error) {
		req, err := body.Domain()
		if err != nil {
			return wire.Sandbox{}, err
		}
		sb, err := s.Sandboxes.Create(ctx, req)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes", id: "listSandboxes", tag: "sandboxes",
		summary:     "List sandboxes",
		description: "Newest first; without a state those that have not ended. Listing is no activity.",
	}, s.list)
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}", id: "getSandbox", tag: "sandboxes",
		summary:     "Show a sandbox",
		description: "Showing is no activity.",
		codes:       []eqvps.Code{eqvps.CodeSandboxNotFound},
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.Sandbox, error) {
		sb, err := s.Sandboxes.Get(ctx, in.ID)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodDelete, path: "/sandboxes/{id}", id: "deleteSandbox", tag: "sandboxes",
		summary:     "Delete a sandbox",
		description: "Ends it and answers with its final record and cost. Deleting one that has ended is no error.",
		codes:       []eqvps.Code{eqvps.CodeSandboxNotFound},
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.Sandbox, error) {
		sb, err := s.Sandboxes.Delete(ctx, in.ID)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/usage", id: "getSandboxUsage", tag: "sandboxes",
		summary: "What a sandbox has used and cost",
		codes:   []eqvps.Code{eqvps.CodeSandboxNotFound},
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.Usage, error) {
		u, err := s.Sandboxes.Usage(ctx, in.ID)
		return wire.NewUsage(u), err
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/ping", id: "pingSandbox", tag: "sandboxes",
		summary:     "Ask a sandbox for a sign of life",
		description: "It is no activity.",
		codes:       []eqvps.Code{eqvps.CodeSandboxNotFound, eqvps.CodeNotRunning, eqvps.CodePaused, eqvps.CodeSandboxEnded, eqvps.CodeUnreachable},
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.Pong, error) {
		start := s.Now()
		err := s.Sandboxes.Ping(ctx, in.ID)
		return wire.Pong{OK: true, DurationMS: float64(s.Now().Sub(start).Microseconds()) / 1000}, err
	})
}

func (s *server) sandbox(sb *eqvps.Sandbox, err error) (wire.Sandbox, error) {
	if err != nil {
		return wire.Sandbox{}, err
	}
	return wire.NewSandbox(sb, s.Now()), nil
}

func (s *server) list(ctx context.Context, _ *call, in *listInput, _ *none) (wire.SandboxList, error) {
	// One more than asked for tells whether others follow.
	f := eqvps.SandboxFilter{After: in.After, Limit: in.Limit + 1}
	if in.State != "all" {
		ended := in.State == "deleted"
		f.Ended = &ended
	}
	found, err := s.Sandboxes.List(ctx, f)
	if err != nil {
		return wire.SandboxList{}, err
	}
	out := wire.SandboxList{Data: []wire.Sandbox{}, HasMore: len(found) > in.Limit}
	now := s.Now()
	for _, sb := range found[:min(len(found), in.Limit)] {
		out.Data = append(out.Data, wire.NewSandbox(sb, now))
	}
	return out, nil
}
