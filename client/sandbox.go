package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/eqvps/eqvps/wire"
)

func sandboxPath(id, rest string) string { return "/sandboxes/" + url.PathEscape(id) + rest }

// Create makes a sandbox and returns when it is ready.
func (c *Client) Create(ctx context.Context, req wire.CreateSandbox) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodPost, "/sandboxes", nil, req, &out)
}

// Get returns a sandbox, ended or not.
func (c *Client) Get(ctx context.Context, id string) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodGet, sandboxPath(id, ""), nil, nil, &out)
}

// ListOptions select sandboxes. The zero value means the first page of those
// that have not ended.
type ListOptions struct {
	State string // "active", "deleted" or "all"
	Limit int    // at most 1000
	After string // id of the last one of the page before
}

// List returns one page, newest first.
func (c *Client) List(ctx context.Context, o ListOptions) (*wire.SandboxList, error) {
	q := url.Values{}
	set(q, "state", o.State)
	set(q, "after", o.After)
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	var out wire.SandboxList
	return &out, c.call(ctx, http.MethodGet, "/sandboxes", q, nil, &out)
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// Delete ends a sandbox and returns its final record and cost. Deleting one
// that has ended is no error.
func (c *Client) Delete(ctx context.Context, id string) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodDelete, sandboxPath(id, ""), nil, nil, &out)
}

// Usage tells what a sandbox has used and cost so far.
func (c *Client) Usage(ctx context.Context, id string) (*wire.Usage, error) {
	var out wire.Usage
	return &out, c.call(ctx, http.MethodGet, sandboxPath(id, "/usage"), nil, nil, &out)
}

// Extend lengthens a sandbox's life or changes its idle timeout.
func (c *Client) Extend(ctx context.Context, id string, req wire.Extend) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/extend"), nil, req, &out)
}

// KeepAlive counts as a use of a sandbox.
func (c *Client) KeepAlive(ctx context.Context, id string) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/keep-alive"), nil, nil, &out)
}

// Pause pauses a persistent sandbox and returns when it is put away.
func (c *Client) Pause(ctx context.Context, id string) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/pause"), nil, nil, &out)
}

// Resume brings a paused sandbox back and returns when it can be used.
// fromDisk drops what is in memory and starts it anew from its disk.
func (c *Client) Resume(ctx context.Context, id string, fromDisk bool) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodPost, sandboxPath(id, "/resume"), nil, wire.Resume{FromDisk: fromDisk}, &out)
}

// SetNetwork changes what a sandbox may reach, also for connections it has.
func (c *Client) SetNetwork(ctx context.Context, id string, p wire.Network) (*wire.Sandbox, error) {
	var out wire.Sandbox
	return &out, c.call(ctx, http.MethodPut, sandboxPath(id, "/network"), nil, p, &out)
}

// Events returns what happened to a sandbox after a sequence number (0: all),
// oldest first. limit 0 is the server's default.
func (c *Client) Events(ctx context.Context, id string, after int64, limit int) (*wire.EventList, error) {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var out wire.EventList
	return &out, c.call(ctx, http.MethodGet, sandboxPath(id, "/events"), q, nil, &out)
}

// Drain readies the server for a stop of its host and returns how many
// sandboxes it has paused. For administrators only.
func (c *Client) Drain(ctx context.Context) (int, error) {
	var out wire.Drained
	err := c.call(ctx, http.MethodPost, "/drain", nil, nil, &out)
	return out.Paused, err
}

// Ping asks a sandbox for a sign of life.
func (c *Client) Ping(ctx context.Context, id string) (*wire.Pong, error) {
	var out wire.Pong
	return &out, c.call(ctx, http.MethodGet, sandboxPath(id, "/ping"), nil, nil, &out)
}

// Tariffs returns what is on offer. It needs no token.
func (c *Client) Tariffs(ctx context.Context) (*wire.Tariffs, error) {
	var out wire.Tariffs
	return &out, c.call(ctx, http.MethodGet, "/sandboxes/tariffs", nil, nil, &out)
}

// WhoAmI tells who the token belongs to.
func (c *Client) WhoAmI(ctx context.Context) (*wire.WhoAmI, error) {
	var out wire.WhoAmI
	return &out, c.call(ctx, http.MethodGet, "/whoami", nil, nil, &out)
}

// ListTokens returns the account's tokens, newest first.
func (c *Client) ListTokens(ctx context.Context) (*wire.TokenList, error) {
	var out wire.TokenList
	return &out, c.call(ctx, http.MethodGet, "/tokens", nil, nil, &out)
}

// CreateToken makes a token; its secret is in the answer, this once.
func (c *Client) CreateToken(ctx context.Context, req wire.CreateToken) (*wire.NewSecret, error) {
	var out wire.NewSecret
	return &out, c.call(ctx, http.MethodPost, "/tokens", nil, req, &out)
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	var out wire.Revoked
	return c.call(ctx, http.MethodDelete, "/tokens/"+url.PathEscape(id), nil, nil, &out)
}
