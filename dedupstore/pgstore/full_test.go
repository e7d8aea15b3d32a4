package pgstore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// noRoomFor makes what a full disk is to records: small ones find room in pages that are there, large ones do not.
func noRoomFor(t testing.TB, pool *pgxpool.Pool, condition string) {
	t.Helper()
	mustExec(t, pool, `CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`)
	mustExec(t, pool, `CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON oncemill_dedup FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION no_room()`)
}

// TestGuard_OutputsWithoutRoomArePublishedAndNotRunAgain: with its outcome refused for their size, each delivery would run the handler
// once more, until the attempts are spent and a message whose effect has happened is a dead letter.
func TestGuard_OutputsWithoutRoomArePublishedAndNotRunAgain(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	noRoomFor(t, pool, `length(NEW.contents) > 1000`)
	g := newGuard(t, s, 1500*time.Millisecond)
	published, runs := 0, 0
	call := callOf("1")
	call.Publish = func(_ context.Context, all []dedupstore.Produced) error {
		if published++; len(all) != 1 || len(all[0].Payload) != 5000 {
			t.Errorf("published %d messages", len(all))
		}
		return nil
	}
	for range 2 {
		res, err := g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
			runs++
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts", Payload: make([]byte, 5000)}}}, nil
		})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("the run ended with %+v, %v", res.Outcome, err)
		}
	}
	if published != 1 || runs != 1 {
		t.Errorf("published %d times in %d runs, want once in one", published, runs)
	}
}

// TestInbox_MessagesWaitForRoom: a transaction that finds the disk full has no effect, whether a statement of the handler finds it or
// the settlement, and is no attempt.
func TestInbox_MessagesWaitForRoom(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	noRoomFor(t, pool, `length(NEW.result) > 1000`)
	mustExec(t, pool, `CREATE TRIGGER no_room BEFORE INSERT ON effects FOR EACH ROW WHEN (NEW.id = 'large') EXECUTE FUNCTION no_room()`)
	var log bytes.Buffer
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
		Lease: 30 * time.Second, MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"large", "small"} {
		deliver := func() error {
			_, err := g.Run(t.Context(), callOf(id), func(ctx context.Context) (dedupstore.Outcome, error) {
				_, err := Tx(ctx).Exec(ctx, insertEffect, id)
				return dedupstore.Outcome{Result: make([]byte, 5000)}, err
			})
			return err
		}
		for range 5 {
			until(t, "a run", func() bool { // not of a delivery that is not due yet
				err = deliver()
				_, busy := errors.AsType[*oncemill.BusyError](err)
				return !busy
			})
			retry, again := errors.AsType[*oncemill.RetryError](err)
			if !again || !retry.Uncounted || retry.Delay <= 0 || !errors.Is(err, dedupstore.ErrFull) {
				t.Fatalf("%s: %v, want a RetryError, uncounted, with a delay, for ErrFull", id, err)
			}
		}
		wantEffects(t, pool, id, 0)
		if told := strings.Count(log.String(), "database has no room\" id="+id); told != 5 {
			t.Errorf("%s: the log tells of %d runs, want 5: nothing else does\n%s", id, told, &log)
		}
	}
}

// TestInbox_PermanentFailureForRoomKeepsItsResult: what a handler decides goes before what the disk says.
func TestInbox_PermanentFailureForRoomKeepsItsResult(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	noRoomFor(t, pool, `false`)
	mustExec(t, pool, `CREATE TRIGGER no_room BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION no_room()`)
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := g.Run(t.Context(), callOf("1"), func(ctx context.Context) (dedupstore.Outcome, error) {
		_, err := Tx(ctx).Exec(ctx, insertEffect, "1")
		return dedupstore.Outcome{Result: []byte("declined")}, oncemill.Permanent(err)
	})
	if err != nil || res.Outcome.Kind != dedupstore.Failed || string(res.Outcome.Result) != "declined" {
		t.Errorf("the run ended with %+v, %v", res.Outcome, err)
	}
}
