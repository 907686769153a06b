package httpapi

import (
	"context"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type secretInput struct {
	Name string `path:"name" doc:"Name of the secret: letters, digits and underscores, not a digit first." example:"API_KEY"`
}

func (s *server) secretRoutes() {
	handle(s, route{
		method: http.MethodGet, path: "/secrets", id: "listSecrets", tag: "secrets",
		summary:     "List the account's secrets by name",
		description: "Names and times; a value is never returned.",
	}, func(ctx context.Context, _ *call, _ *none, _ *none) (wire.SecretList, error) {
		list, err := s.Secrets.ListSecrets(ctx)
		out := wire.SecretList{Data: []wire.Secret{}}
		for _, sec := range list {
			out.Data = append(out.Data, wire.NewSecretRecord(sec))
		}
		return out, err
	})
	handle(s, route{
		method: http.MethodPut, path: "/secrets/{name}", id: "putSecret", tag: "secrets",
		summary:     "Add a secret or replace its value",
		description: "It is kept encrypted. Sandboxes that are created with its name in `secrets` get it as a variable; those that have it keep the value they got.",
		limit:       maxPutSecret,
		codes:       []eqvps.Code{eqvps.CodeInvalidValue},
	}, func(ctx context.Context, _ *call, in *secretInput, body *wire.PutSecret) (wire.Secret, error) {
		value, err := body.Domain()
		if err != nil {
			return wire.Secret{}, err
		}
		sec, err := s.Secrets.PutSecret(ctx, in.Name, value)
		if err != nil {
			return wire.Secret{}, err
		}
		return wire.NewSecretRecord(sec), nil
	})
	handle(s, route{
		method: http.MethodDelete, path: "/secrets/{name}", id: "deleteSecret", tag: "secrets",
		summary:     "Delete a secret",
		description: "Sandboxes that have it keep it.",
		codes:       []eqvps.Code{eqvps.CodeSecretNotFound},
	}, func(ctx context.Context, _ *call, in *secretInput, _ *none) (wire.SecretDeleted, error) {
		return wire.SecretDeleted{Name: in.Name, Deleted: true}, s.Secrets.DeleteSecret(ctx, in.Name)
	})
	handle(s, route{
		method: http.MethodPost, path: "/keys/rotate", id: "rotateKeys", tag: "secrets",
		summary:     "Replace the server's key",
		description: "Everything that is kept encrypted is encrypted anew, and the old keys are dropped. For the administrator. After a failure call it again.",
	}, func(ctx context.Context, _ *call, _ *none, _ *none) (wire.Rotation, error) {
		r, err := s.Secrets.RotateKeys(ctx)
		return wire.Rotation(r), err
	})
	handle(s, route{
		method: http.MethodGet, path: "/sandboxes/{id}/env", id: "getEnv", tag: "sandboxes",
		summary:     "List the names of a sandbox's variables",
		description: "Values are never returned. It is no activity.",
		codes:       []eqvps.Code{eqvps.CodeSandboxNotFound},
	}, func(ctx context.Context, _ *call, in *idInput, _ *none) (wire.EnvKeys, error) {
		return envKeys(s.Sandboxes.Get(ctx, in.ID))
	})
	handle(s, route{
		method: http.MethodPatch, path: "/sandboxes/{id}/env", id: "changeEnv", tag: "sandboxes",
		summary:     "Set and remove variables of a sandbox",
		description: "For commands that start from then on; those that run keep what they have. All of it happens, or nothing.",
		limit:       maxCreate,
		codes:       codes(eqvps.CodeInvalidValue),
	}, func(ctx context.Context, _ *call, in *idInput, body *wire.PatchEnv) (wire.EnvKeys, error) {
		change, err := body.Domain()
		if err != nil {
			return wire.EnvKeys{}, err
		}
		return envKeys(s.Sandboxes.SetEnv(ctx, in.ID, change))
	})
}

func envKeys(sb *eqvps.Sandbox, err error) (wire.EnvKeys, error) {
	if err != nil {
		return wire.EnvKeys{}, err
	}
	return wire.NewEnvKeys(sb), nil
}
