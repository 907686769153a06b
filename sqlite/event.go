package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/eqvps/eqvps"
)

// addEvents stores the new events of a record, and drops the oldest of a
// sandbox that has more than MaxEvents.
func addEvents(ctx context.Context, tx *sql.Tx, sb *eqvps.Sandbox) error {
	for _, e := range sb.NewEvents {
		_, err := tx.ExecContext(ctx, `INSERT INTO events (sandbox_id, at, kind, reason, detail) VALUES (?, ?, ?, ?, ?)`,
			sb.ID, micros(e.At), string(e.Kind), string(e.Reason), e.Detail)
		if err != nil {
			return err
		}
	}
	if len(sb.NewEvents) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM events WHERE sandbox_id = ?1 AND seq <=
		(SELECT seq FROM events WHERE sandbox_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, sb.ID, eqvps.MaxEvents)
	return err
}

// FindEvents returns at most limit events of a sandbox after a sequence
// number, oldest first.
func (s *Store) FindEvents(ctx context.Context, sandboxID string, after int64, limit int) ([]eqvps.Event, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT seq, sandbox_id, at, kind, reason, detail FROM events
		WHERE sandbox_id = ? AND seq > ? ORDER BY seq LIMIT ?`, sandboxID, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []eqvps.Event
	for rows.Next() {
		var e eqvps.Event
		var at sql.NullInt64
		if err := rows.Scan(&e.Seq, &e.SandboxID, &at, &e.Kind, &e.Reason, &e.Detail); err != nil {
			return nil, err
		}
		e.At = fromMicros(at)
		list = append(list, e)
	}
	return list, rows.Err()
}

// ForgetEvents removes the events of sandboxes that ended before a time.
func (s *Store) ForgetEvents(ctx context.Context, before time.Time) error {
	_, err := s.exec(ctx, `DELETE FROM events WHERE sandbox_id IN
		(SELECT id FROM sandboxes WHERE state = 'deleted' AND ended_at < ?)`, micros(before))
	return err
}

// NoteAlive remembers that the server is there.
func (s *Store) NoteAlive(ctx context.Context, at time.Time) error {
	_, err := s.exec(ctx, `INSERT INTO alive (id, at) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at`, micros(at))
	return err
}

// LastAlive returns when a server was last there, the zero time for never.
func (s *Store) LastAlive(ctx context.Context) (time.Time, error) {
	var at sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT at FROM alive`).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return fromMicros(at), err
}
