package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/eqvps/eqvps"
)

const secretColumns = `account_id, name, sealed, created_at, updated_at`

func scanSecret(row scanner) (*eqvps.Secret, error) {
	var sec eqvps.Secret
	var created, updated sql.NullInt64
	if err := row.Scan(&sec.AccountID, &sec.Name, &sec.Sealed, &created, &updated); err != nil {
		return nil, err
	}
	sec.CreatedAt, sec.UpdatedAt = fromMicros(created), fromMicros(updated)
	return &sec, nil
}

// PutSecret adds a secret or replaces the value of the one of this name, and
// returns its record. CodeInvalidValue when it would be one more than
// MaxSecrets.
func (s *Store) PutSecret(ctx context.Context, sec *eqvps.Secret) (kept *eqvps.Secret, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		kept, err = scanSecret(tx.QueryRowContext(ctx, `INSERT INTO secrets (`+secretColumns+`) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (account_id, name) DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at
			RETURNING `+secretColumns,
			sec.AccountID, sec.Name, sec.Sealed, micros(sec.CreatedAt), micros(sec.UpdatedAt)))
		if err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM secrets WHERE account_id = ?`, sec.AccountID).Scan(&n); err != nil {
			return err
		}
		if n > eqvps.MaxSecrets {
			return eqvps.Errorf(eqvps.CodeInvalidValue, "The account has %d secrets, which is the most; delete one first.", eqvps.MaxSecrets)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return kept, nil
}

// FindSecrets returns the secrets of an account by name.
func (s *Store) FindSecrets(ctx context.Context, accountID string) ([]*eqvps.Secret, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+secretColumns+` FROM secrets WHERE account_id = ? ORDER BY name`, accountID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []*eqvps.Secret
	for rows.Next() {
		sec, err := scanSecret(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, sec)
	}
	return list, rows.Err()
}

// DeleteSecret returns CodeSecretNotFound when there is none of this name.
func (s *Store) DeleteSecret(ctx context.Context, accountID, name string) error {
	res, err := s.exec(ctx, `DELETE FROM secrets WHERE account_id = ? AND name = ?`, accountID, name)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return eqvps.Errorf(eqvps.CodeSecretNotFound, "There is no secret %.80q in this account.", name)
	}
	return nil
}

// HasSealed reports whether anything is sealed in the store.
func (s *Store) HasSealed(ctx context.Context) (bool, error) {
	for _, t := range sealed {
		rows, err := s.read.QueryContext(ctx, t.find, 0, 1)
		if err != nil {
			return false, err
		}
		found := rows.Next()
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// resealPage is how many values one transaction of Reseal changes: others that
// write wait that long.
const resealPage = 100

// sealed are the columns that hold what is sealed: how the next rows after a
// seq are found, with the two texts that the context is made of, and how one is
// replaced.
var sealed = []struct {
	find, replace string
	context       func(a, b string) []byte
}{
	{
		`SELECT seq, sealed, account_id, name FROM secrets WHERE seq > ? ORDER BY seq LIMIT ?`,
		`UPDATE secrets SET sealed = ? WHERE seq = ?`,
		eqvps.SecretContext,
	},
	{
		`SELECT seq, sealed, id, '' FROM sandboxes WHERE sealed IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?`,
		`UPDATE sandboxes SET sealed = ? WHERE seq = ?`,
		func(id, _ string) []byte { return eqvps.SandboxContext(id) },
	},
}

// Reseal passes everything sealed that the store holds to reseal and keeps what
// that returns. It returns how many values that were. An error leaves the rest
// as it was.
func (s *Store) Reseal(ctx context.Context, reseal func(sealed, context []byte) ([]byte, error)) (int, error) {
	total := 0
	for i := range sealed {
		for after := int64(0); ; {
			n, last, err := s.resealPage(ctx, i, after, reseal)
			if err != nil {
				return total, err
			}
			if total += n; n < resealPage {
				break
			}
			after = last
		}
	}
	return total, nil
}

// resealPage changes the rows of one table after a seq.
func (s *Store) resealPage(ctx context.Context, table int, after int64, reseal func(sealed, context []byte) ([]byte, error)) (n int, last int64, err error) {
	type row struct {
		seq    int64
		sealed []byte
		a, b   string
	}
	t := sealed[table]
	err = s.transact(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, t.find, after, resealPage)
		if err != nil {
			return err
		}
		defer rows.Close()
		var page []row
		for rows.Next() {
			var r row
			if err := rows.Scan(&r.seq, &r.sealed, &r.a, &r.b); err != nil {
				return err
			}
			page = append(page, r)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		for _, r := range page {
			fresh, err := reseal(r.sealed, t.context(r.a, r.b))
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, t.replace, fresh, r.seq); err != nil {
				return err
			}
			last = r.seq
		}
		n = len(page)
		return nil
	})
	return n, last, err
}
