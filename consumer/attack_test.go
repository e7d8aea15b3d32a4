package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// The errors of a guard that the handler used are the handler's affair: they decide nothing about its own message.
func TestProcess_NestedGuardsErrorsDoNotDecide(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, nested := range []error{
			&oncemill.MismatchError{}, &oncemill.FailedError{Err: oncemill.Permanent(errors.New("inner"))},
			&oncemill.ClaimLostError{}, &oncemill.BusyError{Wait: time.Hour}, oncemill.ErrClaimLost,
		} {
			var l letters
			p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
			d := p.Process(t.Context(), delivery("o1"), failing(fmt.Errorf("refund: %w", nested)))
			if d.Action != consumer.RetryLater || d.Delay > time.Minute || len(l.sent) != 0 {
				t.Errorf("handler returned a %T: %+v, %d dead letters; want an ordinary retry", nested, d, len(l.sent))
			}
		}
	})
}

// Nor do they where the message has no ID, and its handler runs unguarded.
func TestProcess_NestedGuardsErrorsDoNotDecideInABypassEither(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, nested := range []error{
			&oncemill.FailedError{Err: oncemill.Permanent(errors.New("inner"))},
			&oncemill.RetryError{Err: oncemill.RetryAfter(time.Hour, errors.New("inner"))},
		} {
			var l letters
			p := newProcessor(t, newStore(t), consumer.Config{
				DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass},
			})
			d := p.Process(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders"}, failing(fmt.Errorf("refund: %w", nested)))
			if d.Action != consumer.RetryLater || d.Delay > time.Minute || len(l.sent) != 0 {
				t.Errorf("handler returned a %T: %+v, %d dead letters; want an ordinary retry", nested, d, len(l.sent))
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
			d := p.Process(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders"}, failing(&oncemill.RetryAfterError{Delay: after, Err: errors.New("not yet")}))
			if d.Action != consumer.RetryLater || d.Delay != want {
				t.Errorf("after %v: %s in %v, want %v", after, d.Action, d.Delay, want)
			}
		}
	})
}

func TestChain_PoisonQueueIgnoresNestedGuardsErrors(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge", Hold: time.Second})
		poisoned := &flaky{fails: 1 << 30}
		mws, err := consumer.Chain(consumer.PoisonQueue(poisoned, "poison"), consumer.Guarded(p))
		if err != nil {
			t.Fatal(err)
		}
		h := mws[0](mws[1](func(*message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("refund: %w", &oncemill.FailedError{})
		}))
		_, err = h(order("o1"))
		as[*oncemill.RetryError](t, err)
		if poisoned.fails != 1<<30 {
			t.Error("a message that is to be retried was poisoned")
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
		l := letters{fail: errors.New("not yet")}
		after := newProcessor(t, store, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		if d := after.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.RetryLater {
			t.Errorf("%+v, want it not acked before its dead letter is", d)
		}
		l.fail = nil
		if d := after.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.Ack {
			t.Errorf("%+v", d)
		}
		l.only(t)
	})
}

// crashedInPublishing leaves an outcome whose publish step nobody does.
func crashedInPublishing(t *testing.T, store dedupstore.Store, o dedupstore.Outcome) {
	t.Helper()
	key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "o1"}
	a, err := store.Claim(t.Context(), dedupstore.Request{Key: key, Owner: "owner-that-will-die", Lease: time.Second, Retention: time.Hour, MaxAttempts: 1})
	if err == nil {
		err = store.Settle(t.Context(), a.Claim, dedupstore.Finish{Outcome: o, Retention: time.Hour})
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
			p := newProcessor(t, store, consumer.Config{Hold: consumer.NoHold}) // without dead letters, without a Router
			if d := p.Process(t.Context(), delivery("o1"), failing(nil)); d.Action == consumer.Ack || d.Result.Publication != nil {
				t.Errorf("%s: %+v, want neither an ack nor a publication that nobody ends", name, d)
			}
			time.Sleep(time.Hour) // no heartbeat holds the key
			var l letters
			able := newProcessor(t, store, consumer.Config{Handler: "charge", DeadLetters: &l, DeadLetterTopic: "dead"})
			msg := order("o1")
			outputs, err := able.Middleware(nil)(msg)
			msg.Ack()
			if err != nil || len(outputs)+len(l.sent) != 1 {
				t.Errorf("%s: %v, %v, %v; want it published", name, outputs, l.sent, err)
			}
			synctest.Wait()
		}
	})
}

// panicking is a dead-letter publisher that panics.
type panicking struct{}

func (panicking) Publish(context.Context, ...producer.Message) error { panic("publisher") }

func TestProcess_PanicOfTheDeadLetterPublisherDoesNotHoldTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{DeadLetters: panicking{}, DeadLetterTopic: "dead"})
		func() {
			defer func() { _ = recover() }() // as the Router does
			p.Process(t.Context(), delivery("o1"), failing(oncemill.Permanent(errors.New("no"))))
		}()
		time.Sleep(time.Hour)
		var l letters
		p = newProcessor(t, store, consumer.Config{Hold: consumer.NoHold, DeadLetters: &l, DeadLetterTopic: "dead"})
		if d := p.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.Ack {
			t.Errorf("%+v, want the dead letter published", d)
		}
		l.only(t)
	})
}

