package sim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// This file alone knows the API that is driven: rewrite it when that changes.

const (
	tenant, group, handler = "acme", "billing", "charge"
	topic, deadTopic       = "orders", "dead"
)

func keyOf(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: tenant, Group: group, Handler: handler, ID: id}
}

// A version is how a process is configured: a deployment has two at once.
type version struct {
	lease, window, maxWait, backoff time.Duration
	attempts, produced              int
	park, open                      bool
}

// An engine is what a process has of the production code.
type engine struct {
	processor *consumer.Processor
	guard     *oncemill.Guard // for Do
}

var silent = slog.New(slog.DiscardHandler)

func newEngine(store dedupstore.Store, v version, dead producer.Publisher) *engine {
	policy := oncemill.Policy{
		Lease: v.lease, Window: v.window, MaxAttempts: v.attempts, MaxProducedBytes: v.produced, Logger: silent,
		Backoff: oncemill.Backoff{Min: v.backoff, Max: 20 * v.backoff},
	}
	if v.park {
		policy.ExpiredLease = oncemill.Park
	}
	if v.open {
		policy.StoreDown = oncemill.FailOpen
	}
	e := &engine{}
	var err, also error
	e.processor, err = consumer.New(store, consumer.Config{
		Tenant: tenant, Group: group, Policy: policy, MaxWait: v.maxWait, DeadLetters: dead, DeadLetterTopic: deadTopic,
	})
	e.guard, also = oncemill.NewGuard(store, policy)
	if err := errors.Join(err, also); err != nil {
		panic(err)
	}
	return e
}

// A run is what a handler is told.
type run struct {
	id      string
	fence   uint64
	attempt int
}

func runOf(r oncemill.Run) run { return run{r.Key.ID, r.Fence, r.Attempt} }

// A decision is what to do with a delivery.
type decision struct {
	action   string
	delay    time.Duration
	err      error
	bypassed bool
	mismatch bool
	fence    uint64 // of the outcome
	publish  []producer.Message
	done     func() error
	abandon  func() time.Duration
}

func decisionOf(d consumer.Decision) decision {
	made := decision{
		action: string(d.Action), delay: d.Delay, err: d.Err, bypassed: d.Result.Bypassed, fence: d.Result.Fence,
		mismatch: d.Result.Status == oncemill.StatusMismatch,
	}
	if p := d.Result.Publication; p != nil {
		made.done, made.abandon = p.Done, p.Abandon
		for _, m := range p.Messages() {
			made.publish = append(made.publish, producer.Message{
				ID: m.ID, Topic: m.Topic, Key: m.Key, Header: m.Header, Payload: m.Payload,
			})
		}
	}
	return made
}

func deliveryOf(m producer.Message, count int) consumer.Delivery {
	return consumer.Delivery{
		Handler: handler, Topic: topic, Count: count,
		Header: m.Header.With(producer.HeaderID, m.ID), Payload: m.Payload,
	}
}

// one processes a message for a handler without outputs.
func (e *engine) one(ctx context.Context, m producer.Message, count int,
	handle func(context.Context, run) error, done func(decision)) {
	e.processor.Start(ctx, deliveryOf(m, count), func(ctx context.Context) error {
		return handle(ctx, runOf(oncemill.FromContext(ctx)))
	}, func(d consumer.Decision) { done(decisionOf(d)) })
}

// outputs processes a message for a handler with outputs.
func (e *engine) outputs(ctx context.Context, m producer.Message, count int,
	handle func(context.Context, run) ([]producer.Message, error), done func(decision)) {
	go func() {
		done(decisionOf(e.processor.ProcessOutputs(ctx, deliveryOf(m, count),
			func(ctx context.Context) ([]producer.Message, error) {
				return handle(ctx, runOf(oncemill.FromContext(ctx)))
			})))
	}()
}

// together processes messages for a handler of batches.
func (e *engine) together(ctx context.Context, messages []producer.Message, counts []int, contexts []context.Context,
	handle func(context.Context, []run) []error, done func(int, decision)) {
	deliveries := make([]consumer.Delivery, len(messages))
	for i, m := range messages {
		deliveries[i] = deliveryOf(m, counts[i])
	}
	go e.processor.StartBatch(ctx, deliveries, contexts, func(ctx context.Context, _ []int) []error {
		var runs []run
		for _, r := range oncemill.RunsFromContext(ctx) {
			runs = append(runs, runOf(r))
		}
		return handle(ctx, runs)
	}, func(i int, d consumer.Decision) { done(i, decisionOf(d)) })
}

// do makes a call without a broker. A decision to ack means that there is an outcome.
func (e *engine) do(ctx context.Context, m producer.Message, maxWait time.Duration,
	handle func(context.Context, run) error, done func(decision, string)) {
	call := oncemill.Call{Key: keyOf(m.ID), MaxWait: maxWait}
	go func() {
		bypassed := false
		value, err := oncemill.Do(ctx, e.guard, call, func(ctx context.Context) (string, error) {
			r := runOf(oncemill.FromContext(ctx))
			bypassed = r.fence == 0
			return resultOf(r.fence), handle(ctx, r)
		})
		d := decision{action: "retry", delay: 50 * time.Millisecond, err: err, bypassed: bypassed}
		answer, refused := errors.AsType[*oncemill.Error](err)
		switch {
		case err == nil || errors.Is(err, oncemill.ErrNoResult) || refused && answer.Status == oncemill.StatusDone:
			d.action = "ack"
		case refused && answer.Wait > 0:
			d.delay = answer.Wait
		}
		done(d, value)
	}()
}

// newRelay makes a relay: what runs it, and what wakes it.
func newRelay(store outbox.Store, publisher producer.Publisher) (run func(context.Context), wake func()) {
	relay, err := outbox.NewRelay(store, publisher, outbox.Config{
		BatchSize: 8, PublishTimeout: 3 * time.Second, Lease: 10 * time.Second, MaxAttempts: relayAttempts,
		Backoff:   oncemill.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second},
		Retention: time.Hour, Logger: silent,
	})
	if err != nil {
		panic(err)
	}
	return func(ctx context.Context) { _ = relay.Run(ctx) }, relay.Wake
}

// close ends the engine, after its last call.
func (e *engine) close() {
	_ = e.processor.Close(context.Background())
	e.guard.Close()
}

// marked makes an error of a kind.
func marked(kind string) error {
	err := errors.New(kind)
	switch kind {
	case "permanent":
		return oncemill.Permanent(err)
	case "no effect":
		return oncemill.NoEffect(err)
	case "uncounted":
		return oncemill.Uncounted(err)
	case "retry after":
		return oncemill.RetryAfter(700*time.Millisecond, err)
	}
	return err
}

// rerunOf is the message that asks for a rerun of a dead letter.
func rerunOf(dead producer.Message) (producer.Message, error) { return consumer.Rerun(dead) }
