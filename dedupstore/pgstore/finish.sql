-- Does what {settle_in} does, which it asks only if that takes more than one look: a heartbeat has prolonged the record, or
-- there is something wrong.
WITH finished AS (
	UPDATE {records} x SET
		state = $5, decided = x.fence, lease_until = CASE $5 WHEN 'publishing' THEN a.t + a.lease END,
		settled = array_append(CASE WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END, x.owner),
		kind = $8, exhausted = nullif($9, false), truncated = nullif($10, false), reason = nullif($11, ''),
		result = $12, stubs = $13, contents = $14, expires_at = a.t + a.life,
		clean_at = CASE WHEN x.clean_at BETWEEN a.t + a.life AND a.t + a.life * 3 THEN x.clean_at ELSE a.t + a.life * 1.0625 END
	FROM (SELECT statement_timestamp() AS t, $6::bigint * interval '1 microsecond' AS lease,
		($6::bigint + $7::bigint) * interval '1 microsecond' AS life) AS a
	WHERE x.id = $2 AND x.owner = $3 AND x.fence = $4 AND x.state = 'running' AND x.barred IS NULL AND x.expires_at > a.t
		AND current_setting('oncemill.tx', true) = 'inbox'
	RETURNING true)
SELECT CASE WHEN EXISTS (SELECT FROM finished) THEN NULL ELSE
	{settle_in}($1::text, $2::bytea, $3::text, $4::bigint, $5::text, $6::bigint, $7::bigint, $8::text,
		$9::boolean, $10::boolean, $11::text, $12::bytea, $13::bytea, $14::bytea) END
