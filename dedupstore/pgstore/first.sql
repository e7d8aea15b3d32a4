-- Makes the record of a key as it will be when its first run has succeeded, at the beginning of the transaction in which
-- that runs, and returns its fence; or nothing if there is a record, or somebody else makes one. The lock is the
-- transaction's, as is the limit in which a session that stands still is ended, and the mark of the inbox.
INSERT INTO {records} (id, fence, decided, first_at, expires_at, clean_at, attempts, returned, state, kind, owner, settled,
	key, print, trace, holder)
SELECT $1::bytea, date_part('epoch', a.t) * 1000000, date_part('epoch', a.t) * 1000000, a.t, a.t + $4::interval,
	a.t + $5::interval, 1, 0, 'done', 'succeeded', $3::text, ARRAY[$3::text], $2::text, $6::text, $7::text,
	nullif($8::text, '')
FROM (SELECT clock_timestamp() AS t, set_config('oncemill.tx', 'inbox', true),
	set_config('idle_in_transaction_session_timeout', $9::text, true)) AS a
WHERE pg_try_advisory_xact_lock(hashtextextended($2::text, '{records}'::regclass::oid::bigint))
ON CONFLICT (id) DO NOTHING RETURNING id, owner, fence
