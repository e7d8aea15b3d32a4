-- Finishes a run that succeeded and produced nothing, within the transaction that has the effects, if that takes no more than
-- one look: it is the key's first run, of which nothing but the claim is known, in a window that the claim has foreseen.
-- {settle_in} does what remains, or says what is wrong.
WITH finished AS (
	UPDATE {records} x SET
		state = 'done', kind = 'succeeded', decided = x.fence, settled = ARRAY[x.owner], lease_until = NULL, expires_at = a.t + a.life,
		result = $6::bytea
	FROM (SELECT statement_timestamp() AS t, $5::bigint * interval '1 microsecond' AS life) AS a
	WHERE x.id = $2::bytea AND x.owner = $3::text AND x.fence = $4::bigint AND x.state = 'running' AND x.expires_at > a.t
		AND x.settled IS NULL AND x.barred IS NULL AND x.clean_at BETWEEN a.t + a.life AND a.t + a.life * 3
		AND current_setting('oncemill.tx', true) = 'inbox'
	RETURNING true)
SELECT CASE WHEN EXISTS (SELECT FROM finished) THEN NULL ELSE
	{settle_in}($1::text, $2::bytea, $3::text, $4::bigint, 'done', 0, $5::bigint, 'succeeded', false, false, '', $6::bytea, NULL, NULL) END
