package sqlite

import (
	"database/sql"
	"time"
)

// micros stores a time; the zero time is NULL.
func micros(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}

func fromMicros(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// scanner is a row or the rows of a query.
type scanner interface{ Scan(dest ...any) error }
