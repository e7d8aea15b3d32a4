-- Does what fresh.sql does for up to 16 keys, one after the other, with the same lease and retention, for half of what
-- as many statements cost. The time is the clock's, for each: one of them may have waited. The look is a subquery for
-- each key, which is not joined: no plan reads other keys. The number of rows to make does not depend on the arguments:
-- a plan that did would be made again each time.
INSERT INTO {records} (id, fence, first_at, lease_until, expires_at, clean_at, attempts, returned, state, owner, key,
	print, trace, holder, crashes)
SELECT ($1::bytea[])[i], date_part('epoch', clock_timestamp()) * 1000000, clock_timestamp(),
	clock_timestamp() + $4::interval, clock_timestamp() + $5::interval, clock_timestamp() + $6::interval,
	1, 0, 'running', ($3::text[])[i], ($2::text[])[i],
	($7::text[])[i], ($8::text[])[i], nullif(($9::text[])[i], ''), NULL
FROM generate_series(1, 16) AS i
WHERE CASE WHEN i > cardinality($1::bytea[])
	OR (SELECT x.fence FROM {records} x WHERE x.id = ($1::bytea[])[i]) IS NOT NULL
	OR NOT has_table_privilege('{records}'::regclass, 'UPDATE') THEN false
	ELSE pg_try_advisory_xact_lock(hashtextextended(($2::text[])[i], '{records}'::regclass::oid::bigint)) END
ON CONFLICT (id) DO NOTHING RETURNING id, owner, fence