func TestMiddleware_InputReturnedInShadowIsAsTheHandlerLeftIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]consumer.Config{
			"shadow": {Handler: "h", Policy: oncemill.Policy{Shadow: true}},
			"bypass": {Handler: "h", Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}},
		} {
			p := newProcessor(t, newStore(t), c)
			msg := message.NewMessage("", message.Payload("in"))
			outputs, err := p.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				msg.Payload = message.Payload("out")
				return []*message.Message{msg}, nil
			})(msg)
			if err != nil || len(outputs) != 1 || string(outputs[0].Payload) != "out" || string(msg.Payload) != "in" {
				t.Errorf("%s: %v, %v", name, outputs, err)
			}
		}
	})
}

func TestMiddleware_ContextOfABypassedRunDoesNotBypassTheNext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		bypass := newProcessor(t, newStore(t), consumer.Config{Handler: "first", Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		var kept []context.Context
		if _, err := bypass.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			kept = append(kept, msg.Context())
			return nil, nil
		})(message.NewMessage("", nil)); err != nil {
			t.Fatal(err)
		}
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "second"})
		msg := order("o1")
		msg.SetContext(kept[0]) // brokers in memory can preserve it
		outputs, err := p.Middleware(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		})(msg)
		msg.Ack()
		if err != nil || len(outputs) != 1 || outputs[0].UUID == "" {
			t.Errorf("%v, %v; want a recorded output", outputs, err)
		}
	})
}

func TestMiddleware_PreservedContextIsNotASecondGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge", Policy: oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Millisecond}}})
		var kept []context.Context
		h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
			kept = append(kept, context.WithoutCancel(msg.Context()))
			if run == 1 {
				return nil, errors.New("again")
			}
			return nil, nil
		}}
		if _, err := p.Middleware(h.handle)(order("o1")); err == nil {
			t.Fatal("no error")
		}
		again := order("o1")
		again.SetContext(kept[0])
		if _, err := p.Middleware(h.handle)(again); err != nil {
			t.Errorf("requeued with its context: %v", err)
		}
	})
}

func TestMiddleware_OutputThatCannotBeStampedDoesNotRepeatTheEffect(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge", Hold: consumer.NoHold})
		h := handler{then: func(*message.Message, int) ([]*message.Message, error) { return []*message.Message{nil}, nil }}
		for range 3 {
			_, err := p.Middleware(h.handle)(order("o1"))
			if e := as[*oncemill.FailedError](t, err); !strings.Contains(e.Outcome.Reason, "output 0 is nil") {
				t.Errorf("%v", e)
			}
			time.Sleep(time.Hour)
		}
		h.want(t, 1)
	})
}

func TestMiddleware_TwoOutputsWithOneIDAreTwoMessages(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge"})
		out := func() *message.Message {
			m := message.NewMessage("", nil)
			m.Metadata.Set(producer.HeaderID, "mine")
			return m
		}
		msg := order("o1")
		got, err := p.Middleware(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{out(), out()}, nil
		})(msg)
		msg.Ack()
		if err != nil || len(got) != 2 || got[0].UUID != "mine" || got[1].UUID == "mine" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestMiddleware_LostClaimIsNotAnAckAndNotAHotLoop(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, lossy{newStore(t)}, consumer.Config{Handler: "charge"})
		start := time.Now()
		_, err := p.Middleware((&handler{}).handle)(order("o1"))
		as[*oncemill.ClaimLostError](t, err)
		if took := time.Since(start); took < time.Second {
			t.Errorf("nacked after %v: a zombie's nak brings the next copy at once", took)
		}
	})
}

func TestMiddleware_NacksThatNoRecordSlowsDownAreDelayed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := letters{fail: errors.New("broker is down")}
		dead := newProcessor(t, newStore(t), consumer.Config{Handler: "h", DeadLetters: &l, DeadLetterTopic: "dead"})
		reject := newProcessor(t, newStore(t), consumer.Config{Handler: "h", Hold: consumer.NoHold})
		nameless := newProcessor(t, newStore(t), consumer.Config{})
		for name, p := range map[string]*consumer.Processor{"dead letter fails": dead, "rejected": reject, "no handler name": nameless} {
			start := time.Now()
			if _, err := p.Middleware((&handler{}).handle)(message.NewMessage("", nil)); err == nil {
				t.Errorf("%s: acked", name)
			}
			if took := time.Since(start); took < 500*time.Millisecond || took > 11*time.Second {
				t.Errorf("%s: nacked after %v", name, took)
			}
		}
	})
}

func TestMiddleware_OutputsAreNotCancelledWithTheRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge"})
		msg := order("o1")
		got, err := p.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessageWithContext(msg.Context(), "", nil)}, nil
		})(msg)
		msg.Ack()
		if err != nil || got[0].Context().Err() != nil {
			t.Errorf("%v, context %v", err, got[0].Context().Err())
		}
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

