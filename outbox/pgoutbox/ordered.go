package pgoutbox

// In an ordered outbox the rows of a key have places in the order of their commits. A writer holds the lock of the
// key's partition from before it gets the place until after the commit. So when a row is visible, all earlier rows of
// its key are visible.
//
// A lease holds the keys of its rows. If nobody holds a key, its rows are handed out in order, up to the first that
// must wait. Rows without a key have no order; the two kinds take turns.
const (
	orderedLeaseSQL = `
WITH busy AS MATERIALIZED (SELECT unnest(lanes) AS lane FROM {lease}),
waiting AS MATERIALIZED (
	SELECT key AS lane, place FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL
		AND due_at IS NOT NULL AND due_at > (SELECT clock_timestamp())
	UNION ALL
	SELECT key, place FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL AND place IS NOT NULL
	UNION ALL
	SELECT key, place FROM {table} WHERE dead_at IS NOT NULL AND place IS NOT NULL AND {dead_blocks}),
first AS MATERIALIZED (
	SELECT jsonb_object_agg(lane, place) AS of_lane
	FROM (SELECT lane, min(place) AS place FROM waiting GROUP BY lane) AS f),
laned AS MATERIALIZED (
	SELECT number, place, key AS lane FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL
		AND key NOT IN (SELECT lane FROM busy)
		AND place < coalesce((((SELECT of_lane FROM first) ->> key))::bigint, 9223372036854775807)
	ORDER BY place LIMIT $3::bigint),
held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease}),
loose AS MATERIALIZED (
	SELECT number, coalesce(due_at, written_at) AS due FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp())
		AND number NOT IN (SELECT number FROM held)
	ORDER BY coalesce(due_at, written_at) LIMIT $3::bigint),
batch AS MATERIALIZED (
	SELECT number, lane, row_number() OVER (ORDER BY place) AS turn FROM laned
	UNION ALL
	SELECT number, NULL, row_number() OVER (ORDER BY due) FROM loose
	ORDER BY turn LIMIT $3::bigint)
INSERT INTO {lease} (token, ends_at, numbers, lanes)
SELECT $1::text, clock_timestamp() + $2::bigint * interval '1 microsecond',
	array_agg(number ORDER BY turn), array_agg(DISTINCT lane) FILTER (WHERE lane IS NOT NULL)
FROM batch HAVING count(*) > 0`

	// Of each key at most its first row.
	orderedSuspectsSQL = `
WITH busy AS MATERIALIZED (SELECT unnest(lanes) AS lane FROM {lease}),
held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease}),
batch AS MATERIALIZED (
	SELECT number, coalesce(due_at, written_at) AS due, CASE WHEN place IS NOT NULL THEN key END AS lane
	FROM {table} o
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp())
		AND number NOT IN (SELECT number FROM held)
		AND (place IS NULL OR key NOT IN (SELECT lane FROM busy) AND NOT EXISTS (
			SELECT FROM {table} earlier
			WHERE earlier.key = o.key AND earlier.place < o.place AND earlier.published_at IS NULL
				AND earlier.place IS NOT NULL AND (earlier.dead_at IS NULL OR {dead_blocks})))
	ORDER BY coalesce(due_at, written_at) LIMIT $3::bigint)
INSERT INTO {lease} (token, ends_at, numbers, lanes)
SELECT $1::text, clock_timestamp() + $2::bigint * interval '1 microsecond',
	array_agg(number ORDER BY due), array_agg(DISTINCT lane) FILTER (WHERE lane IS NOT NULL)
FROM batch HAVING count(*) > 0`
)
