-- +goose Up
-- What the sandbox may reach, as JSON; {} is what all may.
ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '{}';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN network;
