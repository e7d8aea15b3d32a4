package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// TestInbox_AnEndThatAClaimWroteOutlivesTheServer kills the server after a claim ended the run of a holder that stood
// still, and the dead letter is out. That holder must not come back to life with the record, and commit.
func TestInbox_AnEndThatAClaimWroteOutlivesTheServer(t *testing.T) {
	t.Parallel()
	for name, park := range map[string]oncemill.ExpiredLease{"exhausted": oncemill.Retake, "parked": oncemill.Park} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := postgrestest.Start(t, "fsync=on", "wal_writer_delay=10s")
			pool := server.Pool(t)
			inbox := newStore(t, pool, Config{}).Inbox()
			mustExec(t, pool, `CREATE TABLE effects (id text NOT NULL, run bigint NOT NULL)`)
			holder := claim(t, inbox, brief("1"), dedupstore.AcquiredRun).Claim
			if err := beat(t.Context(), inbox, holder, holder.Lease); err != nil {
				t.Fatal(err)
			}
			mustExec(t, pool, `CHECKPOINT`)
			lasts(2 * holder.Lease)

			g, err := oncemill.NewGuard(inbox, oncemill.Policy{
				MaxAttempts: 1, ExpiredLease: park, Lease: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			call := callOf("1")
			call.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced {
				return []dedupstore.Produced{{ID: "dead"}}
			}
			call.Publish = func(context.Context, []dedupstore.Produced) error {
				server.Kill()
				server.Restart()
				until(t, "the server", func() bool { return pool.Ping(context.Background()) == nil })
				return nil
			}
			res, err := g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
				t.Error("the handler was called")
				return dedupstore.Outcome{}, nil
			})
			if err != nil || res.Outcome.Kind == dedupstore.Succeeded {
				t.Fatalf("the claim that ended the run returned %+v, %v", res, err)
			}

			if err := dedupstore.InTxOne(t.Context(), inbox, holder, paying(holder)); !errors.Is(err, dedupstore.ErrClaimLost) {
				t.Errorf("the holder's run returned %v, want ErrClaimLost", err)
			}
			wantEffects(t, pool, "1", 0)
			if a := claim(t, inbox, request("1"), dedupstore.Done); a.Outcome.Kind != res.Outcome.Kind {
				t.Errorf("a duplicate got the outcome %+v, the acknowledged delivery %+v", a.Outcome, res.Outcome)
			}
		})
	}
}
