package pgstore

import (
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// finishArgs are the arguments of finish.sql.
func finishArgs(token string, was dedupstore.State, c dedupstore.Claim, f dedupstore.Finish) []any {
	o := &f.Outcome
	state, contents := dedupstore.Finished, []byte(nil)
	var delay *int64 // until the lease of a publish step ends
	if f.Publishes() {
		state, contents = dedupstore.Publishing, sqlstore.EncodeContents(o.Produced)
		delay = new(sqlstore.Micros(c.Lease))
	}
	return []any{
		token, idOf(c.Key.String()), c.Owner, int64(c.Fence), string(was), string(state), delay,
		sqlstore.Micros(f.Retention), string(o.Kind), o.Exhausted, o.Truncated, encodeText(o.Reason),
		resultOf(f.Outcome), sqlstore.EncodeStubs(o.Produced), contents, millis(f.Took),
	}
}
