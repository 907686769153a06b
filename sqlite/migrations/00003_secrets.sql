-- +goose Up
CREATE TABLE secrets (
    seq        INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (account_id, name)
) STRICT;

-- +goose Down
DROP TABLE secrets;
