package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// answer is an answer of another guard.
func answer(status oncemill.Status, handler error) error {
	return &oncemill.Error{Result: oncemill.Result{Status: status, Wait: time.Hour, Handler: handler}}
}

// The errors of a guard that the handler used are the handler's affair: they decide nothing about its own message.
func TestProcess_NestedGuardsErrorsDoNotDecide(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, nested := range []error{
			answer(oncemill.StatusMismatch, nil), answer(oncemill.StatusDone, oncemill.Permanent(errors.New("inner"))),
			answer(oncemill.StatusLost, nil), answer(oncemill.StatusBusy, nil), oncemill.ErrClaimLost,
		} {
			var l deadLetters
			p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
			d := p.Process(t.Context(), delivery("o1"), failing(fmt.Errorf("refund: %w", nested)))
			if d.Action != consumer.RetryLater || d.Delay > time.Minute || len(l.Sent) != 0 {
				t.Errorf("handler returned a %T: %+v, %d dead letters; want an ordinary retry", nested, d, len(l.Sent))
			}
		}
	})
}

// Nor do they where the message has no ID, and its handler runs unguarded.
func TestProcess_NestedGuardsErrorsDoNotDecideInABypassEither(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, nested := range []error{
			answer(oncemill.StatusDone, oncemill.Permanent(errors.New("inner"))),
			answer(oncemill.StatusRetry, oncemill.RetryAfter(time.Hour, errors.New("inner"))),
		} {
			var l deadLetters
			p := newProcessor(t, newStore(t), consumer.Config{
				DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass},
			})
			d := p.Process(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders"}, failing(fmt.Errorf("refund: %w", nested)))
			if d.Action != consumer.RetryLater || d.Delay > time.Minute || len(l.Sent) != 0 {
				t.Errorf("handler returned a %T: %+v, %d dead letters; want an ordinary retry", nested, d, len(l.Sent))
			}
		}
	})
}

// What it wraps such an error in does decide.
func TestProcess_UncountedNestedErrorIsUncountedInABypass(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		for _, own := range []bool{true, false} {
			err := answer(oncemill.StatusRetry, oncemill.Uncounted(errors.New("inner")))
			if own {
				err = oncemill.Uncounted(fmt.Errorf("refund: %w", err))
			}
			d := p.Process(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders"}, failing(err))
			if d.Action != consumer.RetryLater || d.Result.Uncounted != own {
				t.Errorf("%v: %s, uncounted %t", err, d.Action, d.Result.Uncounted)
			}
		}
	})
}

// Brokers take no time that there is.
func TestProcess_RetryAfterMayBeAnyTimeInABypass(t *testing.T) {
	virtual(t, func(t *testing.T) {
		year := 365 * 24 * time.Hour
		for after, want := range map[time.Duration]time.Duration{math.MaxInt64: year, time.Hour: time.Hour, math.MinInt64: 0} {
			p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
			d := p.Process(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders"},
				failing(oncemill.RetryAfter(after, errors.New("not yet"))))
			if d.Action != consumer.RetryLater || d.Delay != want {
				t.Errorf("after %v: %s in %v, want %v", after, d.Action, d.Delay, want)
			}
		}
	})
}

func TestProcess_FailuresFromBeforeTheDeadLetterTopicAreDeadLettered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		before := newProcessor(t, store, consumer.Config{})
		if d := before.Process(t.Context(), delivery("o1"), failing(oncemill.Permanent(errors.New("no")))); d.Action != consumer.Reject {
			t.Fatalf("%+v", d)
		}
		l := deadLetters{Fail: errors.New("not yet")}
		after := newProcessor(t, store, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		if d := after.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.RetryLater {
			t.Errorf("%+v, want it not acked before its dead letter is", d)
		}
		l.Fail = nil
		if d := after.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.Ack {
			t.Errorf("%+v", d)
		}
		l.Only(t)
	})
}

// crashedInPublishing leaves an outcome whose publish step nobody does.
func crashedInPublishing(t *testing.T, store dedupstore.Store, o dedupstore.Outcome) {
	t.Helper()
	key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "o1"}
	a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
		Key: key, Owner: "owner-that-will-die", Lease: time.Second, Retention: time.Hour, MaxAttempts: 1,
	})
	if err == nil {
		err = dedupstore.SettleOne(t.Context(), store, a.Claim, dedupstore.Finish{Outcome: o, Retention: time.Hour})
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
}

func TestProcess_PublishStepThatItCannotDoIsLeftToOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, o := range map[string]dedupstore.Outcome{
			"dead letter": {Kind: dedupstore.Failed, Produced: []dedupstore.Produced{{ID: "d1", Topic: "dead"}}},
			"outputs":     {Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "r1", Topic: "receipts"}}},
		} {
			store := newStore(t)
			crashedInPublishing(t, store, o)
			p := newProcessor(t, store, consumer.Config{MaxWait: consumer.NoWait}) // without dead letters, without a Router
			if d := p.Process(t.Context(), delivery("o1"), failing(nil)); d.Action == consumer.Ack || d.Result.Publication != nil {
				t.Errorf("%s: %+v, want neither an ack nor a publication that nobody ends", name, d)
			}
			time.Sleep(time.Hour) // no heartbeat holds the key
			var l deadLetters
			able := newProcessor(t, store, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
			d := able.ProcessOutputs(t.Context(), delivery("o1"), nil)
			outputs := 0
			if publication := d.Result.Publication; publication != nil {
				outputs = len(publication.Messages())
				if err := publication.Done(); err != nil {
					t.Error(err)
				}
			}
			if d.Action != consumer.Ack || outputs+len(l.Sent) != 1 {
				t.Errorf("%s: %+v, %d outputs, %v; want it published", name, d, outputs, l.Sent)
			}
		}
	})
}

