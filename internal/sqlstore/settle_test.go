package sqlstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A transaction that joined has committed a success before the handler returns and its finish comes.
func TestSettle_AfterAJoin(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := dedupstore.Claim{Owner: "the-owner-of-this-claim", Fence: 7, Attempt: 1, Lease: time.Hour, Retention: time.Hour}
	joined := dedupstore.Stored{
		State: dedupstore.Finished, Owner: c.Owner, Fence: 7, Decided: 7, Settled: []string{c.Owner},
		Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Expires: now.Add(time.Hour),
	}
	message := []dedupstore.Produced{{ID: "1", Topic: "orders"}}
	sent, running := joined, joined
	sent.Outcome.Produced = message
	running.State, running.Settled, running.Lease = dedupstore.Running, nil, now.Add(time.Hour)
	again := running
	again.Settled = []string{c.Owner}
	publishing := joined
	publishing.Settled = []string{"another"}
	finish := func(kind dedupstore.Kind, produced []dedupstore.Produced) dedupstore.Settlement {
		return dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: kind, Produced: produced}, Retention: time.Hour}
	}
	lost, outputs := dedupstore.ErrClaimLost, sqlstore.ErrJoinedOutputs
	for name, tc := range map[string]struct {
		rec   dedupstore.Stored
		fence uint64
		s     dedupstore.Settlement
		want  error
		ends  bool
	}{
		"a success":                       {joined, 7, finish(dedupstore.Succeeded, nil), nil, false},
		"a failure":                       {joined, 7, finish(dedupstore.Failed, nil), lost, false},
		"messages":                        {joined, 7, finish(dedupstore.Succeeded, message), outputs, false},
		"messages that were there":        {sent, 7, finish(dedupstore.Succeeded, message), nil, false},
		"messages under another fence":    {joined, 8, finish(dedupstore.Succeeded, message), lost, false},
		"messages of another's outcome":   {publishing, 7, finish(dedupstore.Succeeded, message), lost, false},
		"a release":                       {joined, 7, dedupstore.Release{}, lost, false},
		"without a join":                  {running, 7, finish(dedupstore.Failed, message), nil, true},
		"of an owner that settled before": {again, 7, finish(dedupstore.Failed, message), nil, true},
	} {
		c := c
		c.Fence = tc.fence
		next, err := sqlstore.Settle(tc.rec, c, tc.s, now)
		if !errors.Is(err, tc.want) || (next != nil) != tc.ends {
			t.Errorf("%s: %+v, %v, want %v", name, next, err, tc.want)
		}
	}
	if !sqlstore.OwnedBy(joined, c) {
		t.Error("the record is its owner's")
	}
	for _, other := range []dedupstore.Claim{{Owner: c.Owner, Fence: 8}, {Owner: "another", Fence: 7}} {
		if sqlstore.OwnedBy(joined, other) {
			t.Errorf("the record is that of %+v, too", other)
		}
	}
}
