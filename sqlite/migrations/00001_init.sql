-- +goose Up
-- Times are microseconds since 1970 in UTC, durations are milliseconds, money
-- is micro-dollars: integers everywhere, so that nothing is rounded twice.

CREATE TABLE accounts (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    admin      INTEGER NOT NULL CHECK (admin IN (0, 1)),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    last_used  INTEGER,
    revoked_at INTEGER
) STRICT;

CREATE INDEX tokens_by_account ON tokens (account_id, seq);

-- seq is the order of creation: a page of a list starts after a seq, which no
-- step of the host's clock can disturb.
CREATE TABLE sandboxes (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    account_id      TEXT NOT NULL REFERENCES accounts (id),
    token_id        TEXT NOT NULL,
    mode            TEXT NOT NULL,
    tariff          TEXT NOT NULL,
    image           TEXT NOT NULL,
    state           TEXT NOT NULL,
    reason          TEXT NOT NULL,
    env_keys        TEXT NOT NULL,
    idle_timeout_ms INTEGER NOT NULL,
    ttl_ms          INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    last_active     INTEGER NOT NULL,
    ended_at        INTEGER,
    hourly_microusd INTEGER NOT NULL,
    cpu_time_us     INTEGER NOT NULL,
    egress_bytes    INTEGER NOT NULL
) STRICT;

CREATE INDEX sandboxes_by_account ON sandboxes (account_id, seq);

-- What lives is few among very many that ended; every start-up and every list
-- asks for just these.
CREATE INDEX sandboxes_alive ON sandboxes (account_id, seq) WHERE state <> 'deleted';

-- +goose Down
DROP TABLE sandboxes;
DROP TABLE tokens;
DROP TABLE accounts;
