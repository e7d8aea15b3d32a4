-- The table of dedup records, one a key. Every statement may be repeated. All times are microseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS "{table}" (
	number      INTEGER PRIMARY KEY,  -- says nothing about order, and may be used again
	key         TEXT    NOT NULL UNIQUE,
	state       TEXT    NOT NULL,     -- running, retryable, publishing or done
	owner       TEXT    NOT NULL,     -- '' when there is none
	fence       INTEGER NOT NULL,
	attempts    INTEGER NOT NULL,
	returned    INTEGER NOT NULL,     -- runs that gave their attempt back
	started     INTEGER NOT NULL,     -- 1: the handler has been called, or is about to be
	lease_until INTEGER NOT NULL,
	due_at      INTEGER NOT NULL,
	first_at    INTEGER NOT NULL,     -- when the first claim came
	expires_at  INTEGER NOT NULL,     -- from then on the record counts for nothing
	scheme      TEXT    NOT NULL,     -- of the fingerprint
	sum         TEXT    NOT NULL,
	settled     TEXT    NOT NULL,     -- the last owners that settled it, with commas
	trace       TEXT    NOT NULL,
	decided     INTEGER NOT NULL,     -- the fence under which the outcome was decided
	kind        TEXT    NOT NULL,
	exhausted   INTEGER NOT NULL,
	truncated   INTEGER NOT NULL,
	reason      BLOB    NOT NULL,     -- text
	result      BLOB    NOT NULL,
	stubs       BLOB,                 -- IDs, topics and keys of what the outcome produced
	contents    BLOB,                 -- headers and payloads of it, until it is published
	holder      TEXT,                 -- host and process of the last owner
	took_ms     INTEGER,              -- the last run, from its fence, which is its time; NULL: not known
	history     TEXT,                 -- JSON: the attempts before the last one
	reruns      INTEGER,              -- how often it was run again on request; NULL: never
	crashes     INTEGER               -- runs before the last one, in a row, whose leases expired; NULL: none
) STRICT;

CREATE INDEX IF NOT EXISTS "{table}_expires" ON "{table}" (expires_at);

-- When scopes were used. Claims do not need it.
CREATE TABLE IF NOT EXISTS "{table}_scopes" (
	scope    TEXT    PRIMARY KEY, -- tenant:group:handler
	first_at INTEGER NOT NULL,    -- by the clocks of those who used it
	last_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Duplicates that came for outcomes. A row counts if the record of its number has its first_at.
CREATE TABLE IF NOT EXISTS "{table}_duplicates" (
	number   INTEGER PRIMARY KEY,
	first_at INTEGER NOT NULL,
	count    INTEGER NOT NULL,
	last_at  INTEGER NOT NULL -- by the clock of the process that noted it
) STRICT;
