-- Deletes the records that have been picked, if they have expired, and heartbeats that mean nothing any more, at most
-- so many. The records are locked: they stay in their places, and a heartbeat that had a lock before is seen. It
-- returns how many it deleted.
WITH gone AS (
	DELETE FROM {records} x WHERE x.ctid = ANY ({picked}) AND {lives_until} <= statement_timestamp()
	RETURNING x.id),
copies AS (
	DELETE FROM {duplicates} d WHERE d.id = ANY (ARRAY(SELECT g.id FROM gone g))),
kept AS (
	UPDATE {records} x SET clean_at = greatest({lives_until}, statement_timestamp() + interval '1 second')
	WHERE x.ctid = ANY ({picked}) AND {lives_until} > statement_timestamp()
		AND (SELECT count(*) FROM gone) < cardinality({picked})),
beats AS (
	DELETE FROM {beats} d WHERE d.id = ANY (ARRAY(
		SELECT b.id FROM {beats} b WHERE current_setting('oncemill.picked') <> ''
			AND b.lease_until < statement_timestamp() - interval '1 minute' AND NOT EXISTS (
			SELECT FROM {records} x WHERE x.id = b.id AND x.fence = b.fence AND x.state = b.state OFFSET 0) -- by its ID
		ORDER BY b.lease_until LIMIT $1::bigint FOR UPDATE SKIP LOCKED)) RETURNING d.id)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM beats)
