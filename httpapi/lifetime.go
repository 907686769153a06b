package httpapi

import (
	"context"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type eventsInput struct {
	ID    string `path:"id" doc:"Id of the sandbox." example:"sb_0123456789abcdef0123"`
	After int64  `query:"after" minimum:"0" doc:"seq of the last event of the page before."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most to return."`
}

func (s *server) lifetimeRoutes() {
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/extend", id: "extendSandbox", tag: "sandboxes",
		summary:     "Let a sandbox live longer",
		description: "Adds to its time to live, changes its idle timeout, or both. It is activity.",
		codes:       []eqvps.Code{eqvps.CodeSandboxNotFound, eqvps.CodeSandboxEnded, eqvps.CodeInvalidValue},
	}, func(ctx context.Context, _ *call, in *idInput, body *wire.Extend) (wire.Sandbox, error) {
		sb, err := s.Sandboxes.Extend(ctx, in.ID, body.Domain())
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/keep-alive", id: "keepSandboxAlive", tag: "sandboxes",
		summary:     "Count as a use of a sandbox",
		description: "Its idle time begins anew. One that was paused for being idle goes on.",
		codes:       useCodes,
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.Sandbox, error) {
		sb, err := s.Sandboxes.KeepAlive(ctx, in.ID)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/pause", id: "pauseSandbox", tag: "sandboxes",
		summary: "Pause a persistent sandbox",
		description: "Puts its memory, encrypted, and its disk away. It is not billed until it is resumed, and then goes on where it was: processes, background tasks, " +
			"variables. Connections to other machines do not outlive a longer pause. Foreground commands under way are ended. Pausing one that is paused is no error.",
		codes: []eqvps.Code{eqvps.CodeSandboxNotFound, eqvps.CodeNotRunning, eqvps.CodeSandboxEnded, eqvps.CodeWrongMode, eqvps.CodeCapacity, eqvps.CodeUnreachable},
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.Sandbox, error) {
		sb, err := s.Sandboxes.Pause(ctx, in.ID)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/resume", id: "resumeSandbox", tag: "sandboxes", optional: true,
		summary:     "Resume a paused sandbox",
		description: "Answers when it can be used. Resuming one that runs is no error.",
		codes: []eqvps.Code{eqvps.CodeSandboxNotFound, eqvps.CodeNotRunning, eqvps.CodeSandboxEnded, eqvps.CodeWrongMode, eqvps.CodeCapacity,
			eqvps.CodeStartFailed, eqvps.CodeInsufficientBalance, eqvps.CodeSpendLimitReached},
	}, func(ctx context.Context, _ *call, in *idInput, body *wire.Resume) (wire.Sandbox, error) {
		sb, err := s.Sandboxes.Resume(ctx, in.ID, body.FromDisk)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodPut, path: "/sandboxes/{id}/network", id: "setSandboxNetwork", tag: "sandboxes",
		summary: "Change what a sandbox may reach",
		description: "In place of the policy it has: at once and as a whole. Connections that it has and that are not allowed any more are reset at their next packet. " +
			"Private ranges, the host, other sandboxes and mail stay out of reach whatever is allowed. It is activity.",
		codes: []eqvps.Code{eqvps.CodeSandboxNotFound, eqvps.CodeNotRunning, eqvps.CodeSandboxEnded, eqvps.CodeInvalidValue, eqvps.CodeUnreachable},
	}, func(ctx context.Context, _ *call, in *idInput, body *wire.Network) (wire.Sandbox, error) {
		p, err := body.Domain()
		if err != nil {
			return wire.Sandbox{}, err
		}
		sb, err := s.Sandboxes.SetNetwork(ctx, in.ID, p)
		return s.sandbox(sb, err)
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/events", id: "listSandboxEvents", tag: "sandboxes",
		summary:     "What happened to a sandbox",
		description: "Oldest first; the last 1000 are kept, until 30 days after its end.",
		codes:       []eqvps.Code{eqvps.CodeSandboxNotFound},
	}, func(ctx context.Context, _ *call, in *eventsInput, _ *none) (wire.EventList, error) {
		list, err := s.Sandboxes.Events(ctx, in.ID, in.After, in.Limit+1)
		if err != nil {
			return wire.EventList{}, err
		}
		return wire.NewEventList(list, in.Limit), nil
	})
	handle(s, route{
		method: http.MethodPost, path: "/drain", id: "drainServer", tag: "service",
		summary: "Ready the server for a stop of its host",
		description: "It takes no new sandboxes and pauses the persistent ones, which its next start resumes. Ephemeral ones run on for as long as the host does. " +
			"For administrators only.",
		codes: []eqvps.Code{eqvps.CodeCapacity},
	}, func(ctx context.Context, _ *call, _ *none, _ *none) (wire.Drained, error) {
		n, err := s.Sandboxes.Drain(ctx)
		return wire.Drained{Paused: n}, err
	})
}
