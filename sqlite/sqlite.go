// Package sqlite keeps accounts, tokens, secrets and sandboxes in one SQLite file.
//
// # What can be lost
//
// The file is in WAL mode with synchronous=FULL: a change is on the disk when
// the method that made it returns. A process that is killed loses nothing that
// was acknowledged, and neither does a power cut, as long as the disk honours
// a flush. That costs one flush a change, which is what a revoked token and a
// charge are worth; the life of a sandbox takes four (created, usable, ending,
// ended). A change whose method had not returned may or may not be there
// afterwards, but never in part.
//
// # Concurrency
//
// One connection writes, so that writers queue here instead of failing with
// "database is locked"; a few others read at the same time, each seeing the
// last committed state. The folder belongs to one server at a time; that a
// second one stays away is for the caller to see to.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/eqvps/eqvps"
)

//go:embed migrations/*.sql
var migrations embed.FS

// readers is how many reads run at once: they are short, and each connection
// holds its own page cache.
const readers = 4

// Store is an open database. It is safe for concurrent use.
type Store struct {
	write *sql.DB // one connection; every transaction takes the write lock at once
	read  *sql.DB
}

var (
	_ eqvps.SandboxStore = (*Store)(nil)
	_ eqvps.TokenStore   = (*Store)(nil)
	_ eqvps.AccountStore = (*Store)(nil)
	_ eqvps.SecretStore  = (*Store)(nil)
	_ eqvps.EventStore   = (*Store)(nil)
	_ eqvps.AliveStore   = (*Store)(nil)
)

// Open opens the database at path, makes it when it is not there, and brings
// its schema up to date. The error is one sentence for people: the file cannot
// be written, is damaged, or was made by a newer version.
func Open(ctx context.Context, path string) (*Store, error) {
	if err := create(path); err != nil {
		return nil, err
	}
	s := &Store{}
	if err := s.open(ctx, path); err != nil {
		s.Close()
		return nil, explain(path, err)
	}
	return s, nil
}

// create makes sure that the file exists, for its owner only, and can be
// written. The files that SQLite puts beside it inherit its permissions.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the folder %s does not exist; make it first", filepath.Dir(path))
	case err != nil:
		return fmt.Errorf("the database %s cannot be written (%w); make the file and its folder writable for this user", path, errors.Unwrap(err))
	}
	return f.Close()
}

func (s *Store) open(ctx context.Context, path string) error {
	var err error
	if s.write, err = sql.Open("sqlite", dsn(path, "_txlock=immediate")); err != nil {
		return err
	}
	s.write.SetMaxOpenConns(1)
	// A file that is damaged must not be found out about by the one customer
	// whose record is hit, so the pages are checked before anything is served.
	var verdict string
	if err := s.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, strings.Join(strings.Fields(verdict), " "))
	}
	if err := migrate(ctx, s.write); err != nil {
		return err
	}
	if s.read, err = sql.Open("sqlite", dsn(path, "_pragma=query_only(1)")); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s.read.PingContext(ctx)
}

func dsn(path, extra string) string {
	// A path may hold "?" and "%"; as the path of a URL it is escaped.
	u := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&" + extra}
	if !filepath.IsAbs(path) {
		u = url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: u.RawQuery}
	}
	return u.String()
}

func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return err
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if have > want {
		return fmt.Errorf("%w: its schema is %d, this program knows %d", errNewer, have, want)
	}
	_, err = p.Up(ctx)
	return err
}

var (
	errDamaged = errors.New("damaged")
	errNewer   = errors.New("newer")
)

// explain turns what can go wrong with a file into a sentence that says what
// to do.
func explain(path string, err error) error {
	var e *sqlite.Error
	code := 0
	if errors.As(err, &e) {
		code = e.Code() & 0xff
	}
	switch {
	case errors.Is(err, errNewer):
		return fmt.Errorf("the database %s was made by a newer version of EQVPS; run that version, or restore a backup from before the upgrade (%w)", path, err)
	case errors.Is(err, errDamaged), code == sqlite3.SQLITE_CORRUPT, code == sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("the database %s is damaged; restore it from a backup, or move it away to start with an empty one (%w)", path, err)
	case code == sqlite3.SQLITE_READONLY, code == sqlite3.SQLITE_CANTOPEN, code == sqlite3.SQLITE_PERM:
		return fmt.Errorf("the database %s cannot be written; make the file and its folder writable for this user (%w)", path, err)
	case code == sqlite3.SQLITE_FULL:
		return fmt.Errorf("the disk that holds the database %s is full; make room and start again (%w)", path, err)
	case code == sqlite3.SQLITE_BUSY:
		return fmt.Errorf("the database %s is in use by another program; end that one first (%w)", path, err)
	}
	return fmt.Errorf("the database %s cannot be opened: %w", path, err)
}

// Close ends all connections. What was acknowledged is already on the disk.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// exec runs one statement that writes. CodeCapacity when the disk is full.
func (s *Store) exec(ctx context.Context, query string, args ...any) (sql.Result, error) {
	res, err := s.write.ExecContext(ctx, query, args...)
	return res, full(err)
}

// full gives the error of a full disk its code: nothing was changed, and the
// same call works once there is room.
func full(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL {
		return &eqvps.Error{Code: eqvps.CodeCapacity, Message: "The server's disk is full.", RetryAfter: 30 * time.Second, Cause: err}
	}
	return err
}

// transact runs f in a transaction that holds the write lock from its start.
// CodeCapacity when the disk is full.
func (s *Store) transact(ctx context.Context, f func(*sql.Tx) error) error {
	return full(s.transaction(ctx, f))
}

func (s *Store) transaction(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // nothing to undo after a commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
