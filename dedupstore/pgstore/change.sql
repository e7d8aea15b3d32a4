-- Changes a record on request, if it is as it was seen: in a state under a fence, with an outcome of a kind, and with
-- no lease that lasts. It returns whether it was.
CREATE OR REPLACE FUNCTION {change}(
	s_id bytea, s_fence bigint, s_state text, s_kind text, step text,
	c_kind text, c_exhausted boolean, c_truncated boolean, c_reason text, c_result bytea
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $oncemill$
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true);
	PERFORM set_config('lock_timeout', '1s', true); -- a transaction that settles has the lock until its end
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	PERFORM FROM {records} x WHERE x.id = s_id AND x.fence = s_fence AND x.state = s_state
		AND coalesce(x.kind, '') = s_kind FOR NO KEY UPDATE;
	-- The second in a statement of its own: a heartbeat that had the lock before is seen.
	IF NOT FOUND OR EXISTS (SELECT FROM {beats} b WHERE b.id = s_id AND b.fence = s_fence AND b.state = s_state
		AND b.lease_until > clock_timestamp()) THEN
		RETURN false;
	END IF;
	IF step = 'forget' THEN
		DELETE FROM {duplicates} d WHERE d.id = s_id;
		DELETE FROM {beats} b WHERE b.id = s_id;
		DELETE FROM {records} x WHERE x.id = s_id;
	ELSIF step = 'rerun' THEN
		UPDATE {records} x SET
			state = 'retryable', owner = '', not_before = clock_timestamp(), attempts = 0, returned = 0, crashes = NULL,
			reruns = coalesce(x.reruns, 0) + 1, decided = NULL,
			kind = NULL, exhausted = NULL, truncated = NULL, result = NULL, stubs = NULL
		WHERE x.id = s_id;
	ELSE
		UPDATE {records} x SET
			kind = c_kind, exhausted = nullif(c_exhausted, false), truncated = nullif(c_truncated, false),
			reason = nullif(c_reason, ''), result = c_result,
			settled = array_append(CASE WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END,
				'operator') -- no owner has so short a token
		WHERE x.id = s_id;
	END IF;
	RETURN true;
END
$oncemill$;
