package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// errDeclines is what a handler returns whose row has to be rolled back.
var errDeclines = errors.New("declined")

// TestInbox_RowsOfAHandWrittenTableCountBesideIt is what docs/from/table.md says.
// Processes without a guard, which only insert there, run beside those that insert in the inbox's transaction.
func TestInbox_RowsOfAHandWrittenTableCountBesideIt(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			mustExec(t, pool, `CREATE TABLE processed_messages (message_id text PRIMARY KEY)`)
			s := newStore(t, pool, Config{Isolation: level})

			book := func(ctx context.Context, tx pgx.Tx, id string) error {
				const query = `INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING`
				tag, err := tx.Exec(ctx, query, id)
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				_, err = tx.Exec(ctx, `INSERT INTO effects VALUES ($1, 0)`, id)
				return err
			}
			old := func(id string) error {
				return pgx.BeginFunc(context.Background(), pool,
					func(tx pgx.Tx) error { return book(context.Background(), tx, id) })
			}
			g := newGuard(t, s.Inbox(), 30*time.Second)
			guarded := func(id string, declines bool) (res oncemill.Result, err error) {
				return g.Run(context.Background(), callOf(id), func(ctx context.Context) (dedupstore.Outcome, error) {
					err := book(ctx, Tx(ctx), id)
					if declines {
						err = errors.Join(err, errDeclines)
					}
					return dedupstore.Outcome{}, err
				})
			}

			// The guard runs once, without an effect, what an old process has done, and keeps the outcome.
			if err := old("before"); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				if res, err := guarded("before", false); err != nil || res.Outcome.Kind != dedupstore.Succeeded ||
					res.Duplicate != (i == 1) {
					t.Errorf("delivery %d: %+v, %v", i, res, err)
				}
			}
			wantEffects(t, pool, "before", 1)

			// A run that errs takes its row back with its effect: an old process does it.
			if _, err := guarded("declined", true); !errors.Is(err, errDeclines) {
				t.Errorf("the run returned %v", err)
			}
			if err := old("declined"); err != nil {
				t.Fatal(err)
			}
			wantEffects(t, pool, "declined", 1)

			// Copies that both kinds of processes get at the same time.
			var all sync.WaitGroup
			for i := range full(500, 40) {
				id := fmt.Sprint("both-", i)
				for range 2 {
					all.Go(func() {
						if err := old(id); err != nil {
							t.Errorf("%s: the old process: %v", id, err)
						}
					})
					all.Go(func() {
						for {
							_, err := guarded(id, false)
							busy, waits := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue)
							if waits {
								lasts(min(busy.Wait, 5*time.Millisecond))
								continue
							}
							if _, again := answertest.Is(err, oncemill.StatusRetry); again {
								lasts(time.Millisecond)
								continue
							}
							if err != nil {
								t.Errorf("%s: the guard: %v", id, err)
							}
							return
						}
					})
				}
				all.Wait()
				wantEffects(t, pool, id, 1)
				if a := claim(t, s, request(id), dedupstore.Done); a.Outcome.Kind != dedupstore.Succeeded {
					t.Errorf("%s: the outcome is %+v", id, a.Outcome)
				}
			}
		})
	}
}
