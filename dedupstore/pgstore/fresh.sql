-- Makes the claim of a key that has no record, and returns its fence; or nothing if there is one, or may be. It looks
-- first, because ON CONFLICT waits for whoever is changing the record that is there. Whoever makes a record has the
-- lock of its key, so that nobody waits for another who does. Where the table is of an older version, or may not be
-- updated by this user, it is refused or does nothing: what it claimed there could not be settled. The time is the
-- clock's: in the simple protocol all claims of a batch are one statement, and one of them may have waited.
INSERT INTO {records} (id, fence, first_at, lease_until, expires_at, clean_at, attempts, returned, state, owner, key,
	print, trace, holder, crashes)
SELECT $1::bytea, date_part('epoch', a.t) * 1000000, a.t, a.t + $4::interval, a.t + $5::interval, a.t + $6::interval,
	1, 0, 'running', $3::text, $2::text, $7::text, $8::text, nullif($9::text, ''), NULL
FROM (SELECT clock_timestamp() AS t) AS a
WHERE CASE WHEN EXISTS (SELECT FROM {records} x WHERE x.id = $1::bytea)
	OR NOT has_table_privilege('{records}'::regclass, 'UPDATE') THEN false
	ELSE pg_try_advisory_xact_lock(hashtextextended($2::text, '{records}'::regclass::oid::bigint)) END
ON CONFLICT (id) DO NOTHING RETURNING id, owner, fence