func TestProcess_DeadLetterIsTheMessageAsItCame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l letters
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge", DeadLetters: &l, DeadLetterTopic: "dead"})
		msg := order("o1")
		msg.Metadata["color"], msg.Metadata["size"] = "blue", "7"
		before := maps.Clone(msg.Metadata)
		if _, err := p.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			copy(msg.Payload, "XXXXX") // in place
			msg.Metadata["color"], msg.Metadata["new"] = "red", "yes"
			delete(msg.Metadata, "size")
			return nil, oncemill.Permanent(errors.New("no"))
		})(msg); err != nil {
			t.Fatal(err)
		}
		got := l.only(t)
		if string(got.Payload) != "order o1" || got.Header["color"] != "blue" || got.Header["size"] != "7" || got.Header["new"] != "" {
			t.Errorf("dead letter %q with %v", got.Payload, got.Header)
		}
		if string(msg.Payload) != "order o1" || !maps.Equal(msg.Metadata, before) {
			t.Errorf("message %q with %v", msg.Payload, msg.Metadata)
		}
	})
}

func TestProcess_DeadLetterHeadersAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l letters
		p := newProcessor(t, newStore(t), consumer.Config{
			DeadLetters: &l, DeadLetterTopic: "dead",
			Fingerprint: func([]byte) (dedupstore.Fingerprint, error) {
				return dedupstore.Fingerprint{}, errors.New(strings.Repeat("x", 1<<20))
			},
		})
		p.Process(t.Context(), delivery("o1"), failing(nil))
		if n := len(l.only(t).Header[producer.HeaderReason]); n > dedupstore.MaxReason {
			t.Errorf("reason of %d bytes: a broker would refuse it for ever", n)
		}
	})
}

func TestProcess_DeadLetterOverTheLimitIsNotStored(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l letters
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MaxProducedBytes: 1000}})
		d := delivery("o1")
		d.Payload = bytes.Repeat([]byte("x"), 5000)
		for range 2 {
			if got := p.Process(t.Context(), d, failing(oncemill.Permanent(errors.New("no")))); got.Action != consumer.Ack {
				t.Errorf("%+v", got)
			}
		}
		if len(l.only(t).Payload) != 5000 {
			t.Error("the dead letter was cut")
		}
	})
}

func TestShadow_SuppressesNothingAroundALiveGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		shadow := newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{Shadow: true}}) // and no handler name
		live := newProcessor(t, store, consumer.Config{Handler: "charge"})
		var h handler
		for range 2 {
			if _, err := shadow.Middleware(live.Middleware(h.handle))(order("o1")); err != nil {
				t.Error(err)
			}
		}
		h.want(t, 1)
	})
}

func TestChain_RefusesRetryInsideAtMostOnce(t *testing.T) {
	t.Parallel()
	p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Irreversible()})
	_, err := consumer.Chain(consumer.Guarded(p), consumer.Retry(middleware.Retry{MaxRetries: 1, ResetContextOnRetry: true}))
	as[*consumer.OrderError](t, err)
}

func TestClose_SecondCallerKeepsItsOwnDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge"})
		if _, err := p.Middleware(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		})(order("o1")); err != nil {
			t.Fatal(err)
		}
		patient := make(chan error)
		go func() { patient <- p.Close(context.Background()) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
		if err := <-patient; err != nil {
			t.Error(err)
		}
	})
}

func TestProcess_ExhaustedByCrashesIsDeadLetteredOnceForAllCopies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l letters
		store := newStore(t)
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "o1"}
		if _, err := store.Claim(t.Context(), dedupstore.Request{
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
		l.only(t)
	})
}

// Handlers give their message's metadata to outputs, and to goroutines that outlive them. What becomes of it there does
// not become of the message, which would come again as another.
func TestMiddleware_MetadataThatTheHandlerGaveAwayIsNotTheMessages(t *testing.T) {
	for name, c := range map[string]struct {
		config consumer.Config
		id     string
		err    error
	}{
		"shadow":        {config: consumer.Config{Policy: oncemill.Policy{Shadow: true}}, id: "o1"},
		"bypass":        {config: consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}}},
		"guarded":       {id: "o1"},
		"failed":        {id: "o1", err: errors.New("too slow")},
		"failed bypass": {config: consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}}, err: errors.New("too slow")},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c.config.Handler = "charge"
				p := newProcessor(t, newStore(t), c.config)
				msg := message.NewMessage("", message.Payload("order"))
				if c.id != "" {
					msg.Metadata.Set(producer.HeaderID, c.id)
				}
				var given message.Metadata
				outputs, err := p.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					given = msg.Metadata
					if c.err != nil {
						return nil, c.err
					}
					out := message.NewMessage("out", msg.Payload)
					out.Metadata = msg.Metadata
					return []*message.Message{out}, nil
				})(msg)
				if !errors.Is(err, c.err) {
					t.Fatal(err)
				}
				msg.Ack()
				given.Set(producer.HeaderID, "another")
				for _, out := range outputs { // as decorators of publishers do it
					out.Metadata.Set(producer.HeaderID, "another")
				}
				if got := msg.Metadata.Get(producer.HeaderID); got != c.id {
					t.Errorf("the message is %q now, want %q", got, c.id)
				}
			})
		})
	}
}
