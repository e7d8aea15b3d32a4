package oncemill_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// An order's state is set by the newest run of its message alone.
func ExampleRun_FenceWhere() {
	var db *sql.DB // with a table orders, whose column fence is a BIGINT
	_ = func(ctx context.Context) error {
		run := oncemill.FromContext(ctx)
		res, err := db.ExecContext(ctx,
			`UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND `+run.FenceWhere("fence", "$2"),
			"shipped", run.FenceArg(), run.Key.ID)
		if err != nil {
			return err
		}
		rows, err := res.RowsAffected()
		if err != nil {
			return err
		}
		return run.FenceApplied(rows)
	}
}

// The limit that the documentation states: it is no guard against a second effect.
func TestFence_DoesNotKeepASecondEffectOfANewerRunOut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		added, last := 0, int64(0) // the row, as one transaction would see it
		for attempt := 1; attempt <= 2; attempt++ {
			_, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
				if run := oncemill.FromContext(ctx); last < run.FenceArg() {
					added, last = added+1, run.FenceArg()
				}
				return dedupstore.Outcome{}, oncemill.RetryAfter(0, errors.New("after the effect"))
			})
			answertest.Want(t, err, oncemill.StatusRetry)
		}
		if added != 2 {
			t.Errorf("%d effects: the documentation says that each run has its own", added)
		}
	})
}
