package mysqlstore

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// A handler fails with rows of a query open, so that the driver refuses to send ROLLBACK. What it wrote is rolled back
// all the same: a connection that cannot be rolled back is closed before anything restores its session, which commits.
func TestInbox_WhoLeavesRowsOpenIsRolledBack(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := newStore(t, db)
	runOf(t, s, "other") // it knows the server
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for way, first := range map[string]bool{"first": true, "claimed": false} {
		calls := 0
		var res oncemill.Result
		for res.Status != oncemill.StatusDone && calls < 4 {
			<-time.After(res.Wait)
			res, _ = g.Run(t.Context(), oncemill.Call{Key: request(way).Key, First: first},
				func(ctx context.Context) (dedupstore.Outcome, error) {
					if err := effect(ctx, way); err != nil {
						return dedupstore.Outcome{}, err
					}
					if calls++; calls > 1 {
						return dedupstore.Outcome{}, nil
					}
					rows, err := Tx(ctx).Query("SELECT seq FROM seq_1_to_300") //nolint:sqlclosecheck // that is the case
					if err != nil {
						return dedupstore.Outcome{}, err
					}
					for range 253 { // the driver cannot tell the next packet from the first of an answer
						rows.Next()
					}
					return dedupstore.Outcome{}, errors.New("temporary")
				})
		}
		if res.Status != oncemill.StatusDone || calls != 2 {
			t.Errorf("%s: ended with %+v after %d calls", way, res, calls)
		}
		wantEffects(t, db, way, 1)
	}
}
