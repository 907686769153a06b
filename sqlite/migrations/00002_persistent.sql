-- +goose Up
-- ran is the usable time of closed intervals by UTC month, {"2026-01": µs};
-- running_since opens the one that is not closed. before_… are the figures of
-- a sandbox's earlier machines. sealed is encrypted.
ALTER TABLE sandboxes ADD COLUMN paused_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN ran TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN running_since INTEGER;
ALTER TABLE sandboxes ADD COLUMN before_cpu_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN before_egress INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN sealed BLOB;

-- What ran so far was ephemeral, whose charge does not look at months.
UPDATE sandboxes SET ran = json_object(strftime('%Y-%m', started_at / 1000000, 'unixepoch'), max(0, ended_at - started_at))
    WHERE started_at IS NOT NULL AND ended_at IS NOT NULL;
UPDATE sandboxes SET running_since = started_at WHERE started_at IS NOT NULL AND ended_at IS NULL;

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id),
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    detail     TEXT NOT NULL
) STRICT;

CREATE INDEX events_by_sandbox ON events (sandbox_id, seq);

-- When a server was last there: one row.
CREATE TABLE alive (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at INTEGER NOT NULL
) STRICT;

-- +goose Down
DROP TABLE alive;
DROP TABLE events;
ALTER TABLE sandboxes DROP COLUMN paused_at;
ALTER TABLE sandboxes DROP COLUMN pause_reason;
ALTER TABLE sandboxes DROP COLUMN ran;
ALTER TABLE sandboxes DROP COLUMN running_since;
ALTER TABLE sandboxes DROP COLUMN before_cpu_us;
ALTER TABLE sandboxes DROP COLUMN before_egress;
ALTER TABLE sandboxes DROP COLUMN sealed;
