-- Makes the claims of keys that have no record, in the order of the keys, so that two batches never wait for each other in a
-- circle. The others are left to {claim}. It looks first, because ON CONFLICT waits for whoever is changing the record that is
-- there; by a subquery, so that each is looked up by itself, and in a list whose length the plan does not know.
INSERT INTO {records} (id, fence, first_at, lease_until, expires_at, clean_at, attempts, returned, state, owner, key, print, trace)
SELECT u.id, extract(epoch FROM now.t) * 1000000, now.t, now.t + u.lease * now.us,
	now.t + (u.lease + u.retention) * now.us, now.t + (u.lease + u.retention) * now.us * 1.0625,
	1, 0, 'running', u.owner, u.key, u.print, u.trace
FROM unnest((SELECT $1::bytea[]), $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[]) WITH ORDINALITY
	AS u (id, key, owner, lease, retention, print, trace, n),
	(SELECT statement_timestamp() AS t, interval '1 microsecond' AS us) AS now
WHERE (SELECT x.fence FROM {records} x WHERE x.id = u.id) IS NULL
ORDER BY u.id, u.n
ON CONFLICT (id) DO NOTHING RETURNING id, owner, fence
