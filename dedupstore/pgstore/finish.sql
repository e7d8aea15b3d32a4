-- Ends a run within the transaction that has the effects, if the claim holds, or else makes that transaction fail: it
-- divides by zero before the commit. With the state 'done' the transaction has made the record itself, as it would be,
-- and this corrects it; else it was running. It waits for a heartbeat that has the record locked for a moment.
WITH finished AS (
	UPDATE {records} x SET
		state = $6::text, decided = x.fence, lease_until = statement_timestamp() + $7::interval,
		settled = array_append(CASE WHEN x.state = 'done' THEN NULL
			WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END, x.owner),
		kind = $9::text, exhausted = nullif($10::boolean, false), truncated = nullif($11::boolean, false),
		reason = nullif($12::text, ''), result = $13::bytea, stubs = $14::bytea, contents = $15::bytea,
		took_ms = {took}, expires_at = statement_timestamp() + $8::interval,
		clean_at = CASE WHEN x.clean_at - statement_timestamp() BETWEEN $8::interval AND $8::interval * 3
			THEN x.clean_at ELSE statement_timestamp() + $8::interval * 17 / 16 END
	WHERE x.id = $2::bytea AND x.owner = $3::text AND x.fence = $4::bigint AND x.state = $5::text
		AND x.barred IS DISTINCT FROM $1::text
		AND ($5::text = 'done' OR x.expires_at > clock_timestamp() OR {lives_until} > clock_timestamp())
	RETURNING true)
SELECT {verdict} FROM finished
