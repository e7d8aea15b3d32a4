-- Finishes a run that succeeded and produced nothing, within the transaction that has the effects, if that takes no
-- more than one look: it is the key's first run, of which nothing but the claim is known, and the commit will wait for
-- the disk. The caller makes sure that the claim has foreseen the window, so that clean_at stays as it is. {settle_in}
-- does what remains, or says what is wrong.
WITH finished AS (
	UPDATE {records} x SET
		state = 'done', kind = 'succeeded', decided = x.fence, settled = ARRAY[x.owner], lease_until = NULL,
		expires_at = statement_timestamp() + $5::bigint * interval '1 microsecond', result = $6::bytea,
		took_ms = $7::bigint
	WHERE x.id = $2::bytea AND x.owner = $3::text AND x.fence = $4::bigint AND x.state = 'running'
		AND x.expires_at > statement_timestamp()
		AND x.settled IS NULL AND x.barred IS NULL
		AND current_setting('oncemill.tx', true) = 'inbox' AND current_setting('synchronous_commit') <> 'off'
	RETURNING true)
SELECT CASE WHEN EXISTS (SELECT FROM finished) THEN NULL ELSE
	{settle_in}($1::text, $2::bytea, $3::text, $4::bigint, 'done', NULL, $5::bigint, 'succeeded', false, false, '',
		$6::bytea, NULL, NULL, $7::bigint) END
