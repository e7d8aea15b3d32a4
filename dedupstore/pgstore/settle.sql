-- Settles and extends claims, each for itself, in the order of their keys. It waits for nobody who has a record locked:
-- what would change such a record is "contended".
-- An extension locks the record, and does not write it. The commit always waits for the disk, and so also for the claim
-- before it, whose commit may not have waited: what a heartbeat has marked as started is not forgotten.
CREATE OR REPLACE FUNCTION {settle}(
	ids bytea[], owners text[], fences bigint[], steps text[], delays bigint[], retentions bigint[], tooks bigint[],
	uncounteds boolean[], kinds text[], exhausteds boolean[], truncateds boolean[], reasons text[], results bytea[],
	stubses bytea[], contentses bytea[]
) RETURNS TABLE (a_n bigint, a_verdict text) LANGUAGE plpgsql VOLATILE AS $oncemill$
DECLARE
	us      CONSTANT interval := interval '1 microsecond';
	q       record;
	r       record;
	t       timestamptz;
	ends    timestamptz; -- the lease of what follows, or when a retry is due
	expires timestamptz;
	locked  bytea; -- the last record that was
	free    boolean;
	mine    boolean;
	ended   boolean; -- by this owner
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true);
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	FOR q IN
		SELECT u.* FROM unnest(ids, owners, fences, steps, delays, retentions, tooks, uncounteds, kinds, exhausteds,
			truncateds, reasons, results, stubses, contentses) WITH ORDINALITY
			AS u (id, owner, fence, step, delay, retention, took, uncounted, kind, exhausted, truncated, reason,
				result, stubs, contents, n)
		ORDER BY u.id, u.n
	LOOP
		a_n := q.n;
		IF q.id = locked THEN -- contended, too: what comes later has to wait, too
			RETURN NEXT;
			CONTINUE;
		END IF;
		SELECT x.owner, x.fence, x.state, x.kind, x.settled, x.expires_at INTO r
		FROM {records} x WHERE x.id = q.id FOR NO KEY UPDATE SKIP LOCKED;
		free := FOUND;
		IF NOT free THEN
			SELECT x.owner, x.fence, x.state, x.kind, x.settled, x.expires_at INTO r FROM {records} x WHERE x.id = q.id;
			IF NOT FOUND THEN
				a_verdict := 'lost';
				RETURN NEXT;
				CONTINUE;
			END IF;
		END IF;
		t := clock_timestamp();
		IF r.expires_at <= t AND r.state IN ('running', 'publishing') THEN
			SELECT coalesce(max(x.expires_at), r.expires_at) INTO r.expires_at
			FROM {beats} x WHERE x.id = q.id AND x.fence = r.fence AND x.state = r.state;
		END IF;
		mine := r.expires_at > t AND r.owner = q.owner AND r.fence = q.fence;
		ended := r.expires_at > t AND coalesce(q.owner = ANY (r.settled), false);
		a_verdict := CASE
			WHEN q.step IN ('done', 'publishing') THEN CASE
				WHEN mine AND r.state = 'running' THEN 'ok'
				WHEN NOT mine OR NOT ended OR r.kind <> q.kind THEN 'lost'
				WHEN q.step = 'publishing' AND r.state = 'done' THEN 'settled' ELSE 'repeated' END
			WHEN q.step = 'release' THEN CASE
				WHEN ended AND r.state = 'retryable' THEN 'repeated'
				WHEN mine AND r.state = 'running' THEN 'ok' ELSE 'lost' END
			WHEN q.step = 'published' THEN CASE
				WHEN mine AND r.state = 'done' THEN 'repeated'
				WHEN mine AND r.state = 'publishing' THEN 'ok' ELSE 'lost' END
			WHEN mine AND r.state IN ('running', 'publishing') THEN 'ok'
			WHEN mine AND r.state = 'done' THEN 'settled' ELSE 'lost' END;
		IF a_verdict = 'ok' AND NOT free THEN
			a_verdict := 'contended'; locked := q.id;
		END IF;
		IF a_verdict <> 'ok' THEN
			RETURN NEXT;
			CONTINUE;
		END IF;

		ends := t + q.delay * us;
		expires := coalesce(ends, t) + q.retention * us;
		IF q.step IN ('done', 'publishing') THEN
			UPDATE {records} x SET
				state = q.step, decided = x.fence, lease_until = ends, took_ms = q.took,
				settled = array_append(CASE WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END,
					q.owner),
				kind = q.kind, exhausted = nullif(q.exhausted, false), truncated = nullif(q.truncated, false),
				reason = nullif(q.reason, ''),
				result = q.result, stubs = q.stubs, contents = q.contents, expires_at = expires,
				clean_at = {clean_at}
			WHERE x.id = q.id;
		ELSIF q.step = 'release' THEN
			UPDATE {records} x SET
				state = 'retryable', owner = '', lease_until = NULL, not_before = ends,
				settled = array_append(CASE WHEN cardinality(x.settled) >= {settlers} THEN x.settled[2:] ELSE x.settled END,
					q.owner),
				reason = nullif(q.reason, ''), took_ms = q.took,
				attempts = x.attempts - q.uncounted::integer, returned = x.returned + q.uncounted::integer,
				crashes = CASE WHEN q.uncounted THEN x.crashes END,
				expires_at = expires,
				clean_at = {clean_at}
			WHERE x.id = q.id;
		ELSIF q.step IN ('extend', 'start') THEN
			INSERT INTO {beats} AS b (id, fence, state, lease_until, expires_at, unstarted)
			VALUES (q.id, q.fence, r.state, ends, expires, CASE q.step WHEN 'extend' THEN q.fence END)
			ON CONFLICT (id) DO UPDATE SET
				fence = excluded.fence, state = excluded.state, lease_until = excluded.lease_until,
				expires_at = excluded.expires_at,
				unstarted = CASE WHEN b.fence <> excluded.fence OR b.unstarted IS NOT NULL THEN excluded.unstarted END;
		ELSE
			UPDATE {records} x SET
				state = 'done', lease_until = NULL, contents = NULL, stubs = coalesce(x.stubs, q.stubs),
				expires_at = expires,
				clean_at = {clean_at}
			WHERE x.id = q.id;
		END IF;
		RETURN NEXT;
	END LOOP;
END
$oncemill$;

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
