package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// TestInbox_AtMostOnceOutlivesTheServer kills the server while a handler runs: it must not have forgotten that it
// began.
func TestInbox_AtMostOnceOutlivesTheServer(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "fsync=on", "wal_writer_delay=10s")
	pool := server.Pool(t)
	s := newStore(t, pool, Config{})
	mustExec(t, pool, `CHECKPOINT`)
	policy := oncemill.Irreversible()
	policy.Logger, policy.Lease = slog.New(slog.DiscardHandler), 30*time.Second
	g, err := oncemill.NewGuard(s.Inbox(), policy)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	work := func(context.Context) (dedupstore.Outcome, error) {
		calls.Add(1)
		return dedupstore.Outcome{}, nil
	}
	_, _ = g.Run(t.Context(), callOf("1"), func(ctx context.Context) (dedupstore.Outcome, error) {
		server.Kill()
		server.Restart()
		until(t, "the server", func() bool { return pool.Ping(context.Background()) == nil })
		_, err := g.Run(context.Background(), callOf("1"), work) // another delivery
		if _, busy := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue); !busy {
			t.Errorf("a copy was answered %v, want it to be busy", err)
		}
		return work(ctx)
	})
	if n := calls.Load(); n != 1 {
		t.Errorf("the handler was called %d times", n)
	}
}

// TestJoin_HandlersMayWorkOnAfterTheCommit has heartbeats after the outcome.
func TestJoin_HandlersMayWorkOnAfterTheCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "first") // a guard gives a claim a sixth of its lease: not to be spent on connecting
	const lease = 6 * time.Second
	res, err := newGuard(t, s, lease).Run(t.Context(), callOf("1"),
		func(ctx context.Context) (dedupstore.Outcome, error) {
			tx := ownPgx(t, pool, "")
			err := errors.Join(tx.exec(insertEffect, "1"), tx.join(ctx, s), tx.commit())
			lasts(lease)
			return dedupstore.Outcome{}, errors.Join(err, context.Cause(ctx))
		})
	if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
		t.Errorf("the run ended with %+v, %v", res.Outcome, err)
	}
	if len(s.joined.until) != 0 {
		t.Errorf("%d owners are remembered", len(s.joined.until))
	}
}

func TestJoin_AnOutcomeOfAnotherKindIsNoRepetition(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := runOf(t, s, "1")
	tx := begin(t, pool, "")
	if err := errors.Join(s.Join(txctx.With(t.Context(), &c), tx), tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	finish := func(kind dedupstore.Kind) error {
		f := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: kind}, Retention: long}
		return dedupstore.SettleOne(t.Context(), s, c, f)
	}
	for _, kind := range []dedupstore.Kind{dedupstore.Failed, dedupstore.Unknown} {
		if err := finish(kind); !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("settled as %s after the Join: %v, want ErrClaimLost", kind, err)
		}
	}
	if err := finish(dedupstore.Succeeded); err != nil {
		t.Errorf("the repetition returned %v", err)
	}
	if a := claim(t, s, request("1"), dedupstore.Done); a.Outcome.Kind != dedupstore.Succeeded {
		t.Errorf("the outcome is %+v", a.Outcome)
	}
}

// TestJoin_MessagesOfAHandlerThatJoinedAreRefusedLoudly: no record has them, and what could not be published at once
// would be lost.
func TestJoin_MessagesOfAHandlerThatJoinedAreRefusedLoudly(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	receipt := dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts",
		Payload: []byte("1")}}}
	call := callOf("1")
	call.Publish = func(context.Context, []dedupstore.Produced) error {
		t.Error("published without a record of it")
		return nil
	}
	_, err := newGuard(t, s, 30*time.Second).Run(t.Context(), call,
		func(ctx context.Context) (dedupstore.Outcome, error) {
			tx := ownPgx(t, pool, "")
			return receipt, errors.Join(tx.exec(insertEffect, "1"), tx.join(ctx, s), tx.commit())
		})
	if _, reported := errors.AsType[*dedupstore.InvalidError](err); !reported ||
		!strings.Contains(err.Error(), "through an outbox") {
		t.Errorf("%v, want an InvalidError that says what to do", err)
	}
	wantEffects(t, pool, "1", 1)
	if a := claim(t, s, request("1"), dedupstore.Done); a.Outcome.Kind != dedupstore.Succeeded {
		t.Errorf("the outcome is %+v", a.Outcome)
	}
	if len(s.joined.until) != 0 {
		t.Errorf("%d owners are remembered", len(s.joined.until))
	}

	// A handler that rolled its Join back has settled nothing.
	call, published := callOf("2"), 0
	call.Publish = func(context.Context, []dedupstore.Produced) error {
		published++
		return nil
	}
	if _, err = newGuard(t, s, 30*time.Second).Run(t.Context(), call,
		func(ctx context.Context) (dedupstore.Outcome, error) {
			tx := ownPgx(t, pool, "")
			return receipt, errors.Join(tx.join(ctx, s), tx.rollback())
		}); err != nil || published != 1 {
		t.Errorf("after a Join that was rolled back: %v, published %d times", err, published)
	}
}

// TestJoin_ARepeatedFinishAfterAJoinThatWasRolledBackIsNoMistake has a Finish whose answer is lost: its messages are in
// the record.
func TestJoin_ARepeatedFinishAfterAJoinThatWasRolledBackIsNoMistake(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	c := runOf(t, s, "1")
	receipt := dedupstore.Outcome{Kind: dedupstore.Succeeded,
		Produced: []dedupstore.Produced{{ID: "receipt", Topic: "receipts", Payload: []byte("1")}}}
	for range 2 {
		s.joined.add(c.Owner, time.Time{}) // as it is while nobody has heard the answer
		err := dedupstore.SettleOne(t.Context(), s, c, dedupstore.Finish{Outcome: receipt, Retention: time.Hour})
		if err != nil {
			t.Fatalf("the Finish returned %v", err)
		}
	}
	if err := dedupstore.SettleOne(t.Context(), s, c, dedupstore.Published{Retention: time.Hour}); err != nil {
		t.Errorf("the publish step returned %v", err)
	}
}

func TestMigrate_ASchemaMayBeMadeByManyAtOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"] + "_shared"
	for range full(20, 3) {
		var all sync.WaitGroup
		for i := range 4 {
			table := "t" + string(rune('a'+i))
			all.Go(func() {
				if err := unmigrated(t, pool, Config{Schema: schema,
					Table: table}).Migrate(context.Background()); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				box, err := pgoutbox.New(pool, pgoutbox.Config{Schema: schema, Table: "box_" + table})
				if err == nil {
					err = box.Migrate(context.Background())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		mustExec(t, pool, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`)
	}
}

func TestInbox_SaysWhatAHandlerHasChanged(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for id, change := range map[string]string{"path": `SET LOCAL search_path = pg_catalog`,
		"role": `SET LOCAL ROLE pg_monitor`} {
		c := runOf(t, s.Inbox(), id)
		err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
			err := effect(ctx, c)
			_, changed := Tx(ctx).Exec(ctx, change)
			return success, errors.Join(err, changed)
		})
		if err == nil || !strings.Contains(err.Error(), "has the handler changed the search path") {
			t.Errorf("%s: the run returned %v", id, err)
		}
		wantEffects(t, pool, id, 0)
	}
}
