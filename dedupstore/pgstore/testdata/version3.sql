-- The tables of version 3, with a record in each state, and a heartbeat, as its functions wrote them. They expire in
-- 2126.
CREATE TABLE IF NOT EXISTS oncemill_dedup (
	id          bytea       NOT NULL,
	fence       bigint      NOT NULL,
	decided     bigint,
	first_at    timestamptz NOT NULL,
	lease_until timestamptz,
	not_before  timestamptz,
	expires_at  timestamptz NOT NULL,
	clean_at    timestamptz NOT NULL,
	attempts    bigint      NOT NULL,
	returned    bigint      NOT NULL,
	exhausted   boolean,
	truncated   boolean,
	state       text        NOT NULL,
	kind        text,
	owner       text        NOT NULL,
	key         text        NOT NULL,
	print       text        NOT NULL,
	trace       text        NOT NULL,
	settled     text[],
	barred      text,
	reason      text,
	result      bytea,
	stubs       bytea,
	contents    bytea,
	CONSTRAINT oncemill_dedup_pkey PRIMARY KEY (id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.1);

CREATE INDEX IF NOT EXISTS oncemill_dedup_clean ON oncemill_dedup (clean_at);

CREATE TABLE IF NOT EXISTS oncemill_dedup_beats (
	id          bytea       NOT NULL,
	fence       bigint      NOT NULL,
	lease_until timestamptz NOT NULL,
	expires_at  timestamptz NOT NULL,
	state       text        NOT NULL,
	CONSTRAINT oncemill_dedup_beats_pkey PRIMARY KEY (id)
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS oncemill_dedup_beats_clean ON oncemill_dedup_beats (lease_until);

CREATE TABLE IF NOT EXISTS oncemill_dedup_settings (
	one     boolean PRIMARY KEY DEFAULT true CHECK (one),
	version integer NOT NULL
);

INSERT INTO oncemill_dedup_settings (version) VALUES (3);
INSERT INTO oncemill_dedup SELECT (E'("\\\\x93c6b2ab464da916aeef0e26df973422",1795634793557387,,"2026-11-25 19:26:33.557387+00","2126-11-01 18:26:33.557387+00",,"2226-10-08 17:26:33.557387+00","2239-04-06 05:19:03.557387+00",1,0,,,running,,owner-of-version-3-held,acme:billing:charge:held,"","",,,,,,)'::oncemill_dedup).*;
INSERT INTO oncemill_dedup SELECT (E'("\\\\x1606c427a850b9dc6123e241ae208638",1795634793557999,,"2026-11-25 19:26:33.557999+00","2026-11-25 19:26:33.558999+00",,"2126-11-01 18:26:33.558999+00","2133-01-30 00:22:48.559061+00",1,0,,,running,,owner-of-version-3-crashed,acme:billing:charge:crashed,"","",,,,,,)'::oncemill_dedup).*;
INSERT INTO oncemill_dedup SELECT (E'("\\\\x2a26a5e0036db49372d69136b18a281b",1795634793772608,,"2026-11-25 19:26:33.772608+00",,"2026-11-25 19:26:34.007846+00","2126-11-01 18:26:34.007846+00","2239-04-06 05:19:03.772608+00",1,0,,,retryable,,"",acme:billing:charge:released,"","",{owner-of-version-3-released},,"database is down",,,)'::oncemill_dedup).*;
INSERT INTO oncemill_dedup SELECT (E'("\\\\x8d50a9976a351513f34e31d905059092",1795634794012900,1795634794012900,"2026-11-25 19:26:34.0129+00",,,"2126-11-01 18:26:34.013358+00","2239-04-06 05:19:04.0129+00",1,0,,,done,succeeded,owner-of-version-3-done,acme:billing:charge:done,"","",{owner-of-version-3-done},,,"\\\\x70616964",,)'::oncemill_dedup).*;
INSERT INTO oncemill_dedup SELECT (E'("\\\\x0ddceb9d7ffb63ea474dfeed7fda79e3",1795634794014332,1795634794014332,"2026-11-25 19:26:34.014332+00","2026-11-25 19:26:34.018188+00",,"2126-11-01 18:26:34.018188+00","2133-01-30 00:22:49.015394+00",1,0,,,publishing,succeeded,owner-of-version-3-publishing,acme:billing:charge:publishing,"","",{owner-of-version-3-publishing},,,"\\\\x70616964","\\\\x0101077265636569707408726563656970747300","\\\\x010101013100")'::oncemill_dedup).*;
INSERT INTO oncemill_dedup_beats SELECT (E'("\\\\x1606c427a850b9dc6123e241ae208638",1795634793557999,"2026-11-25 19:26:33.559744+00","2126-11-01 18:26:33.559744+00",running)'::oncemill_dedup_beats).*;
