package httpapi

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"

	"github.com/eqvps/eqvps"
)

// audited are the calls that are written down although they change nothing:
// content leaves a sandbox.
var audited = []string{"getFile", "downloadFile", "getLink"}

// maxAuditedPath bounds what a line holds of an address that a client made up.
const maxAuditedPath = 256

// audit writes down who did what: every call that may change something, that
// takes content out of a sandbox, or that was refused. Bodies and queries are
// left out, because they hold values and names of files; so are calls that
// were turned away for being too many.
func (s *server) audit(c *call) {
	code := eqvps.Code("")
	if c.err != nil {
		code = eqvps.ErrorCode(c.err)
	}
	reads := c.r.Method == http.MethodGet || c.r.Method == http.MethodHead
	refused := code == eqvps.CodeUnauthenticated || code == eqvps.CodeForbidden
	switch {
	case s.Audit == nil, code == eqvps.CodeRateLimited:
		return
	case reads && !refused && !slices.Contains(audited, c.operation):
		return
	}
	path := c.r.URL.Path
	attrs := []slog.Attr{
		slog.String("request_id", c.id), slog.String("remote", c.r.RemoteAddr),
		slog.String("account", c.principal.AccountID), slog.String("token", c.principal.TokenID),
		slog.String("method", c.r.Method), slog.String("path", path[:min(len(path), maxAuditedPath)]), slog.String("operation", c.operation),
		slog.Int("status", cmp.Or(c.w.status, http.StatusOK)),
	}
	if code != "" {
		attrs = append(attrs, slog.String("code", string(code)))
	}
	s.Audit.LogAttrs(context.WithoutCancel(c.r.Context()), slog.LevelInfo, "call", attrs...)
}
