package eqvps

import (
	"context"
	"time"
)

// Account owns sandboxes and tokens.
type Account struct {
	ID        string
	Name      string
	CreatedAt time.Time
}

// NewAccount makes an account.
func NewAccount(name string, now time.Time) *Account {
	return &Account{ID: newID(accountPrefix), Name: name, CreatedAt: now}
}

// AccountStore keeps accounts.
type AccountStore interface {
	CreateAccount(ctx context.Context, a *Account) error
	// FindAccountByName returns CodeNotFound when there is none.
	FindAccountByName(ctx context.Context, name string) (*Account, error)
}

// Principal is who calls.
type Principal struct {
	AccountID string
	TokenID   string
	TokenName string
	Admin     bool
	ExpiresAt time.Time // of the token
}

type principalKey struct{}

// WithPrincipal returns a context that carries who calls.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns who calls; CodeUnauthenticated when nobody is known.
func PrincipalFrom(ctx context.Context) (Principal, error) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	if !ok {
		return Principal{}, Errorf(CodeUnauthenticated, "%s", CodeUnauthenticated.Kind().Message)
	}
	return p, nil
}
