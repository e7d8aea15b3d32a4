-- Finishes a run within the transaction that has the effects, or makes that transaction fail: OM001 if it is not the
-- one that began with the token, OM002 if the owner has settled before, OM003 if the claim is lost. The next statement
-- has to be the commit, or this for another record of a batch. With the token "first" the transaction has made the
-- record, as done, and this corrects it.
CREATE OR REPLACE FUNCTION {settle_in}(
	token text, s_id bytea, s_owner text, s_fence bigint, step text, delay bigint, retention bigint,
	s_kind text, s_exhausted boolean, s_truncated boolean, s_reason text, s_result bytea, s_stubs bytea,
	s_contents bytea, s_took bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $oncemill$
DECLARE
	us      CONSTANT interval := interval '1 microsecond';
	r       record;
	t       timestamptz := clock_timestamp();
	ends    timestamptz := t + delay * us; -- the lease of a publish step
	expires timestamptz := coalesce(ends, t) + retention * us;
	least   timestamptz := CASE token WHEN 'first' THEN '-infinity' ELSE t END; -- what the record has to live beyond
	set     text;
BEGIN
	IF token <> '' THEN
		IF current_setting('oncemill.tx', true) IS DISTINCT FROM 'inbox' THEN
			RAISE EXCEPTION 'the transaction that the inbox began has ended' USING ERRCODE = 'OM001';
		END IF;
		set := set_config('enable_seqscan', 'off', true);
	END IF;
	-- The message is acknowledged on the strength of this commit, whatever the handler has set for its effects.
	IF current_setting('synchronous_commit') = 'off' THEN
		set := set_config('synchronous_commit', 'on', true);
	END IF;
	LOOP
		-- A heartbeat may have the record locked for a moment: here that is waited for.
		UPDATE {records} x SET
			state = step, decided = s_fence, lease_until = ends,
			settled = array_append(CASE WHEN token = 'first' THEN NULL
				WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END, s_owner),
			kind = s_kind, exhausted = nullif(s_exhausted, false), truncated = nullif(s_truncated, false),
			reason = nullif(s_reason, ''),
			result = s_result, stubs = s_stubs, contents = s_contents, took_ms = s_took, expires_at = expires,
			clean_at = {clean_at}
		WHERE x.id = s_id AND x.owner = s_owner AND x.fence = s_fence
			AND x.state = CASE token WHEN 'first' THEN 'done' ELSE 'running' END AND x.barred IS DISTINCT FROM token
			AND x.expires_at > least;
		IF FOUND THEN
			RETURN;
		END IF;
		-- In a statement of its own: a heartbeat that had the record locked is seen.
		PERFORM FROM {beats} b WHERE b.id = s_id AND b.fence = s_fence AND b.state = 'running' AND b.expires_at > t;
		EXIT WHEN NOT FOUND OR least < t;
		least := '-infinity';
	END LOOP;
	SELECT x.decided, x.settled, x.kind INTO r FROM {records} x WHERE x.id = s_id;
	IF FOUND AND r.decided = s_fence AND s_owner = ANY (r.settled) AND r.kind = s_kind THEN
		RAISE EXCEPTION 'the run has been settled before' USING ERRCODE = 'OM002';
	END IF;
	RAISE EXCEPTION 'the claim is lost' USING ERRCODE = 'OM003';
END
$oncemill$;

-- Does that within a transaction of the handler's own, which may go on. The fence says about when the run began.
CREATE OR REPLACE FUNCTION {join}(s_id bytea, s_owner text, s_fence bigint, retention bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $oncemill$
BEGIN
	PERFORM {settle_in}('', s_id, s_owner, s_fence, 'done', NULL, retention, 'succeeded', false, false, '', NULL, NULL,
		NULL, (extract(epoch FROM clock_timestamp()) * 1000)::bigint - s_fence / 1000);
END
$oncemill$;
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
