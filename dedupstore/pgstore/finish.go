package pgstore

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// finishArgs are the arguments of finish.sql.
func finishArgs(token string, was dedupstore.State, c dedupstore.Claim, f dedupstore.Finish) []any {
	o := &f.Outcome
	state, contents := dedupstore.Finished, []byte(nil)
	var lease pgtype.Interval // of a publish step
	life := sqlstore.Micros(f.Retention)
	if f.Publishes() {
		state, contents = dedupstore.Publishing, sqlstore.EncodeContents(o.Produced)
		lease = interval(sqlstore.Micros(c.Lease))
		life += lease.Microseconds
	}
	return []any{
		token, idOf(c.Key.String()), c.Owner, int64(c.Fence), string(was), string(state), lease,
		interval(life), string(o.Kind), o.Exhausted, o.Truncated, encodeText(o.Reason),
		sqlstore.Result(f.Outcome), sqlstore.EncodeStubs(o.Produced), contents, millis(f.Took),
	}
}
