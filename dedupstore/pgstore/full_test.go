package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// noRoomFor makes what a full disk is to records: small ones find room in pages that are there, large ones do not.
func noRoomFor(t testing.TB, pool *pgxpool.Pool, condition string) {
	t.Helper()
	mustExec(t, pool, `CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`)
	mustExec(t, pool, `CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON oncemill_dedup
		FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION no_room()`)
}

// TestGuard_OutputsWithoutRoomArePublishedAndNotRunAgain: if the outcome were refused for their size, each delivery
// would run the handler once more. In the end a message whose effect has happened would be a dead letter.
func TestGuard_OutputsWithoutRoomArePublishedAndNotRunAgain(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	noRoomFor(t, pool, `length(NEW.contents) > 1000`)
	g := newGuard(t, s, 30*time.Second)
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
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts",
				Payload: make([]byte, 5000)}}}, nil
		})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("the run ended with %+v, %v", res.Outcome, err)
		}
	}
	if published != 1 || runs != 1 {
		t.Errorf("published %d times in %d runs, want once in one", published, runs)
	}
}

// TestInbox_MessagesWaitForRoom: a transaction that finds the disk full has no effect, whether a statement of the
// handler finds it or the settlement, and is no attempt.
func TestInbox_MessagesWaitForRoom(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	noRoomFor(t, pool, `length(NEW.result) > 1000`)
	mustExec(t, pool, `CREATE TRIGGER no_room BEFORE INSERT ON effects
		FOR EACH ROW WHEN (NEW.id = 'large') EXECUTE FUNCTION no_room()`)
	var log bytes.Buffer
	g, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{
		Lease: 30 * time.Second, MaxAttempts: 2, Backoff: oncemill.Backoff{Min: time.Millisecond,
			Max: time.Millisecond},
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
				_, busy := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue)
				return !busy
			})
			retry, again := answertest.Is(err, oncemill.StatusRetry)
			if !again || !retry.Uncounted || retry.Wait <= 0 || !errors.Is(err, dedupstore.ErrFull) {
				t.Fatalf("%s: %v, want a retry, uncounted, with a delay, for ErrFull", id, err)
			}
		}
		wantEffects(t, pool, id, 0)
		if reported := strings.Count(log.String(), "database has no room\" id="+id); reported != 5 {
			t.Errorf("%s: the log tells of %d runs, want 5: nothing else does\n%s", id, reported, &log)
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

// TestGuard_ResultsWithoutRoomAreLeftOut: an outcome without its result is better than an effect that is made again.
func TestGuard_ResultsWithoutRoomAreLeftOut(t *testing.T) {
	t.Parallel()
	for _, outputs := range []int{0, 5000} {
		pool := newPool(t)
		s := newStore(t, pool, Config{})
		runOf(t, s, "first")
		noRoomFor(t, pool, `length(NEW.result) > 1000 OR length(NEW.contents) > 1000`)
		g := newGuard(t, s, 30*time.Second)
		published, runs := 0, 0
		call := callOf("1")
		call.Publish = func(context.Context, []dedupstore.Produced) error {
			published++
			return nil
		}
		o := dedupstore.Outcome{Result: make([]byte, 5000)}
		if outputs > 0 {
			o.Produced = []dedupstore.Produced{{ID: "receipt", Topic: "receipts", Payload: make([]byte, outputs)}}
		}
		deliver := func() dedupstore.Outcome {
			res, err := g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
				runs++
				return o, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return res.Outcome
		}
		if got := deliver(); got.Kind != dedupstore.Succeeded || len(got.Result) != 5000 || got.Truncated {
			t.Errorf("the run ended %s with a result of %d bytes", got.Kind, len(got.Result))
		}
		if got := deliver(); got.Kind != dedupstore.Succeeded || len(got.Result) != 0 || !got.Truncated {
			t.Errorf("a duplicate was told %s with a result of %d bytes, truncated %v", got.Kind, len(got.Result),
				got.Truncated)
		}
		if runs != 1 || published != len(o.Produced) {
			t.Errorf("published %d times in %d runs, want once in one", published, runs)
		}
	}
}

// TestGuard_FullDiskDoesNotOpenTheGuard: the server answers, and still knows what it knew.
func TestGuard_FullDiskDoesNotOpenTheGuard(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	g, err := oncemill.NewGuard(s, oncemill.Policy{StoreDown: oncemill.FailOpen, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]int{}
	run := func(id string) error {
		_, err := g.Run(t.Context(), callOf(id), func(context.Context) (dedupstore.Outcome, error) {
			ran[id]++
			return dedupstore.Outcome{}, nil
		})
		return err
	}
	if err := run("done"); err != nil {
		t.Fatal(err)
	}
	noRoomFor(t, pool, `true`)
	// longer than a breaker needs to open
	for n, start := 0, time.Now(); n < 10 || time.Since(start) < 300*time.Millisecond; n++ {
		if err := run(fmt.Sprint("new ", n)); !errors.Is(err, dedupstore.ErrFull) {
			t.Fatalf("a new message ended with %v, want ErrFull", err)
		}
	}
	if err := run("done"); err != nil || len(ran) != 1 || ran["done"] != 1 {
		t.Errorf("a duplicate ended with %v; ran %v", err, ran)
	}
}

// TestInbox_OnlyMessagesThatWaitAreSaidToWait: what parks for room must be looked at, and a nested guard's database is
// another.
func TestInbox_OnlyMessagesThatWaitAreSaidToWait(t *testing.T) {
	t.Parallel()
	pool, other := newPool(t), newPool(t)
	s, full := newStore(t, pool, Config{}), newStore(t, other, Config{})
	noRoomFor(t, pool, `length(NEW.result) > 1000`)
	noRoomFor(t, other, `true`)
	var log bytes.Buffer
	guard := func(p oncemill.Policy) *oncemill.Guard {
		p.Logger, p.MaxAttempts = slog.New(slog.NewTextHandler(&log, nil)), 1
		g, err := oncemill.NewGuard(s.Inbox(), p)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	res, err := guard(oncemill.Irreversible()).Run(t.Context(), callOf("parked"),
		func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: make([]byte, 5000)}, nil
		})
	if err != nil || res.Outcome.Kind != dedupstore.Unknown {
		t.Errorf("at most once ended with %+v, %v", res.Outcome, err)
	}
	asked := newGuard(t, full, 30*time.Second)
	res, err = guard(oncemill.Policy{}).Run(t.Context(), callOf("asks"),
		func(ctx context.Context) (dedupstore.Outcome, error) {
			_, err := asked.Run(ctx, callOf("nested"),
				func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil })
			return dedupstore.Outcome{}, err
		})
	if err != nil || !res.Outcome.Exhausted {
		t.Errorf("the last attempt of a handler that asks a full store ended with %+v, %v", res.Outcome, err)
	}
	if strings.Contains(log.String(), "waits") {
		t.Errorf("the log says:\n%s", &log)
	}
}

