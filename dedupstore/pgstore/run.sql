-- Makes sure that there is still something to do for a transaction that has just begun, in a program that has not
-- granted the claim just now. Errors: as settle_in.
CREATE OR REPLACE FUNCTION {begin}(s_id bytea, s_owner text, s_fence bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $oncemill$
DECLARE
	r record;
BEGIN
	SELECT x.owner, x.fence, x.state, x.settled, x.decided INTO r FROM {records} x WHERE x.id = s_id;
	IF FOUND AND r.owner = s_owner AND r.fence = s_fence AND r.state = 'running' THEN
		RETURN;
	ELSIF FOUND AND r.decided = s_fence AND s_owner = ANY (r.settled) THEN
		RAISE EXCEPTION 'the run has been settled before' USING ERRCODE = 'OM002';
	END IF;
	RAISE EXCEPTION 'the claim is lost' USING ERRCODE = 'OM003';
END
$oncemill$;

-- Finds out what became of a transaction whose commit got no answer. It waits for its end, and if it has not settled,
-- bars it: its last statements may still be on their way to the server.
CREATE OR REPLACE FUNCTION {decide}(token text, s_id bytea, s_owner text, s_fence bigint)
RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $oncemill$
DECLARE
	r record;
BEGIN
	SELECT x.owner, x.fence, x.state, x.settled, x.decided INTO r FROM {records} x WHERE x.id = s_id FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN 'lost';
	ELSIF r.owner = s_owner AND r.fence = s_fence AND r.state = 'running' THEN
		UPDATE {records} x SET barred = token WHERE x.id = s_id;
		RETURN 'open';
	ELSIF r.decided = s_fence AND s_owner = ANY (r.settled) THEN
		RETURN 'settled';
	END IF;
	RETURN 'lost';
END
$oncemill$;

-- Deletes records that have expired, and heartbeats that mean nothing any more; at most so many of each. It does
-- nothing while another cleaning is under way. It returns how many it deleted.
CREATE OR REPLACE FUNCTION {clean_up}(most bigint)
RETURNS TABLE (a_records bigint, a_beats bigint) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $oncemill$
DECLARE
	t      timestamptz := clock_timestamp();
	picked bytea[];
BEGIN
	IF NOT pg_try_advisory_xact_lock('{records}'::regclass::oid::integer, 1869506413) THEN
		RETURN;
	END IF;
	PERFORM set_config('synchronous_commit', 'off', true); -- what comes back is deleted again
	SELECT array_agg(p.id) INTO picked FROM (
		SELECT x.id FROM {records} x WHERE x.clean_at <= t ORDER BY x.clean_at LIMIT most FOR UPDATE SKIP LOCKED) p;
	-- In statements of their own: a heartbeat that had the lock before is seen.
	DELETE FROM {records} x WHERE x.id = ANY (picked) AND x.expires_at <= t AND NOT EXISTS (
		SELECT FROM {beats} b WHERE b.id = x.id AND b.fence = x.fence AND b.state = x.state AND b.expires_at > t);
	GET DIAGNOSTICS a_records = ROW_COUNT;
	DELETE FROM {duplicates} d WHERE d.id = ANY (picked)
		AND NOT EXISTS (SELECT FROM {records} x WHERE x.id = d.id OFFSET 0); -- by its ID
	IF a_records < cardinality(picked) THEN
		UPDATE {records} x SET clean_at = greatest(x.expires_at, t + interval '1 second', (
			SELECT max(b.expires_at) FROM {beats} b WHERE b.id = x.id AND b.fence = x.fence AND b.state = x.state))
		WHERE x.id = ANY (picked);
	END IF;
	DELETE FROM {beats} d WHERE d.id = ANY (ARRAY(
		SELECT b.id FROM {beats} b WHERE b.lease_until < t - interval '1 minute' AND NOT EXISTS (
			SELECT FROM {records} x WHERE x.id = b.id AND x.fence = b.fence AND x.state = b.state OFFSET 0) -- by its ID
		ORDER BY b.lease_until LIMIT most FOR UPDATE SKIP LOCKED));
	GET DIAGNOSTICS a_beats = ROW_COUNT;
	RETURN NEXT;
END
$oncemill$;
