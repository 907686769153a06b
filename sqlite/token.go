package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/eqvps/eqvps"
)

const tokenColumns = `id, account_id, name, hash, admin, created_at, expires_at, last_used, revoked_at`

// CreateToken adds a token's record.
func (s *Store) CreateToken(ctx context.Context, t *eqvps.Token) error {
	_, err := s.exec(ctx, `INSERT INTO tokens (`+tokenColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		t.ID, t.AccountID, t.Name, t.Hash[:], t.Admin,
		micros(t.CreatedAt), micros(t.ExpiresAt), micros(t.LastUsed), micros(t.RevokedAt))
	return err
}

func scanToken(row scanner) (*eqvps.Token, error) {
	var t eqvps.Token
	var hash []byte
	var created, expires, used, revoked sql.NullInt64
	if err := row.Scan(&t.ID, &t.AccountID, &t.Name, &hash, &t.Admin, &created, &expires, &used, &revoked); err != nil {
		return nil, err
	}
	copy(t.Hash[:], hash)
	t.CreatedAt, t.ExpiresAt = fromMicros(created), fromMicros(expires)
	t.LastUsed, t.RevokedAt = fromMicros(used), fromMicros(revoked)
	return &t, nil
}

func tokenNotFound() error {
	return eqvps.Errorf(eqvps.CodeTokenNotFound, "%s", eqvps.CodeTokenNotFound.Kind().Message)
}

// FindTokenByHash returns CodeTokenNotFound when there is none. Expired and
// revoked tokens are found too.
func (s *Store) FindTokenByHash(ctx context.Context, hash [32]byte) (*eqvps.Token, error) {
	t, err := scanToken(s.read.QueryRowContext(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE hash = ?`, hash[:]))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, tokenNotFound()
	}
	return t, err
}

// ListTokens returns an account's tokens, newest first.
func (s *Store) ListTokens(ctx context.Context, accountID string) ([]*eqvps.Token, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE account_id = ? ORDER BY seq DESC`, accountID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []*eqvps.Token
	for rows.Next() {
		t, err := scanToken(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, rows.Err()
}

// RevokeToken is idempotent: the first time counts. It returns
// CodeTokenNotFound when the account has no such token.
func (s *Store) RevokeToken(ctx context.Context, accountID, id string, now time.Time) error {
	return s.updateToken(ctx, `UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) WHERE account_id = ? AND id = ?`,
		micros(now), accountID, id)
}

// TouchToken notes when a token was last used. It returns CodeTokenNotFound
// when there is no such token.
func (s *Store) TouchToken(ctx context.Context, id string, now time.Time) error {
	return s.updateToken(ctx, `UPDATE tokens SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?`, micros(now), id)
}

func (s *Store) updateToken(ctx context.Context, query string, args ...any) error {
	res, err := s.exec(ctx, query, args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return tokenNotFound()
	}
	return nil
}
