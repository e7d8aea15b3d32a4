-- Ends runs that have succeeded and produced nothing, as nearly all do, each for itself, and returns the IDs of those
-- that it has ended: what others have locked, and what takes a second look, it leaves out. Records are locked one by
-- one, each by its ID, and then written by all IDs: no plan reads other keys.
UPDATE {records} x SET
	state = 'done', kind = 'succeeded', decided = x.fence, lease_until = NULL, result = q.result, took_ms = q.took,
	settled = array_append(CASE WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END,
		x.owner),
	expires_at = expires, clean_at = {clean_at}
FROM (
	SELECT r.id, r.t, r.t + u.kept * interval '1 microsecond' AS expires, u.result, u.took
	FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[])
		AS u (id, owner, fence, kept, result, took)
	CROSS JOIN LATERAL (
		SELECT x.id, clock_timestamp() AS t FROM {records} x
		WHERE x.id = u.id AND x.owner = u.owner AND x.fence = u.fence AND x.state = 'running'
			AND x.expires_at > clock_timestamp()
		FOR NO KEY UPDATE SKIP LOCKED) AS r) AS q
WHERE x.id = ANY ($1::bytea[]) AND x.id = q.id
RETURNING x.id
