package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
)

const sandboxColumns = `id, account_id, token_id, mode, tariff, image, state, reason, env_keys,
	idle_timeout_ms, ttl_ms, created_at, started_at, last_active, ended_at, hourly_microusd,
	cpu_time_us, egress_bytes, paused_at, pause_reason, ran, running_since, before_cpu_us, before_egress, sealed, network`

// sandboxValues are the places of sandboxColumns in a statement.
var sandboxValues = "(?" + strings.Repeat(", ?", strings.Count(sandboxColumns, ",")) + ")"

// CreateSandbox adds a record and its events.
func (s *Store) CreateSandbox(ctx context.Context, sb *eqvps.Sandbox) error {
	args, err := sandboxArgs(sb)
	if err != nil {
		return err
	}
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (`+sandboxColumns+`) VALUES `+sandboxValues, args...); err != nil {
			return err
		}
		return addEvents(ctx, tx, sb)
	})
	if err == nil {
		sb.NewEvents = nil
	}
	return err
}

// sandboxArgs returns the values of sandboxColumns.
func sandboxArgs(sb *eqvps.Sandbox) ([]any, error) {
	keys := sb.EnvKeys
	if keys == nil {
		keys = []string{}
	}
	env, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	months := map[string]int64{}
	for month, d := range sb.Ran {
		months[month] = d.Microseconds()
	}
	network, err := json.Marshal(sb.Network)
	if err != nil {
		return nil, err
	}
	ran, err := json.Marshal(months) // in order of month
	if err != nil {
		return nil, err
	}
	return []any{
		sb.ID, sb.AccountID, sb.TokenID, string(sb.Mode), sb.Tariff, sb.Image, string(sb.State), string(sb.Reason),
		string(env), sb.IdleTimeout.Milliseconds(), sb.TTL.Milliseconds(),
		micros(sb.CreatedAt), micros(sb.StartedAt), micros(sb.LastActive), micros(sb.EndedAt), int64(sb.Hourly),
		sb.CPUTime.Microseconds(), int64(sb.EgressBytes),
		micros(sb.PausedAt), string(sb.PauseReason), string(ran), micros(sb.RunningSince),
		sb.Before.CPUTime.Microseconds(), int64(sb.Before.EgressBytes), sb.Sealed, string(network),
	}, nil
}

func scanSandbox(row scanner) (*eqvps.Sandbox, error) {
	var sb eqvps.Sandbox
	var env, ran, network string
	var idle, ttl, cpu, egress, cpuBefore, egressBefore int64
	var created, started, active, ended, paused, since sql.NullInt64
	if err := row.Scan(&sb.ID, &sb.AccountID, &sb.TokenID, &sb.Mode, &sb.Tariff, &sb.Image, &sb.State, &sb.Reason, &env,
		&idle, &ttl, &created, &started, &active, &ended, &sb.Hourly, &cpu, &egress,
		&paused, &sb.PauseReason, &ran, &since, &cpuBefore, &egressBefore, &sb.Sealed, &network); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(env), &sb.EnvKeys); err != nil {
		return nil, err
	}
	sb.IdleTimeout, sb.TTL = time.Duration(idle)*time.Millisecond, time.Duration(ttl)*time.Millisecond
	sb.CPUTime, sb.EgressBytes = time.Duration(cpu)*time.Microsecond, uint64(egress)
	sb.CreatedAt, sb.StartedAt = fromMicros(created), fromMicros(started)
	sb.LastActive, sb.EndedAt = fromMicros(active), fromMicros(ended)
	sb.PausedAt, sb.RunningSince = fromMicros(paused), fromMicros(since)
	sb.Before = eqvps.MachineUsage{CPUTime: time.Duration(cpuBefore) * time.Microsecond, EgressBytes: uint64(egressBefore)}
	if err := json.Unmarshal([]byte(network), &sb.Network); err != nil {
		return nil, err
	}
	var months map[string]int64
	if err := json.Unmarshal([]byte(ran), &months); err != nil {
		return nil, err
	}
	for month, us := range months {
		if sb.Ran == nil {
			sb.Ran = eqvps.RunTime{}
		}
		sb.Ran[month] = time.Duration(us) * time.Microsecond
	}
	return &sb, nil
}

func findSandbox(ctx context.Context, tx *sql.Tx, id string) (*eqvps.Sandbox, error) {
	sb, err := scanSandbox(tx.QueryRowContext(ctx, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, eqvps.Errorf(eqvps.CodeSandboxNotFound, "%s", eqvps.CodeSandboxNotFound.Kind().Message)
	}
	return sb, err
}

// UpdateSandbox reads the record, applies change and writes it back in one
// transaction that holds the write lock from before the read. An error of
// change, and a panic, leave the record as it was; a change that alters
// nothing writes nothing. The id and the owner never change.
// CodeSandboxNotFound when there is no such record.
func (s *Store) UpdateSandbox(ctx context.Context, id string, change func(*eqvps.Sandbox) error) (*eqvps.Sandbox, error) {
	var sb *eqvps.Sandbox
	err := s.transact(ctx, func(tx *sql.Tx) error {
		var err error
		if sb, err = findSandbox(ctx, tx, id); err != nil {
			return err
		}
		before, err := sandboxArgs(sb)
		if err != nil {
			return err
		}
		owner := sb.AccountID
		if err := change(sb); err != nil {
			return err
		}
		sb.ID, sb.AccountID = id, owner
		after, err := sandboxArgs(sb)
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(before, after) {
			_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET (`+sandboxColumns+`) = `+sandboxValues+` WHERE id = ?`, append(after, id)...)
			if err != nil {
				return err
			}
		}
		return addEvents(ctx, tx, sb)
	})
	if err != nil {
		return nil, err
	}
	sb.NewEvents = nil
	return sb, nil
}

// FindSandboxes returns the records that match, newest first. An After that
// names no record matches nothing.
func (s *Store) FindSandboxes(ctx context.Context, f eqvps.SandboxFilter) ([]*eqvps.Sandbox, error) {
	query, args := findQuery(f)
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []*eqvps.Sandbox
	for rows.Next() {
		sb, err := scanSandbox(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, sb)
	}
	return list, rows.Err()
}

func findQuery(f eqvps.SandboxFilter) (string, []any) {
	table, where, args := "sandboxes", []string{"1"}, []any{}
	and := func(cond string, arg ...any) {
		where, args = append(where, cond), append(args, arg...)
	}
	if f.AccountID != "" {
		and("account_id = ?", f.AccountID)
	}
	if f.ID != "" {
		and("id = ?", f.ID)
	}
	switch {
	case f.Ended == nil:
	case *f.Ended:
		and("state = 'deleted'")
	default:
		// Left to itself the planner walks every record there ever was.
		table = "sandboxes INDEXED BY sandboxes_alive"
		and("state <> 'deleted'")
	}
	if f.After != "" {
		and("seq < (SELECT seq FROM sandboxes WHERE id = ?)", f.After)
	}
	query := `SELECT ` + sandboxColumns + ` FROM ` + table + ` WHERE ` + strings.Join(where, " AND ") + ` ORDER BY seq DESC`
	if f.Limit > 0 {
		query, args = query+` LIMIT ?`, append(args, f.Limit)
	}
	return query, args
}
