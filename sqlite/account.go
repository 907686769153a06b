package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/eqvps/eqvps"
)

// CreateAccount adds an account. Names are unique.
func (s *Store) CreateAccount(ctx context.Context, a *eqvps.Account) error {
	_, err := s.exec(ctx, `INSERT INTO accounts (id, name, created_at) VALUES (?, ?, ?)`,
		a.ID, a.Name, micros(a.CreatedAt))
	return err
}

// FindAccountByName returns CodeNotFound when there is none.
func (s *Store) FindAccountByName(ctx context.Context, name string) (*eqvps.Account, error) {
	var a eqvps.Account
	var created sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT id, name, created_at FROM accounts WHERE name = ?`, name).
		Scan(&a.ID, &a.Name, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, eqvps.Errorf(eqvps.CodeNotFound, "There is no account %.100q.", name)
	}
	if err != nil {
		return nil, err
	}
	a.CreatedAt = fromMicros(created)
	return &a, nil
}
