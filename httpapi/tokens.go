package httpapi

import (
	"context"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type tokenInput struct {
	ID string `path:"id" doc:"Id of the token." example:"tok_0123456789abcdef0123"`
}

func (s *server) tokenRoutes() {
	handle(s, route{
		method: http.MethodGet, path: "/tokens", id: "listTokens", tag: "tokens",
		summary: "List the account's tokens, newest first",
	}, func(ctx context.Context, _ *call, _ *none, _ *none) (wire.TokenList, error) {
		list, err := s.Tokens.ListTokens(ctx)
		out := wire.TokenList{Data: []wire.Token{}}
		for _, t := range list {
			out.Data = append(out.Data, wire.NewToken(t))
		}
		return out, err
	})
	handle(s, route{
		method: http.MethodPost, path: "/tokens", id: "createToken", tag: "tokens", status: http.StatusCreated,
		summary: "Make a token; its secret is shown this once",
		codes:   []eqvps.Code{eqvps.CodeInvalidValue},
	}, func(ctx context.Context, _ *call, _ *none, body *wire.CreateToken) (wire.NewSecret, error) {
		t, secret, err := s.Tokens.CreateToken(ctx, body.Name, body.Life())
		if err != nil {
			return wire.NewSecret{}, err
		}
		return wire.NewSecret{Token: wire.NewToken(t), Secret: secret}, nil
	})
	handle(s, route{
		method: http.MethodDelete, path: "/tokens/{id}", id: "revokeToken", tag: "tokens",
		summary:     "Revoke a token",
		description: "Revoking one that is revoked is no error.",
		codes:       []eqvps.Code{eqvps.CodeTokenNotFound},
	}, func(ctx context.Context, _ *call, in *tokenInput, _ *none) (wire.Revoked, error) {
		return wire.Revoked{ID: in.ID, Revoked: true}, s.Tokens.RevokeToken(ctx, in.ID)
	})
}
