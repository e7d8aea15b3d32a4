-- The table of an outbox. Every statement may be repeated. All times are microseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS "{table}" (
	number       INTEGER PRIMARY KEY,          -- says nothing about order, and may be used again
	id           TEXT    NOT NULL,             -- message ID
	topic        TEXT    NOT NULL,
	copy         TEXT    NOT NULL DEFAULT '',  -- purpose and generation of a deliberate copy
	key          TEXT    NOT NULL DEFAULT '',
	header       TEXT    NOT NULL DEFAULT '',  -- JSON, without the one that repeats the ID; empty: no other
	replays      INTEGER NOT NULL DEFAULT 0,   -- how often the row was published once more
	payload      BLOB    NOT NULL,
	written_at   INTEGER NOT NULL,
	not_before   INTEGER NOT NULL,             -- when the row is due for the first time
	due_at       INTEGER NOT NULL,             -- when the row is due: after its delay, or when its lease ends
	token        TEXT,                         -- who leases the row
	failures     INTEGER NOT NULL DEFAULT 0,   -- attempts that were refused
	unknowns     INTEGER NOT NULL DEFAULT 0,   -- attempts without an answer
	last_error   TEXT,
	published_at INTEGER,
	dead_at      INTEGER,
	UNIQUE (topic, id, copy)
) STRICT;

-- What relays look for: first whether a row is a suspect, which got no answer before or whose lease ended, then when it
-- is due. Published and dead rows leave it; delayed and leased rows lie behind the point where it is read.
CREATE INDEX IF NOT EXISTS "{table}_next" ON "{table}" ((unknowns > 0 OR token IS NOT NULL), due_at)
	WHERE published_at IS NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS "{table}_leased" ON "{table}" (token) WHERE token IS NOT NULL;
CREATE INDEX IF NOT EXISTS "{table}_published" ON "{table}" (published_at) WHERE published_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS "{table}_dead" ON "{table}" (dead_at) WHERE dead_at IS NOT NULL;
