package httpapi

import (
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// maxSecret is far above the length of any token.
const maxSecret = 512

// authenticate finds out who calls, before anything else of the request is
// looked at.
func (s *server) authenticate(ctx huma.Context, next func(huma.Context)) {
	c := callOf(ctx.Context())
	c.operation = ctx.Operation().OperationID
	// From here on the route's own view of the request counts: it knows the
	// parts of the path.
	c.r, _ = humago.Unwrap(ctx)
	if ctx.Operation().Metadata[metaPublic] == true {
		next(ctx)
		return
	}
	scheme, secret, _ := strings.Cut(ctx.Header("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" || len(secret) > maxSecret {
		s.refuse(c, eqvps.Errorf(eqvps.CodeUnauthenticated, "%s", eqvps.CodeUnauthenticated.Kind().Message))
		return
	}
	p, err := s.Tokens.Authenticate(ctx.Context(), strings.TrimSpace(secret))
	if err != nil {
		s.refuse(c, err)
		return
	}
	c.principal = p
	if !p.ExpiresAt.IsZero() {
		ctx.SetHeader(wire.HeaderTokenExpiresAt, p.ExpiresAt.UTC().Format(time.RFC3339))
	}
	next(huma.WithContext(ctx, eqvps.WithPrincipal(ctx.Context(), p)))
}

// refuse answers a call whose token is not valid.
func (s *server) refuse(c *call, err error) {
	if eqvps.ErrorCode(err) == eqvps.CodeUnauthenticated {
		if many := s.failures.note(c.r.RemoteAddr, s.Now()); many != nil {
			err = many
		}
	}
	c.writeError(err)
}
