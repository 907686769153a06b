package sqlite_test

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/sqlite"
	"github.com/eqvps/eqvps/storetest"
)

func open(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		return open(t, filepath.Join(t.TempDir(), "eqvps.db"))
	})
}

func TestHasSealed(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "eqvps.db"))
	a := eqvps.NewAccount("alice", time.Now())
	if err := s.CreateAccount(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	want := func(when string, want bool) {
		t.Helper()
		if got, err := s.HasSealed(t.Context()); got != want || err != nil {
			t.Errorf("%s: %v, %v", when, got, err)
		}
	}
	sb := &eqvps.Sandbox{ID: "sb_1", AccountID: a.ID, CreatedAt: time.Now(), LastActive: time.Now()}
	if err := s.CreateSandbox(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	want("an ephemeral sandbox", false)
	if _, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error { sb.Sealed = []byte{1}; return nil }); err != nil {
		t.Fatal(err)
	}
	want("a persistent sandbox", true)
	if _, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error { sb.Sealed = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	want("one that ended", false)
	if _, err := s.PutSecret(t.Context(), &eqvps.Secret{AccountID: a.ID, Name: "A", Sealed: []byte{1}, CreatedAt: time.Now(), UpdatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	want("a secret", true)
}

func TestReopen(t *testing.T) {
	// The name has what a URL would misread.
	path := filepath.Join(t.TempDir(), "a b?c%20&d#e.db")
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateAccount(t.Context(), eqvps.NewAccount("alice", time.Now())); err != nil {
		t.Fatal(err)
	}
	// A server that is killed does not close: the next one opens all the same.
	again := open(t, path)
	if _, err := again.FindAccountByName(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, want 0600", st.Mode().Perm())
	}
}

func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	open(t, "eqvps.db")
	if _, err := os.Stat("eqvps.db"); err != nil {
		t.Fatal(err)
	}
}

func exec(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(query); err != nil {
		t.Fatal(err)
	}
}

// TestPragmas reads back what durability rests on.
func TestPragmas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eqvps.db")
	s := open(t, path)
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		if got := s.Pragma(t, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	sb := &eqvps.Sandbox{ID: "sb_1", AccountID: "acc_none", CreatedAt: time.Now(), LastActive: time.Now()}
	if err := s.CreateSandbox(t.Context(), sb); err == nil {
		t.Error("a sandbox of an account that does not exist was kept")
	}
}

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    string
	}{
		{"no folder", func(t *testing.T, path string) {
			if err := os.Remove(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		}, "does not exist"},
		{"a folder in its place", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "cannot be written"},
		{"not a database", func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("hello "), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is damaged"},
		{"a page overwritten", func(t *testing.T, path string) {
			s, err := sqlite.Open(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			copy(b[2*4096:], bytes.Repeat([]byte{0xee}, 4096))
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is damaged"},
		{"a newer version", func(t *testing.T, path string) {
			s, err := sqlite.Open(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			exec(t, path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`)
		}, "made by a newer version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "eqvps.db")
			c.prepare(t, path)
			s, err := sqlite.Open(t.Context(), path)
			if err == nil {
				s.Close()
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %q, want one line with the path and %q", err, c.want)
			}
		})
	}
}

// TestIndexes: no query of a request or a start-up may walk the millions of
// records that ended.
func TestIndexes(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "eqvps.db"))
	alive := false
	for _, c := range []struct {
		f    eqvps.SandboxFilter
		want string
	}{
		{eqvps.SandboxFilter{AccountID: "a", Ended: &alive, After: "sb_1", Limit: 10}, "SEARCH sandboxes USING INDEX sandboxes_alive"},
		{eqvps.SandboxFilter{Ended: &alive}, "USING INDEX sandboxes_alive"},
		{eqvps.SandboxFilter{AccountID: "a"}, "USING INDEX sandboxes_by_account"},
		{eqvps.SandboxFilter{AccountID: "a", ID: "sb_1"}, "USING INDEX sqlite_autoindex_sandboxes_1"},
	} {
		if plan := s.Plan(t, c.f); !strings.Contains(plan, c.want) {
			t.Errorf("%+v is planned as %q, want %s", c.f, plan, c.want)
		}
	}
}

// BenchmarkCreate is what a sandbox's start pays: its record, and the change
// to running.
func BenchmarkCreate(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "eqvps.db"))
	a := eqvps.NewAccount("alice", time.Now())
	if err := s.CreateAccount(b.Context(), a); err != nil {
		b.Fatal(err)
	}
	c := eqvps.CreateSandbox{}
	if err := c.Validate(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		sb := eqvps.NewSandbox(c, eqvps.Principal{AccountID: a.ID}, eqvps.DefaultTariffs[1], time.Now())
		if err := s.CreateSandbox(b.Context(), sb); err != nil {
			b.Fatal(err)
		}
		if _, err := s.UpdateSandbox(b.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
			sb.State, sb.StartedAt = eqvps.StateRunning, time.Now()
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "eqvps.db"))
	a := eqvps.NewAccount("alice", time.Now())
	if err := s.CreateAccount(b.Context(), a); err != nil {
		b.Fatal(err)
	}
	tok, _, err := eqvps.NewToken(a.ID, "ci", false, time.Now(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.CreateToken(b.Context(), tok); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.FindTokenByHash(b.Context(), tok.Hash); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDiskFull: a caller learns that there is no room, and that trying again
// may help.
func TestDiskFull(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "eqvps.db"))
	s.Fill(t)
	var err error
	for i := 0; err == nil && i < 10_000; i++ {
		err = s.CreateAccount(t.Context(), eqvps.NewAccount(strings.Repeat("a", 40)+strconv.Itoa(i), time.Now()))
	}
	var e *eqvps.Error
	if !errors.As(err, &e) || e.Code != eqvps.CodeCapacity || e.RetryAfter <= 0 {
		t.Errorf("a full disk gives %v", err)
	}
}
