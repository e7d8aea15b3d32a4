package oncewatermill_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func TestChain_PoisonQueueIgnoresNestedGuardsErrors(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: time.Second})
		poisoned := &flaky{fails: 1 << 30}
		mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(poisoned, "poison"), oncewatermill.Guarded(p))
		if err != nil {
			t.Fatal(err)
		}
		h := mws[0](mws[1](func(*message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("refund: %w", &oncemill.Error{Result: oncemill.Result{Status: oncemill.StatusDone}})
		}))
		_, err = h(order("o1"))
		answertest.Want(t, err, oncemill.StatusRetry)
		if poisoned.fails != 1<<30 {
			t.Error("a message that is to be retried was poisoned")
		}
	})
}

func TestChain_RefusesRetryInsideAtMostOnce(t *testing.T) {
	t.Parallel()
	p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Irreversible()})
	_, err := oncewatermill.Chain(oncewatermill.Guarded(p), oncewatermill.Retry(middleware.Retry{MaxRetries: 1, ResetContextOnRetry: true}))
	if err == nil {
		t.Error("Retry was accepted inside a guard that parks")
	}
}

func TestChain_RefusesOrdersThatLoseMessages(t *testing.T) {
	t.Parallel()
	guard := oncewatermill.Guarded(newProcessor(t, newStore(t), consumer.Config{}))
	poison := oncewatermill.PoisonQueue(&flaky{}, "poison")
	retry := oncewatermill.Retry(middleware.Retry{MaxRetries: 1})
	timeout := oncewatermill.Timeout(time.Second)
	other := oncewatermill.Other("correlation", middleware.CorrelationID)
	for _, good := range [][]oncewatermill.Step{
		{guard}, {poison, guard, retry, timeout}, {other, guard, timeout, retry}, {guard, other},
	} {
		if mws, err := oncewatermill.Chain(good...); err != nil || len(mws) != len(good) {
			t.Errorf("%v", err)
		}
	}
	for says, bad := range map[string][]oncewatermill.Step{
		"missing": {}, "twice": {guard, guard}, "PoisonQueue stands inside": {guard, poison}, "Retry stands outside": {retry, guard},
		"Timeout stands outside": {timeout, guard},
		"want more than 0":       {guard, oncewatermill.Timeout(0)}, "no middleware": {guard, oncewatermill.Other("nil", nil)},
	} {
		_, err := oncewatermill.Chain(bad...)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want it to say %q", err, says)
		}
	}
	buries := oncewatermill.Guarded(newProcessor(t, newStore(t), consumer.Config{DeadLetters: &deadLetters{}, DeadLetterTopic: "dead"}))
	_, err := oncewatermill.Chain(poison, buries)
	if err == nil || !strings.Contains(err.Error(), "consumer.Config.DeadLetters") {
		t.Error(err)
	}
	for name, step := range map[string]oncewatermill.Step{"guard": oncewatermill.Guarded(nil), "poison": oncewatermill.PoisonQueue((*flaky)(nil), "poison")} {
		if _, err := oncewatermill.Chain(step, guard); err == nil {
			t.Errorf("%s without what it needs passed", name)
		}
	}
	if _, err := oncewatermill.Chain(guard, oncewatermill.PoisonQueue(&flaky{}, "")); err == nil {
		t.Error("a poison queue without a topic passed")
	}
}

func TestChain_EachTryHasItsOwnTimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		mws, err := oncewatermill.Chain(
			oncewatermill.Guarded(newProcessor(t, newStore(t), consumer.Config{})),
			oncewatermill.Retry(middleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}),
			oncewatermill.Timeout(time.Second),
		)
		if err != nil {
			t.Fatal(err)
		}
		tries := 0
		handle := message.HandlerFunc(func(m *message.Message) ([]*message.Message, error) {
			if tries++; tries == 1 {
				<-m.Context().Done()
			}
			return nil, m.Context().Err()
		})
		for i := len(mws) - 1; i >= 0; i-- {
			handle = mws[i](handle)
		}
		m := order("o1")
		if _, err := handle(m); err != nil || tries != 2 {
			t.Errorf("%d tries: %v", tries, err)
		}
		m.Ack()
	})
}

