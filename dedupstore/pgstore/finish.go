package pgstore

import (
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A settling is the settlement of a run in an inbox, as the functions take it.
type settling struct {
	id                      []byte
	owner                   string
	fence                   int64
	step                    string // done, publishing
	delay                   *int64 // µs: until the lease of a publish step ends; nil: there is none
	retention               int64  // µs
	took                    *int64 // ms
	kind, reason            string
	exhausted, truncated    bool
	result, stubs, contents []byte
}

// newSettling is the settlement of a claim, which has to be an outcome: without one the next run would make the effects
// again.
func newSettling(c dedupstore.Claim, f dedupstore.Finish) (*settling, error) {
	if err := dedupstore.ValidateSettlement(f); err != nil {
		return nil, err
	}
	o := f.Outcome
	s := &settling{
		id: idOf(c.Key.String()), owner: c.Owner, fence: int64(c.Fence), step: "done",
		retention: sqlstore.Micros(f.Retention), took: millis(f.Took), kind: string(o.Kind), exhausted: o.Exhausted,
		truncated: o.Truncated, reason: encodeText(o.Reason), stubs: sqlstore.EncodeStubs(o.Produced),
	}
	if len(o.Result) > 0 {
		s.result = o.Result
	}
	if f.Publishes() {
		s.step, s.delay, s.contents = "publishing", new(sqlstore.Micros(c.Lease)), sqlstore.EncodeContents(o.Produced)
	}
	return s, nil
}

// plain reports whether it is what nearly all are: a success that produced nothing.
func (s *settling) plain() bool {
	return s.step == "done" && s.kind == string(dedupstore.Succeeded) && !s.exhausted && !s.truncated &&
		s.reason == "" && s.stubs == nil
}

// foreseen reports whether the claim's date of cleaning fits the outcome. It must not be much too late, and it must be
// late enough. After a run of over a sixteenth of the window it may be early: cleaning then looks and postpones it.
func (s *settling) foreseen(c dedupstore.Claim) bool {
	life := sqlstore.Micros(c.Lease) + sqlstore.Micros(c.Retention)
	return sqlstore.Micros(c.Retention) >= s.retention && life+life/16 <= 3*s.retention
}

// args are the arguments of the function that finishes within a transaction.
func (s *settling) args(token string) []any {
	return []any{
		token, s.id, s.owner, s.fence, s.step, s.delay, s.retention, s.kind, s.exhausted, s.truncated, s.reason,
		s.result, s.stubs, s.contents, s.took,
	}
}
