package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// effects counts what handlers did, by the number of the message.
type effects struct {
	mu    sync.Mutex
	times map[int]int
}

func (e *effects) add(number int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.times[number]++
}

// once returns an error unless each message had one effect.
func (e *effects) once(messages int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := range messages {
		if e.times[n] != 1 {
			return fmt.Errorf("message %d has %d effects", n, e.times[n])
		}
	}
	return nil
}

func (e *effects) atLeast(messages int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.times) < messages {
		return fmt.Errorf("%d of %d messages have an effect", len(e.times), messages)
	}
	return nil
}

// Services go from other ways to Oncemill in the steps of docs/from, while messages flow. Each message has one effect.
func TestSwitch_OneEffectOfEachMessage(t *testing.T) {
	kit.Need(t, "initdb")
	r, err := startRig(t.Context(), &kit.Bench{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}()
	t.Run("from the Forwarder to an outbox", r.fromForwarder)
	t.Run("River's jobs become guarded", r.guardJobs)
}

func await(t *testing.T, step func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := testserver.Until(ctx, step); err != nil {
		t.Fatal(err)
	}
}

// fromForwarder takes the steps of docs/from/outbox.md. Requests around the switch are repeated and write into both.
func (r *rig) fromForwarder(t *testing.T) {
	const messages, begins, ends = 300, 140, 160 // numbers from begins to ends are written twice
	old, fresh := &watermillForwarder{pool: r.pool}, r.ours(byDefault)
	stream, err := r.freshStream(t.Context())
	if err := errors.Join(err, old.install(t.Context()), fresh.install(t.Context())); err != nil {
		t.Fatal(err)
	}
	done := &effects{times: map[int]int{}}
	guardedConsumer(t, r, stream, done)
	conn, err := nats.Connect(r.nats.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	// The ID is that of the order in both.
	id := func(n int) string { return producer.DeriveID("shop/orders", strconv.Itoa(n)) }
	stopOld, err := old.relay(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	for n := range ends {
		if err := old.publisher.Publish(topic, message.NewMessage(id(n), payload(n))); err != nil {
			t.Fatal(err)
		}
	}
	stopNew, err := fresh.relay(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	for n := begins; n < messages; n++ {
		err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
			return fresh.box.In(tx).Publish(t.Context(), producer.Message{ID: id(n), Topic: topic, Payload: payload(n)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() error { return arrived(t.Context(), stream, messages+ends-begins) })
	if err := errors.Join(stopOld(), stopNew()); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return kit.Acknowledged(t.Context(), stream, switchDurable) })
	if err := done.once(messages); err != nil {
		t.Error(err)
	}
}

const switchDurable = "billing"

// guardedConsumer handles a stream until the test ends.
func guardedConsumer(t *testing.T, r *rig, stream jetstream.Stream, done *effects) {
	t.Helper()
	js, err := jetstream.New(r.nats.Admin)
	if err != nil {
		t.Fatal(err)
	}
	cons, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: switchDurable, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once, err := consumer.New(store, consumer.Config{Group: "billing", Policy: oncemill.Policy{Logger: riverLogger}})
	if err != nil {
		t.Fatal(err)
	}
	charge := func(_ context.Context, m jetstream.Msg) error {
		n, err := numberOf(m.Data())
		if err == nil {
			done.add(n)
		}
		return oncemill.Permanent(err)
	}
	w, err := natsjs.NewWorker(once, js, cons, charge, natsjs.Config{Handler: "charge", Logger: riverLogger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// ChargeArgs are those of a River job that charges a card.
type ChargeArgs struct {
	Order int `json:"order"`
}

// Kind is the kind of these jobs.
func (ChargeArgs) Kind() string { return "charge" }

// guardJobs takes the steps of docs/from/river.md. Jobs are inserted and inserted again.
func (r *rig) guardJobs(t *testing.T) {
	if err := (&riverQueue{pool: r.pool}).install(t.Context()); err != nil {
		t.Fatal(err)
	}
	const orders = 200
	done, old := &effects{times: map[int]int{}}, &effects{times: map[int]int{}}
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.Policy{Logger: riverLogger})
	if err != nil {
		t.Fatal(err)
	}
	unguarded := func(_ context.Context, task *river.Job[ChargeArgs]) error {
		done.add(task.Args.Order)
		old.add(task.Args.Order)
		return nil
	}
	guarded := func(ctx context.Context, task *river.Job[ChargeArgs]) error {
		call := oncemill.Call{Key: dedupstore.Key{
			Tenant: "shop", Group: "billing", Handler: "charge", ID: strconv.Itoa(task.Args.Order),
		}}
		_, err := oncemill.Do(ctx, guard, call, func(context.Context) (struct{}, error) {
			done.add(task.Args.Order)
			return struct{}{}, nil
		})
		var e *oncemill.Error
		if errors.As(err, &e) && (e.Status == oncemill.StatusBusy || e.Status == oncemill.StatusNotDue) {
			return river.JobSnooze(e.Wait)
		}
		return err
	}

	// Jobs are unique by their arguments, completed ones too: that is what keeps copies of the old jobs away.
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	insert := func(from, to int, opts *river.InsertOpts) {
		c, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{Logger: riverLogger})
		if err != nil {
			t.Fatal(err)
		}
		for n := from; n < to; n++ {
			if _, err := c.Insert(t.Context(), ChargeArgs{n}, opts); err != nil {
				t.Fatal(err)
			}
		}
	}
	insert(0, orders/2, unique)
	stopOld := work(t, r, unguarded)
	await(t, func() error { return old.atLeast(orders / 4) })
	stopNew := work(t, r, guarded) // rolling: River gives each job to one of both
	insert(0, orders/2, unique)
	stopOld()
	insert(0, orders, unique)
	await(t, func() error { return done.atLeast(orders) })

	// What the guard has done it answers, though the jobs are not unique any more.
	insert(orders/2, orders, nil)
	await(t, func() error {
		n, err := (&riverQueue{pool: r.pool}).left(t.Context())
		if err == nil && n > 0 {
			err = fmt.Errorf("%d jobs are not completed", n)
		}
		return err
	})
	stopNew()
	if err := done.once(orders); err != nil {
		t.Error(err)
	}
}

// work runs jobs until stop.
func work(t *testing.T, r *rig, f func(context.Context, *river.Job[ChargeArgs]) error) (stop func()) {
	t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(f))
	c, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		Workers: workers, Logger: riverLogger,
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
	})
	if err == nil {
		err = c.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}
