-- The tables of a store. Every statement may be repeated. CREATE INDEX waits for open transactions that wrote to the
-- table, also where the index is there, and who writes meanwhile waits behind it: Migrate looks first, and sets a
-- lock_timeout.

-- One row a key. Claims and settles write it, heartbeats do not: a transaction that settles under REPEATABLE READ would
-- be refused otherwise.
CREATE TABLE IF NOT EXISTS {records} (
	id          bytea       NOT NULL, -- 16 bytes of SHA-256 of the key
	fence       bigint      NOT NULL, -- of the last owner: grows, microseconds of the first claim at least
	decided     bigint,               -- the fence under which the outcome was decided
	first_at    timestamptz NOT NULL, -- the first claim
	lease_until timestamptz,          -- unless there is a heartbeat of the same fence and state
	not_before  timestamptz,          -- when a retry is due
	expires_at  timestamptz NOT NULL, -- from then on the record counts as absent; as lease_until
	-- when to look whether it may be deleted: later than it expires, so that it can stay as it is
	clean_at    timestamptz NOT NULL,
	attempts    bigint      NOT NULL,
	returned    bigint      NOT NULL, -- runs that gave their attempt back
	reruns      bigint,               -- runs again on request
	took_ms     bigint,               -- how long the last run took
	exhausted   boolean,
	truncated   boolean,
	state       text        NOT NULL, -- running, retryable, publishing, done
	kind        text,                 -- of the outcome: succeeded, failed, unknown
	owner       text        NOT NULL, -- token of the last owner
	key         text        NOT NULL, -- tenant:group:handler:ID
	print       text        NOT NULL, -- scheme:fingerprint, or empty
	trace       text        NOT NULL, -- of the last run
	holder      text,                 -- host and process of the last owner
	settled     text[],               -- tokens of the last owners that settled
	barred      text,                 -- a transaction whose commit got no answer, and that must not settle any more
	reason      text,
	result      bytea,
	stubs       bytea,                -- IDs, topics and keys of what the outcome produced
	contents    bytea,                -- headers and payloads of it, until it is published
	history     jsonb,                -- the attempts before the last one: fence, took, holder, reason
	crashes     bigint,               -- running, retryable: runs before the last one, in a row, whose leases expired
	CONSTRAINT {pkey} PRIMARY KEY (id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.1);

CREATE INDEX IF NOT EXISTS {clean} ON {records} (clean_at);

-- Heartbeats: the lease of a run or a publish step that has been extended. A row means nothing unless fence and state
-- are the record's.
CREATE TABLE IF NOT EXISTS {beats} (
	id          bytea       NOT NULL,
	fence       bigint      NOT NULL,
	lease_until timestamptz NOT NULL,
	expires_at  timestamptz NOT NULL,
	state       text        NOT NULL,
	unstarted   bigint,               -- the fence of a run that has been extended, but has not started
	CONSTRAINT {beats_pkey} PRIMARY KEY (id)
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS {beats_clean} ON {beats} (lease_until);

-- How many duplicates came for the outcome of a record, in its life since the first claim.
CREATE TABLE IF NOT EXISTS {duplicates} (
	id       bytea       NOT NULL,
	copies   bigint      NOT NULL,
	first_at timestamptz NOT NULL, -- the record's
	last_at  timestamptz NOT NULL, -- when the last of them came
	CONSTRAINT {duplicates_pkey} PRIMARY KEY (id)
) WITH (fillfactor = 70);

-- When scopes were used. Claims do not need it.
CREATE TABLE IF NOT EXISTS {scopes} (
	scope    text COLLATE "C" NOT NULL, -- tenant:group:handler
	first_at timestamptz      NOT NULL, -- by the clocks of those who used it
	last_at  timestamptz      NOT NULL,
	CONSTRAINT {scopes_pkey} PRIMARY KEY (scope)
);

-- What version 3 did not have.
ALTER TABLE {records} ADD COLUMN IF NOT EXISTS took_ms bigint, ADD COLUMN IF NOT EXISTS holder text,
	ADD COLUMN IF NOT EXISTS history jsonb;
ALTER TABLE {beats} ADD COLUMN IF NOT EXISTS unstarted bigint;

-- What version 5 did not have.
ALTER TABLE {records} ADD COLUMN IF NOT EXISTS reruns bigint;

-- What version 6 did not have.
ALTER TABLE {records} ADD COLUMN IF NOT EXISTS crashes bigint;

-- One row: the version of the schema.
CREATE TABLE IF NOT EXISTS {settings} (
	one     boolean PRIMARY KEY DEFAULT true CHECK (one),
	version integer NOT NULL
);