func TestChain_PoisonQueueGetsFinalFailuresOnly(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: time.Second})
		h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
			if msg.UUID == "poison" {
				return nil, oncemill.Permanent(errors.New("bad"))
			}
			if run < 4 {
				return nil, errors.New("try again")
			}
			return nil, nil
		}}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			mws, err := oncewatermill.Chain(
				oncewatermill.PoisonQueue(ps, "poison"), oncewatermill.Guarded(p),
				oncewatermill.Retry(middleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}),
			)
			if err != nil {
				t.Fatal(err)
			}
			r.AddMiddleware(mws...)
			r.AddConsumerHandler("charge", "orders", ps, func(msg *message.Message) error {
				_, err := h.handle(msg)
				return err
			})
		})
		for _, id := range []string{"good", "poison"} {
			if err := r.pubsub.Publish("orders", order(id)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if got := r.received(t, "poison"); len(got) != 1 || got[0].UUID != "poison" {
			t.Errorf("poison queue got %v", got)
		}
		r.stop(t, p)
	})
}

func TestChain_PoisonedMessageHoldsUpNoOtherUnlessItCannotBePublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		poison := &flaky{fails: 2}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			poison.Publisher = ps
			mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(poison, "poison"), oncewatermill.Guarded(p))
			if err != nil {
				t.Fatal(err)
			}
			r.AddMiddleware(mws...)
			r.AddConsumerHandler("charge", "orders", ps, func(*message.Message) error { return oncemill.Permanent(errors.New("declined")) })
		})
		began := time.Now()
		poisonedAfter := func(id string) time.Duration {
			if err := r.pubsub.Publish("orders", order(id)); err != nil {
				t.Fatal(err)
			}
			for !slices.ContainsFunc(r.received(t, "poison"), func(m *message.Message) bool { return m.UUID == id }) {
				time.Sleep(100 * time.Millisecond)
			}
			defer func() { began = time.Now() }()
			return time.Since(began)
		}
		if after := poisonedAfter("o1"); after < 2*time.Second || after > time.Minute {
			t.Errorf("after %v of a poison queue that failed twice, want pauses in between", after)
		}
		if after := poisonedAfter("o2"); after > time.Second {
			t.Errorf("after %v, want it to hold up nothing", after)
		}
		r.stop(t, p)
	})
}

// The middleware has told the source to end the message, but what should have taken it did not.
func TestPoisonQueue_ThatCannotPublishDoesNotLoseTheMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s, poison := newSource(p, delivery("a")), &brokenOnce{}
		mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(poison, "poison"), oncewatermill.Guarded(p))
		if err != nil {
			t.Fatal(err)
		}
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		r.AddMiddleware(mws...)
		r.AddConsumerHandler("charge", "orders", subscriber(t, s), func(*message.Message) error {
			return oncemill.Permanent(errors.New("never"))
		})
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-r.Running()
		<-time.After(time.Minute)
		s.want(t, consumer.RetryLater, consumer.Ack)
		if poison.calls != 2 {
			t.Errorf("%d calls of the poison queue's publisher, want 2", poison.calls)
		}
		if err := errors.Join(r.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
}

// brokenOnce is a publisher that fails the first time.
type brokenOnce struct{ calls int }

func (b *brokenOnce) Publish(string, ...*message.Message) error {
	if b.calls++; b.calls == 1 {
		return errors.New("broker is away")
	}
	return nil
}

func (*brokenOnce) Close() error { return nil }

// A second try in the same transaction commits what the first one had written as well, which is why it is refused.
func TestChain_RefusesRetryInsideAnInbox(t *testing.T) {
	t.Parallel()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, made := db.ExecContext(t.Context(), "CREATE TABLE ledger (id TEXT)")
	if err := errors.Join(made, store.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	p := newProcessor(t, store.Inbox(), consumer.Config{})
	h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
		if _, err := sqlitestore.Tx(msg.Context()).ExecContext(context.Background(), "INSERT INTO ledger VALUES (?)", msg.UUID); err != nil {
			return nil, err
		}
		if run == 1 {
			return nil, errors.New("no answer")
		}
		return nil, nil
	}}
	retry := middleware.Retry{MaxRetries: 1}
	if _, err := oncewatermill.Middleware(p)(retry.Middleware(h.handle))(order("o1")); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM ledger").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v: if it is one, there is no reason to refuse it any more", rows, err)
	}
	_, err = oncewatermill.Chain(oncewatermill.Guarded(p), oncewatermill.Retry(retry))
	if err == nil || !strings.Contains(err.Error(), "inbox") {
		t.Error(err)
	}
}
