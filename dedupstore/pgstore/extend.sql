-- Extends claims, each for itself, and returns the IDs of those that it has extended: what others have locked, or what
-- the owner has lost, it leaves out. It locks the record, and does not write it. Records are read one by one, each by
-- its ID: no plan reads other keys.
INSERT INTO {beats} AS b (id, fence, state, lease_until, expires_at, unstarted)
SELECT r.id, r.fence, r.state, r.t + u.lease * interval '1 microsecond', r.t + u.life * interval '1 microsecond',
	CASE WHEN NOT u.started THEN r.fence END
FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[])
	AS u (id, owner, fence, lease, life, started)
CROSS JOIN LATERAL (
	SELECT x.id, x.fence, x.state, clock_timestamp() AS t FROM {records} x
	WHERE x.id = u.id AND x.owner = u.owner AND x.fence = u.fence AND x.state IN ('running', 'publishing')
		AND (x.expires_at > clock_timestamp() OR (SELECT b.expires_at FROM {beats} b
			WHERE b.id = x.id AND b.fence = x.fence AND b.state = x.state) > clock_timestamp())
	FOR NO KEY UPDATE OF x SKIP LOCKED) AS r
ON CONFLICT (id) DO UPDATE SET
	fence = excluded.fence, state = excluded.state, lease_until = excluded.lease_until,
	expires_at = excluded.expires_at,
	unstarted = CASE WHEN b.fence <> excluded.fence OR b.unstarted IS NOT NULL THEN excluded.unstarted END
RETURNING id