// TestGuard_RoomThatEndsAmidRetriesIsNoReasonToRunAgain: a server whose disk fills may cut connections, or be slow,
// before it says so.
func TestGuard_RoomThatEndsAmidRetriesIsNoReasonToRunAgain(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]dedupstore.Outcome{
		"result":  {Result: make([]byte, 5000)},
		"outputs": {Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts", Payload: make([]byte, 5000)}}},
	} {
		pool := newPool(t)
		s := newStore(t, pool, Config{})
		runOf(t, s, "first")
		noRoomFor(t, pool, `length(NEW.result) > 1000 OR length(NEW.contents) > 1000`)
		mustExec(t, pool, `CREATE SEQUENCE tries`)
		mustExec(t, pool, `CREATE OR REPLACE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('tries') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END IF;
			RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`)
		g := newGuard(t, s, 30*time.Second)
		published, runs := 0, 0
		call := callOf("1")
		call.Publish = func(context.Context, []dedupstore.Produced) error {
			published++
			return nil
		}
		for range 2 {
			res, err := g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
				runs++
				return o, nil
			})
			if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("%s: the run ended with %+v, %v", what, res.Outcome, err)
			}
		}
		if runs != 1 || published != len(o.Produced) {
			t.Errorf("%s: published %d times in %d runs, want once in one", what, published, runs)
		}
	}
}

// TestGuard_OutputsThatFindNoRoomLateArePublishedUnderALease: less is left of the lease by then than a first heartbeat
// waits.
func TestGuard_OutputsThatFindNoRoomLateArePublishedUnderALease(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	noRoomFor(t, pool, `length(NEW.contents) > 1000`)
	const lease = 6 * time.Second
	var began time.Time
	log := stalls{slog.DiscardHandler, "no room for produced messages", func() {
		until(t, "most of the lease", func() bool { return time.Since(began) > lease*3/4 })
	}}
	g, err := oncemill.NewGuard(s, oncemill.Policy{Lease: lease, Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	run := func(context.Context) (dedupstore.Outcome, error) {
		runs++
		began = time.Now()
		return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts",
			Payload: make([]byte, 5000)}}}, nil
	}
	call := callOf("1")
	call.MaxWait = time.Minute // a slow machine is no failure
	call.Publish = func(context.Context, []dedupstore.Produced) error {
		copied := callOf("1")
		copied.MaxWait, copied.Publish = lease/2,
			func(context.Context, []dedupstore.Produced) error { return nil }
		_, err := g.Run(context.WithoutCancel(t.Context()), copied, run)
		if _, busy := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue); !busy {
			t.Errorf("a copy of the message ended with %v meanwhile", err)
		}
		return nil
	}
	if _, err := g.Run(t.Context(), call, run); err != nil || runs != 1 {
		t.Errorf("%d runs ended with %v, want one", runs, err)
	}
}

// stalls is a log at which a process stands still.
type stalls struct {
	slog.Handler
	at   string
	then func()
}

func (s stalls) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, s.at) {
		s.then()
	}
	return nil
}

func (stalls) Enabled(context.Context, slog.Level) bool { return true }

// TestGuard_OutputsThatFindNoRoomLateAreNotPublishedWithoutTheClaim: who has it now publishes its own.
func TestGuard_OutputsThatFindNoRoomLateAreNotPublishedWithoutTheClaim(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first")
	noRoomFor(t, pool, `length(NEW.contents) > 1000`)
	const lease = 1500 * time.Millisecond
	log := stalls{slog.DiscardHandler, "no room for produced messages", func() {
		until(t, "a copy that takes over", func() bool {
			return ask(t, s,
				request("1")).Status == dedupstore.AcquiredRun
		})
	}}
	g, err := oncemill.NewGuard(s, oncemill.Policy{Lease: lease, Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	published := 0
	call := callOf("1")
	call.MaxWait = time.Minute // a slow machine is no failure
	call.Publish = func(context.Context, []dedupstore.Produced) error {
		published++
		return nil
	}
	_, err = g.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts",
			Payload: make([]byte, 5000)}}}, nil
	})
	if !errors.Is(err, oncemill.ErrClaimLost) || published != 0 {
		t.Errorf("published %d times, and ended with %v, want ErrClaimLost alone", published, err)
	}
}
