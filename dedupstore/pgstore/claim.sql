-- Functions whose transaction is their own switch sequential scans off for it: a plan that is made while the table is
-- small would stay when it is large. Those that run in the transaction of others have that as a setting of the
-- function, which costs more.

-- Makes claims, each for itself, in the order of their keys, so that two batches never wait for each other in a circle.
-- It waits for nobody who has a record locked: that is answered "contended".
CREATE OR REPLACE FUNCTION {claim}(
	ids bytea[], keys text[], owners text[], leases bigint[], retentions bigint[], prints text[],
	maxima bigint[], suspects bigint[], parks boolean[], reruns bigint[], traces text[], holders text[],
	relaxed boolean
) RETURNS TABLE (
	a_n bigint, a_status text, a_found text, a_fence bigint, a_attempt bigint, a_returned bigint, a_wait bigint,
	a_age bigint,
	a_trace text, a_kind text, a_exhausted boolean, a_truncated boolean, a_reason text,
	a_result bytea, a_stubs bytea, a_contents bytea
) LANGUAGE plpgsql VOLATILE AS $oncemill$
DECLARE
	us      CONSTANT interval := interval '1 microsecond';
	q       record;
	r       record;
	b       record;
	t       timestamptz;
	ends    timestamptz; -- the lease
	expires timestamptz;
	started boolean;
	past    jsonb; -- attempts
	crashed bigint; -- of the last runs
	held    boolean;
	step    text;
	waits   text; -- what a commit waits for that is not relaxed
	set     text;
