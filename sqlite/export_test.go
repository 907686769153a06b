package sqlite

import (
	"strings"
	"testing"

	"github.com/eqvps/eqvps"
)

// Pragma returns a setting of the connection that writes.
func (s *Store) Pragma(t *testing.T, name string) string {
	t.Helper()
	var v string
	if err := s.write.QueryRowContext(t.Context(), "PRAGMA "+name).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Plan returns how sandboxes would be looked for.
func (s *Store) Plan(t *testing.T, f eqvps.SandboxFilter) string {
	t.Helper()
	query, args := findQuery(f)
	rows, err := s.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "; ")
}

// Fill keeps the database from growing, as a full disk does.
func (s *Store) Fill(t *testing.T) {
	t.Helper()
	var n int
	if err := s.write.QueryRowContext(t.Context(), "PRAGMA max_page_count = 1").Scan(&n); err != nil {
		t.Fatal(err)
	}
}
