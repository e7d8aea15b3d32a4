-- Does what first.sql does for up to 64 keys, and returns those whose records it has made. The number of rows to make
-- does not depend on the arguments: a plan that did would be made again each time.
INSERT INTO {records} (id, fence, decided, first_at, expires_at, clean_at, attempts, returned, state, kind, owner, settled,
	key, print, trace, holder)
SELECT ($1::bytea[])[i], date_part('epoch', a.t) * 1000000, date_part('epoch', a.t) * 1000000, a.t, a.t + $4::interval,
	a.t + $5::interval, 1, 0, 'done', 'succeeded', ($3::text[])[i], ARRAY[($3::text[])[i]], ($2::text[])[i],
	($6::text[])[i], ($7::text[])[i], nullif(($8::text[])[i], '')
FROM generate_series(1, 64) AS i, (SELECT clock_timestamp() AS t, set_config('oncemill.tx', 'inbox', true),
	set_config('idle_in_transaction_session_timeout', $9::text, true)) AS a
WHERE i <= cardinality($1::bytea[])
	AND pg_try_advisory_xact_lock(hashtextextended(($2::text[])[i], '{records}'::regclass::oid::bigint))
ON CONFLICT (id) DO NOTHING RETURNING id, owner, fence