// panicking is a dead-letter publisher that panics.
type panicking struct{}

func (panicking) Publish(context.Context, ...producer.Message) error { panic("publisher") }

// exiting is a dead-letter publisher that ends its goroutine.
type exiting struct{}

func (exiting) Publish(context.Context, ...producer.Message) error {
	runtime.Goexit()
	return nil
}

func TestProcess_PanicOfTheDeadLetterPublisherDoesNotHoldTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{DeadLetters: panicking{}, DeadLetterTopic: "dead"})
		func() {
			defer func() { _ = recover() }() // as the Router does
			p.Process(t.Context(), delivery("o1"), failing(oncemill.Permanent(errors.New("no"))))
		}()
		time.Sleep(time.Hour)
		var l deadLetters
		p = newProcessor(t, store, consumer.Config{MaxWait: consumer.NoWait, DeadLetters: &l, DeadLetterTopic: "dead"})
		if d := p.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.Ack {
			t.Errorf("%+v, want the dead letter published", d)
		}
		l.Only(t)
	})
}

func TestProcess_PanicWithoutAnIDDoesNotEscape(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{
			MissingID: oncemill.MissingIDBypass, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}})
		d := p.Process(t.Context(), consumer.Delivery{Handler: "h", Topic: "t"}, func(context.Context) error { panic("boom") })
		as[*oncemill.PanicError](t, d.Err)
		if said := log.String(); !strings.Contains(said, "handler panicked: boom") || !strings.Contains(said, "attack_test.go") {
			t.Errorf("the log does not say where: %s", said)
		}
	})
}

func TestProcess_DeadLetterHeadersAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{
			DeadLetters: &l, DeadLetterTopic: "dead",
			Fingerprint: func([]byte) (dedupstore.Fingerprint, error) {
				return dedupstore.Fingerprint{}, errors.New(strings.Repeat("x", 1<<20))
			},
		})
		p.Process(t.Context(), delivery("o1"), failing(nil))
		if n := len(l.Only(t).Header[producer.HeaderReason]); n > dedupstore.MaxReason {
			t.Errorf("reason of %d bytes: a broker would refuse it for ever", n)
		}
	})
}

func TestProcess_DeadLetterOverTheLimitIsNotStored(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MaxProducedBytes: 1000}})
		d := delivery("o1")
		d.Payload = bytes.Repeat([]byte("x"), 5000)
		for range 2 {
			if got := p.Process(t.Context(), d, failing(oncemill.Permanent(errors.New("no")))); got.Action != consumer.Ack {
				t.Errorf("%+v", got)
			}
		}
		if len(l.Only(t).Payload) != 5000 {
			t.Error("the dead letter was cut")
		}
	})
}

func TestProcess_ExhaustedByCrashesIsDeadLetteredOnceForAllCopies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		store := newStore(t)
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "o1"}
		if _, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key: key, Owner: "owner-that-will-die", Lease: time.Second, Retention: time.Hour, MaxAttempts: 1,
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p := newProcessor(t, store, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MaxAttempts: 1}})
		for range 5 {
			if d := p.Process(t.Context(), delivery("o1"), failing(errors.New("must not run"))); d.Action != consumer.Ack {
				t.Errorf("%+v", d)
			}
		}
		l.Only(t)
	})
}

// Deliveries that share a WaitLimit wait for busy keys as many as it allows; the others come back at once.
func TestProcess_WaitsAreBoundedInNumber(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: time.Minute})
		release := make(chan struct{})
		var work sync.WaitGroup
		d := delivery("busy")
		d.Handler, d.WaitLimit = "charge", oncemill.NewWaitLimit(3)
		work.Go(func() {
			p.Process(t.Context(), d, func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		var mu sync.Mutex
		var back, acked int
		for range 10 {
			work.Go(func() {
				decision := p.Process(t.Context(), d, func(context.Context) error { t.Error("the handler ran twice"); return nil })
				mu.Lock()
				defer mu.Unlock()
				switch decision.Action {
				case consumer.RetryLater:
					back++
				case consumer.Ack:
					acked++
				}
			})
		}
		synctest.Wait()
		if back != 7 {
			t.Errorf("%d deliveries came back at once, want 7", back)
		}
		close(release)
		work.Wait()
		if acked != 3 {
			t.Errorf("%d deliveries held until the outcome, want 3", acked)
		}
		if decision := p.Process(t.Context(), d, nil); decision.Action != consumer.Ack {
			t.Errorf("decision %v for a duplicate", decision)
		}
	})
}