BEGIN
	set := set_config('enable_seqscan', 'off', true);
	set := set_config('lock_timeout', '200ms', true); -- for who inserts the same key: an error, and each claim goes alone
	IF relaxed THEN
		waits := coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on');
		set := set_config('synchronous_commit', 'off', true);
	ELSIF current_setting('synchronous_commit') = 'off' THEN
		set := set_config('synchronous_commit', 'on', true);
	END IF;
	FOR q IN
		SELECT u.* FROM unnest(ids, keys, owners, leases, retentions, prints, maxima, suspects, parks, reruns,
			traces, holders) WITH ORDINALITY
			AS u (id, key, owner, lease, retention, print, most, suspect, park, rerun, trace, holder, n)
		ORDER BY u.id, u.n
	LOOP
		a_n := q.n; a_status := NULL; a_found := 'absent'; a_fence := 0; a_attempt := 0; a_returned := 0; a_wait := 0;
		a_age := 0;
		a_trace := ''; a_kind := ''; a_exhausted := false; a_truncated := false; a_reason := '';
		a_result := NULL; a_stubs := NULL; a_contents := NULL;
		held := false;
		LOOP
			-- The first look takes no lock: whoever gets nothing writes nothing, and needs no commit on disk. What is
			-- to be changed is looked at again under a lock.
			IF held THEN
				SELECT * INTO r FROM {records} x WHERE x.id = q.id FOR NO KEY UPDATE SKIP LOCKED;
			ELSE
				SELECT * INTO r FROM {records} x WHERE x.id = q.id;
			END IF;
			IF NOT FOUND THEN
				IF NOT held AND NOT pg_try_advisory_xact_lock(
					hashtextextended(q.key, '{records}'::regclass::oid::bigint)) THEN
					a_status := 'busy'; a_found := 'running'; a_wait := q.lease; -- somebody is making the record
					EXIT;
				ELSIF NOT held THEN
					t := clock_timestamp();
					expires := t + (q.lease + q.retention) * us;
					a_fence := extract(epoch FROM t) * 1000000;
					INSERT INTO {records} (id, fence, first_at, lease_until, expires_at, clean_at, attempts, returned,
						state, owner, key, print, trace, holder)
					VALUES (q.id, a_fence, t, t + q.lease * us, expires, expires + (expires - t) / 16, 1, 0, 'running',
						q.owner, q.key, q.print, q.trace, nullif(q.holder, ''))
					ON CONFLICT (id) DO NOTHING;
					IF FOUND THEN
						a_status := 'acquired_run'; a_attempt := 1;
						EXIT;
					END IF;
				END IF;
				a_status := 'contended';
				EXIT;
			END IF;

			-- After the lock, in a statement of its own: a heartbeat that had the lock before is seen.
			ends := r.lease_until; expires := r.expires_at; started := false;
			IF r.state IN ('running', 'publishing') THEN
				SELECT * INTO b FROM {beats} x WHERE x.id = q.id AND x.fence = r.fence AND x.state = r.state;
				IF FOUND THEN
					ends := b.lease_until; expires := b.expires_at;
					started := b.unstarted IS DISTINCT FROM r.fence;
				END IF;
			END IF;
			t := clock_timestamp();
			a_found := r.state; a_fence := r.fence; a_attempt := r.attempts; a_returned := r.returned;
			a_trace := r.trace;
			a_age := greatest(0, extract(epoch FROM t - r.first_at) * 1000000);
			crashed := coalesce(r.crashes, 0) + (r.state = 'running')::integer;
			IF expires <= t THEN
				step := 'fresh';
			ELSIF r.key <> q.key THEN
				a_status := 'foreign';
				EXIT;
			ELSIF r.state NOT IN ('running', 'retryable', 'publishing', 'done')
				OR r.state IN ('publishing', 'done') AND r.kind NOT IN ('succeeded', 'failed', 'unknown')
				OR substring(r.stubs FROM 1 FOR 1) <> '\x01'::bytea
				OR substring(r.contents FROM 1 FOR 1) <> '\x01'::bytea THEN
				a_status := 'odd'; -- written by another version, which may know more
				EXIT;
			ELSIF r.print <> q.print AND split_part(r.print, ':', 1) = split_part(q.print, ':', 1) THEN
				a_status := 'mismatch';
				EXIT;
			ELSIF r.state = 'done' AND q.rerun <> 0 AND q.rerun = r.decided AND r.kind <> 'succeeded' THEN
				step := 'rerun';
			ELSIF r.state = 'done' THEN
				a_status := 'done';
				EXIT;
			ELSIF r.owner = q.owner AND r.state = 'running' THEN
				a_status := 'acquired_run';
				EXIT;
			ELSIF r.owner = q.owner AND r.state = 'publishing' THEN
				a_status := 'acquired_publish';
				EXIT;
			ELSIF q.owner = ANY (r.settled) OR ends > t OR r.not_before > t THEN
				a_status := 'busy';
				a_wait := greatest(0, extract(epoch FROM ends - t) * 1000000,
					extract(epoch FROM r.not_before - t) * 1000000);
				EXIT;
			ELSIF r.state = 'publishing' THEN
				step := 'publish';
			ELSIF r.state = 'running' AND started AND q.park THEN
				step := 'park';
			ELSIF r.attempts >= q.most THEN
				step := 'exhaust';
			ELSIF crashed >= q.suspect THEN
				a_status := 'suspect';
				EXIT;
			ELSE
				step := 'run';
			END IF;
			IF NOT held THEN
				held := true;
				CONTINUE;
			END IF;

			a_fence := greatest(r.fence + 1, (extract(epoch FROM t) * 1000000)::bigint);
			expires := t + (q.lease + q.retention) * us;
			past := NULL;
			IF step <> 'fresh' THEN
				past := coalesce(r.history, '[]');
				IF jsonb_array_length(past) >= {max_history} THEN
					past := past - 0;
				END IF;
				past := past || jsonb_strip_nulls(jsonb_build_object('fence', r.fence, 'took', r.took_ms,
					'holder', r.holder, 'reason', (SELECT left(r.reason, n) FROM generate_series(96, 1, -1) AS n
						WHERE octet_length(left(r.reason, n)) <= 96 LIMIT 1)));
			END IF;
			IF step IN ('fresh', 'rerun', 'run') THEN
				a_status := 'acquired_run'; a_attempt := r.attempts + 1;
				IF step <> 'run' THEN
					a_attempt := 1; a_returned := 0;
				END IF;
				IF step = 'fresh' THEN
					a_found := 'absent'; a_trace := ''; a_age := 0;
				END IF;
				UPDATE {records} x SET
					key = q.key, state = 'running', owner = q.owner, fence = a_fence, attempts = a_attempt,
					returned = a_returned,
					reruns = CASE step WHEN 'run' THEN x.reruns WHEN 'rerun' THEN coalesce(x.reruns, 0) + 1 END,
					crashes = CASE step WHEN 'run' THEN nullif(crashed, 0) END,
					trace = q.trace, holder = nullif(q.holder, ''), took_ms = NULL, history = past,
					lease_until = t + q.lease * us, not_before = NULL, barred = NULL,
					kind = NULL, exhausted = NULL, truncated = NULL, reason = NULL, result = NULL, stubs = NULL,
					contents = NULL,
					first_at = CASE WHEN step = 'fresh' THEN t ELSE x.first_at END,
					settled = CASE WHEN step <> 'fresh' THEN x.settled END,
					decided = NULL,
					print = CASE WHEN step = 'fresh' OR x.print = ''
						OR q.print <> '' AND split_part(q.print, ':', 1) <> split_part(x.print, ':', 1) THEN q.print
							ELSE x.print END,
					expires_at = expires,
					clean_at = {clean_at}
				WHERE x.id = q.id;
				EXIT;
			END IF;
			a_status := 'acquired_publish';
			-- An outcome, and a message is acknowledged on the strength of it: were it forgotten, its run could still
			-- commit.
			IF relaxed AND step <> 'publish' THEN
				set := set_config('synchronous_commit', waits, true);
			END IF;
			IF step = 'park' THEN
				r.kind := 'unknown'; r.exhausted := NULL; r.reason := 'the lease of a started run expired';
			ELSIF step = 'exhaust' THEN
				r.kind := 'failed'; r.exhausted := true;
				r.reason := format('%s of %s attempts spent', r.attempts, q.most);
			END IF;
			IF step <> 'publish' THEN
				r.decided := a_fence; r.truncated := NULL; r.result := NULL; r.stubs := NULL; r.contents := NULL;
			END IF;
			UPDATE {records} x SET
				state = 'publishing', owner = q.owner, fence = a_fence, lease_until = t + q.lease * us,
				not_before = NULL, barred = NULL, holder = nullif(q.holder, ''), took_ms = NULL, history = past,
				kind = r.kind, exhausted = r.exhausted, truncated = r.truncated, reason = r.reason, decided = r.decided,
				expires_at = expires,
				clean_at = {clean_at}
			WHERE x.id = q.id;
			IF step <> 'publish' THEN
				UPDATE {records} x SET result = NULL, stubs = NULL, contents = NULL
				WHERE x.id = q.id AND (x.result IS NOT NULL OR x.stubs IS NOT NULL OR x.contents IS NOT NULL);
			END IF;
			EXIT;
		END LOOP;
		IF a_status IN ('done', 'acquired_publish') THEN
			a_kind := coalesce(r.kind, ''); a_exhausted := coalesce(r.exhausted, false);
			a_truncated := coalesce(r.truncated, false);
			a_reason := coalesce(r.reason, ''); a_result := r.result; a_stubs := r.stubs; a_contents := r.contents;
			a_wait := coalesce(r.decided, 0); -- under which fence the outcome was decided
		END IF;
		RETURN NEXT;
	END LOOP;
END
$oncemill$;
