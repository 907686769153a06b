package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eqvps/eqvps/wire"
)

type tokenCreateCmd struct {
	Name    string        `arg:"" help:"What the token is for, for people."`
	Expires time.Duration `placeholder:"DURATION" help:"How long it lives, such as 720h (default: a year)."`
	JSON    bool          `name:"json" help:"Print the whole record as JSON instead of the secret."`
}

func (c *tokenCreateCmd) Run(ctx context.Context, a *app) error {
	req := wire.CreateToken{Name: c.Name}
	if c.Expires != 0 {
		if c.Expires < time.Second {
			return usageErrorf("--expires must be at least one second, such as 720h")
		}
		req.ExpiresIn = new(int64(c.Expires / time.Second))
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	t, err := cl.CreateToken(ctx, req)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(t)
	}
	fmt.Fprintln(a.stdout, inert(t.Secret))
	a.note("this is the only time that the secret of %s is shown; it is valid until %s", inert(t.ID), t.ExpiresAt.Local().Format(time.DateTime))
	return nil
}

type tokenListCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *tokenListCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	list, err := cl.ListTokens(ctx)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(list.Data)
	}
	now := a.now()
	rows := make([][]string, 0, len(list.Data))
	for _, t := range list.Data {
		rows = append(rows, []string{
			t.ID, t.Name, tokenState(t, now), when(t.CreatedAt, now), when(timeOrZero(t.LastUsedAt), now), when(t.ExpiresAt, now),
		})
	}
	return a.table([]string{"ID", "NAME", "STATE", "CREATED", "LAST USED", "EXPIRES"}, rows)
}

func tokenState(t wire.Token, now time.Time) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked"
	case !now.Before(t.ExpiresAt):
		return "expired"
	}
	return "valid"
}

type tokenRevokeCmd struct {
	IDs []string `arg:"" name:"id" help:"Ids of the tokens."`
}

func (c *tokenRevokeCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range c.IDs {
		if err := cl.RevokeToken(ctx, id); err != nil {
			errs = append(errs, orSignal(ctx, err))
			continue
		}
		fmt.Fprintf(a.stdout, "%s is revoked\n", inert(id))
	}
	return errors.Join(errs...)
}
