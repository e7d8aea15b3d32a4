-- The tables of an outbox. Every statement may be repeated. CREATE INDEX waits for open transactions that wrote to the
-- table, also where the index is there, and writers wait behind it: Migrate looks first, and sets a lock_timeout.

-- Columns that most rows do not need are NULL there, which costs nothing: rows are as small as they can be.
CREATE TABLE IF NOT EXISTS {table} (
	number       bigint      NOT NULL,  -- made by the client from topic, id and copy, so that a message has one row
	written_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
	due_at       timestamptz,           -- when the row is due; NULL: since it was written
	not_before   timestamptz,           -- of a message that was delayed: when it was due for the first time
	published_at timestamptz,
	dead_at      timestamptz,
	place        bigint,                -- in an ordered outbox, of a message with a key: among those of its key
	failures     integer,               -- attempts that were refused
	unknowns     integer CHECK (unknowns > 0), -- attempts without an answer; a row that has one is a suspect
	replays      integer,               -- how often the row was published once more
	payload      bytea       NOT NULL,
	id           text        NOT NULL,  -- message ID
	topic        text        NOT NULL,
	copy         text,                  -- purpose and generation of a deliberate copy
	key          text,
	header       json,                  -- headers, without the one that repeats the ID
	last_error   text,
	CONSTRAINT {pkey} PRIMARY KEY (number)
);

-- What relays look for. Only the first one costs an insert anything: what was published, died, or got no answer enters
-- the others.
CREATE INDEX IF NOT EXISTS {next} ON {table} (coalesce(due_at, written_at))
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL;
CREATE INDEX IF NOT EXISTS {suspects} ON {table} (coalesce(due_at, written_at))
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL;
CREATE INDEX IF NOT EXISTS {lanes} ON {table} (place)
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL;
CREATE INDEX IF NOT EXISTS {published} ON {table} (published_at) WHERE published_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS {dead} ON {table} (dead_at) WHERE dead_at IS NOT NULL;

-- A batch that a relay publishes: one row for many, so that rows of the outbox are not written when they are leased.
CREATE TABLE IF NOT EXISTS {lease} (
	token   text        PRIMARY KEY,
	ends_at timestamptz NOT NULL, -- when others may take the batch over; it holds until they do
	numbers bigint[]    NOT NULL,
	lanes   text[]                -- keys whose order the batch holds
);

-- One row: what all programs that share the outbox must agree about.
CREATE TABLE IF NOT EXISTS {settings} (
	one     boolean PRIMARY KEY DEFAULT true CHECK (one),
	version integer NOT NULL, -- of the schema
	ordered boolean NOT NULL
);
