package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// TestInbox_MessagesWaitForRoomHoweverLittleThereIs: a claim finds room in a page that is there, the release with the handler's reason
// may not. Left to its lease the run would count.
func TestInbox_MessagesWaitForRoomHoweverLittleThereIs(t *testing.T) {
	t.Parallel()
	released := 0
	for others := 28; others < 36; others++ { // the last of a page's room
		roomy, db := newStore(t)
		newLedger(t, db)
		for i := range others {
			claim(t, roomy, request(fmt.Sprint("other ", i)), dedupstore.AcquiredRun)
		}
		s, err := New(openAt(t, fileOf(t, db), "_pragma", "max_page_count("+itoa(count(t, db, "PRAGMA page_count"))+")"), Config{})
		if err != nil {
			t.Fatal(err)
		}
		deliver := func(s *Store, bytes int) (res oncemill.Result, err error) {
			g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
				Lease: 30 * time.Second, MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond},
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "a delivery that is due", func() bool {
				res, err = g.Run(t.Context(), oncemill.Call{Key: request("1").Key}, func(ctx context.Context) (dedupstore.Outcome, error) {
					if err := charge(ctx, Tx(ctx), strings.Repeat("x", bytes)); err != nil {
						return dedupstore.Outcome{}, fmt.Errorf("charge %s: %w", strings.Repeat("y", 300), err)
					}
					return dedupstore.Outcome{}, nil
				})
				_, busy := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue)
				return !busy
			})
			return res, err
		}
		for range 6 {
			_, err := deliver(s, 50_000)
			retry, again := answertest.Is(err, oncemill.StatusRetry)
			_, refused := answertest.Is(err, oncemill.StatusStoreDown)
			switch {
			case !errors.Is(err, dedupstore.ErrFull), again && !retry.Uncounted, !again && !refused:
				t.Fatalf("beside %d others: %v, want an attempt that does not count, or none", others, err)
			case again:
				released++
			}
		}
		if res, err := deliver(roomy, 1); err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("beside %d others, when there was room again: %+v, %v", others, res.Outcome, err)
		}
	}
	if released == 0 {
		t.Error("the handler never ran")
	}
}
