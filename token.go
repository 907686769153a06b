package eqvps

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"
	"unicode"
)

// Token is a bearer token's record. The secret itself is shown once, when the
// token is made; only its SHA-256 is kept.
type Token struct {
	ID        string
	AccountID string
	Name      string
	Hash      [32]byte
	Admin     bool // may act for every account and manage tokens
	CreatedAt time.Time
	ExpiresAt time.Time
	LastUsed  time.Time // zero: never; coarse, to the minute
	RevokedAt time.Time // zero: not revoked
}

// DefaultTokenLife is how long a token lives when no other time is named.
const DefaultTokenLife = 365 * 24 * time.Hour

// secretPrefix marks our secrets, so that scanners find leaked ones.
const secretPrefix = "eqvps_"

// NewToken makes a token and its secret.
func NewToken(accountID, name string, admin bool, now time.Time, life time.Duration) (*Token, string, error) {
	name = strings.TrimSpace(name)
	if name == "" || len(name) > 100 || strings.ContainsFunc(name, unicode.IsControl) {
		return nil, "", Errorf(CodeInvalidValue, "A token needs a name of 1 to 100 bytes without control characters.")
	}
	if life <= 0 || life > 10*DefaultTokenLife {
		return nil, "", Errorf(CodeInvalidValue, "A token lives 1 second to 10 years.")
	}
	raw := make([]byte, 32)
	rand.Read(raw) // never fails (crypto/rand, Go 1.24)
	secret := secretPrefix + base64.RawURLEncoding.EncodeToString(raw)
	return &Token{
		ID: newID(tokenPrefix), AccountID: accountID, Name: name, Hash: HashToken(secret), Admin: admin,
		CreatedAt: now, ExpiresAt: now.Add(life),
	}, secret, nil
}

// HashToken is the form in which a secret is stored. Secrets carry 256 random
// bits, so a plain hash is enough, and looking it up by equality leaks nothing
// that helps to guess one.
func HashToken(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// Valid reports whether the token may be used at a time.
func (t *Token) Valid(now time.Time) bool {
	return t.RevokedAt.IsZero() && now.Before(t.ExpiresAt)
}

// ValidTokenID reports whether id has the form of a token's id.
func ValidTokenID(id string) bool { return validID(id, tokenPrefix) }

// TokenStore keeps tokens.
type TokenStore interface {
	CreateToken(ctx context.Context, t *Token) error
	// FindTokenByHash returns CodeTokenNotFound when there is none.
	FindTokenByHash(ctx context.Context, hash [32]byte) (*Token, error)
	// ListTokens returns an account's tokens, newest first.
	ListTokens(ctx context.Context, accountID string) ([]*Token, error)
	// RevokeToken is idempotent: the first time counts. CodeTokenNotFound when
	// the account has no such token.
	RevokeToken(ctx context.Context, accountID, id string, now time.Time) error
	TouchToken(ctx context.Context, id string, now time.Time) error
}

// TokenService manages and checks tokens.
type TokenService interface {
	// Authenticate turns a secret into who is calling, or CodeUnauthenticated.
	Authenticate(ctx context.Context, secret string) (Principal, error)
	// CreateToken makes a token for the caller's account and returns its secret.
	CreateToken(ctx context.Context, name string, life time.Duration) (*Token, string, error)
	ListTokens(ctx context.Context) ([]*Token, error)
	RevokeToken(ctx context.Context, id string) error
}
