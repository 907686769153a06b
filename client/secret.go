package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

func secretPath(name string) string { return "/secrets/" + url.PathEscape(name) }

// PutSecret adds a secret to the account or replaces its value, which may hold
// any bytes but NUL.
func (c *Client) PutSecret(ctx context.Context, name, value string) (*wire.Secret, error) {
	var out wire.Secret
	return &out, c.call(ctx, http.MethodPut, secretPath(name), nil, wire.NewPutSecret(value), &out)
}

// ListSecrets returns the account's secrets by name, without values.
func (c *Client) ListSecrets(ctx context.Context) (*wire.SecretList, error) {
	var out wire.SecretList
	return &out, c.call(ctx, http.MethodGet, "/secrets", nil, nil, &out)
}

// DeleteSecret removes a secret. Sandboxes that have it keep it.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	var out wire.SecretDeleted
	return c.call(ctx, http.MethodDelete, secretPath(name), nil, nil, &out)
}

// RotateKeys replaces the key that the server encrypts with. It is for the
// administrator.
func (c *Client) RotateKeys(ctx context.Context) (*wire.Rotation, error) {
	var out wire.Rotation
	return &out, c.call(ctx, http.MethodPost, "/keys/rotate", nil, nil, &out)
}

// EnvKeys returns the names of a sandbox's variables.
func (c *Client) EnvKeys(ctx context.Context, id string) ([]string, error) {
	var out wire.EnvKeys
	err := c.call(ctx, http.MethodGet, sandboxPath(id, "/env"), nil, nil, &out)
	return out.EnvKeys, err
}

// SetEnv changes a sandbox's variables for the commands that start from then
// on, and returns their names.
func (c *Client) SetEnv(ctx context.Context, id string, change eqvps.EnvChange) ([]string, error) {
	var out wire.EnvKeys
	err := c.call(ctx, http.MethodPatch, sandboxPath(id, "/env"), nil, wire.NewPatchEnv(change), &out)
	return out.EnvKeys, err
}
