package control

import (
	"context"
	"time"

	"github.com/eqvps/eqvps"
)

// touchEvery is how exact a token's last use is stored: a busy token must not
// cost a write per request.
const touchEvery = time.Minute

// Authenticate turns a secret into who is calling.
func (s *Service) Authenticate(ctx context.Context, secret string) (eqvps.Principal, error) {
	t, err := s.store.FindTokenByHash(ctx, eqvps.HashToken(secret))
	now := s.now()
	switch {
	case eqvps.ErrorCode(err) == eqvps.CodeTokenNotFound:
		return eqvps.Principal{}, eqvps.Errorf(eqvps.CodeUnauthenticated, "The token is unknown.")
	case err != nil:
		return eqvps.Principal{}, err
	case !t.RevokedAt.IsZero():
		return eqvps.Principal{}, eqvps.Errorf(eqvps.CodeUnauthenticated, "The token was revoked.")
	case !t.Valid(now):
		return eqvps.Principal{}, eqvps.Errorf(eqvps.CodeUnauthenticated, "The token has expired.")
	}
	if s.shouldTouch(t.ID, now) {
		if err := s.store.TouchToken(ctx, t.ID, now); err != nil {
			s.log.Error("cannot store a token's last use", "token", t.ID, "err", err)
		}
	}
	return eqvps.Principal{
		AccountID: t.AccountID, TokenID: t.ID, TokenName: t.Name, Admin: t.Admin, ExpiresAt: t.ExpiresAt,
	}, nil
}

func (s *Service) shouldTouch(id string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.touched[id]) < touchEvery {
		return false
	}
	s.touched[id] = now
	return true
}

// CreateToken makes a token for the caller's account. It has the caller's own
// powers and lives at most as long as was asked for.
func (s *Service) CreateToken(ctx context.Context, name string, life time.Duration) (*eqvps.Token, string, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, "", err
	}
	if life == 0 {
		life = eqvps.DefaultTokenLife
	}
	t, secret, err := eqvps.NewToken(p.AccountID, name, p.Admin, s.now(), life)
	if err != nil {
		return nil, "", err
	}
	if err := s.store.CreateToken(ctx, t); err != nil {
		return nil, "", err
	}
	return t, secret, nil
}

// ListTokens returns the tokens of the caller's account, newest first.
func (s *Service) ListTokens(ctx context.Context) ([]*eqvps.Token, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	return s.store.ListTokens(ctx, p.AccountID)
}

// RevokeToken ends a token of the caller's account at once.
func (s *Service) RevokeToken(ctx context.Context, id string) error {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return err
	}
	if !eqvps.ValidTokenID(id) {
		return eqvps.Errorf(eqvps.CodeTokenNotFound, "There is no token %.40q.", id)
	}
	return s.store.RevokeToken(ctx, p.AccountID, id, s.now())
}

// adminName is the name of the administrator's account and first token.
const adminName = "admin"

// AdminToken returns a secret of the administrator: the one given if it still
// is valid, else a new one. fresh tells that it is new and must be written down.
func (s *Service) AdminToken(ctx context.Context, have string) (secret string, fresh bool, err error) {
	if have != "" {
		if p, err := s.Authenticate(ctx, have); err == nil && p.Admin {
			return have, false, nil
		}
	}
	acc, err := s.store.FindAccountByName(ctx, adminName)
	if eqvps.ErrorCode(err) == eqvps.CodeNotFound {
		acc = eqvps.NewAccount(adminName, s.now())
		err = s.store.CreateAccount(ctx, acc)
	}
	if err != nil {
		return "", false, err
	}
	t, secret, err := eqvps.NewToken(acc.ID, adminName, true, s.now(), eqvps.DefaultTokenLife)
	if err != nil {
		return "", false, err
	}
	return secret, true, s.store.CreateToken(ctx, t)
}
