package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// After one kill all that was in flight comes again, and takes hardly longer than the first time with handlers of 30 ms:
// it runs side by side. Of handlers that do nothing the log has the times: a takeover costs Redis more than a first claim.
func TestJetStream_RedeliveredMessagesAreAboutAsQuickAsFreshOnes(t *testing.T) {
	if !proof {
		t.Skip("it measures: set ONCEMILL_PROOF=1")
	}
	for name, c := range map[string]struct {
		batch int
		work  time.Duration
	}{
		"worker":                {0, 30 * time.Millisecond},
		"batch worker":          {64, 30 * time.Millisecond},
		"worker, no work":       {},
		"batch worker, no work": {64, 0},
	} {
		t.Run(name, func(t *testing.T) {
			const rounds = 3
			times := map[string][]time.Duration{}
			for range rounds {
				for what, took := range redeliveries(t, c.batch, c.work) {
					times[what] = append(times[what], took)
				}
			}
			for what := range times {
				slices.Sort(times[what])
				t.Logf("%s: %v", what, times[what])
			}
			fresh, killed := times["fresh"][rounds/2], times["killed"][rounds/2]
			if ratio := float64(killed) / float64(fresh); c.work > 0 && ratio > 1.3 {
				t.Errorf("5,000 messages take %v after a kill, and %v the first time", killed, fresh)
			} else {
				t.Logf("after a kill %.2f times as long", ratio)
			}
		})
	}
}

// redeliveries returns how long 5,000 messages of each kind take.
func redeliveries(t *testing.T, batch int, each time.Duration) map[string]time.Duration {
	t.Helper()
	const n, lease = 5000, 2 * time.Second
	js := natstest.Start(t).JetStream()
	store, err := redisstore.New(client(t, redistest.Start(t).Addr), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	createStream(t, js, jetstream.StreamConfig{Name: ordersStream, Subjects: []string{ordersStream}, MaxAge: time.Hour})
	took := map[string]time.Duration{}
	for _, what := range []string{"fresh", "killed", "failed"} {
		cons := natstest.Ask(t, what, func(ctx context.Context) (jetstream.Consumer, error) {
			return js.CreateConsumer(ctx, ordersStream, jetstream.ConsumerConfig{
				Durable: what, AckPolicy: jetstream.AckExplicitPolicy, AckWait: lease, MaxAckPending: 2 * n,
				DeliverPolicy: jetstream.DeliverNewPolicy,
			})
		})
		messages := make([]producer.Message, n)
		for i := range messages {
			id := fmt.Sprintf("%s-%d-%d", what, i, rand.Uint64())
			messages[i] = producer.Message{ID: id, Topic: ordersStream, Payload: []byte(id)}
		}
		if err := pub.Publish(t.Context(), messages...); err != nil {
			t.Fatal(err)
		}
		if what == "killed" {
			die(t, store, cons, messages, lease)
		}
		took[what] = work(t, store, js, cons, batch, each, what == "failed", n)
	}
	return took
}

// die is a process that is killed when it has begun with messages. It returns when their leases are over.
func die(t *testing.T, store dedupstore.Store, cons jetstream.Consumer, messages []producer.Message, lease time.Duration) {
	t.Helper()
	got, err := cons.Fetch(len(messages))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for range got.Messages() {
		n++
	}
	if n != len(messages) {
		t.Fatalf("%d of %d messages came", n, len(messages))
	}
	requests := make([]dedupstore.Request, len(messages))
	for i, m := range messages {
		requests[i] = dedupstore.Request{
			Key: orderKey(m.ID), Owner: fmt.Sprintf("dead-process-%016x", rand.Uint64()), Lease: lease,
			Retention: time.Hour, MaxAttempts: 10,
		}
	}
	for some := range slices.Chunk(requests, 500) {
		for _, r := range store.Claim(t.Context(), some) {
			if r.Err != nil || r.Answer.Status != dedupstore.AcquiredRun {
				t.Fatalf("%+v", r)
			}
		}
	}
	lasts(lease + 100*time.Millisecond)
}

// work handles messages, and returns how long that took; if each fails first, from when they are due again.
func work(
	t *testing.T, store dedupstore.Store, js jetstream.JetStream, cons jetstream.Consumer, batch int, each time.Duration,
	fails bool, n int,
) time.Duration {
	t.Helper()
	const pause = 5 * time.Second
	once, err := consumer.New(store, consumer.Config{Group: "billing", Policy: oncemill.Policy{Lease: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	handle := func(r oncemill.Run) error {
		if fails && r.Attempt == 1 {
			return oncemill.RetryAfter(pause, fmt.Errorf("not yet"))
		}
		return nil
	}
	config := natsjs.Config{Handler: "charge", MaxInFlight: 256}
	w, err := natsjs.NewWorker(once, js, cons, func(ctx context.Context, _ jetstream.Msg) error {
		lasts(each)
		return handle(oncemill.FromContext(ctx))
	}, config)
	if batch > 0 {
		w, err = natsjs.NewBatchWorker(once, js, cons, func(ctx context.Context, msgs []jetstream.Msg) []error {
			lasts(each)
			errs := make([]error, len(msgs))
			for i, r := range oncemill.RunsFromContext(ctx) {
				errs[i] = handle(r)
			}
			return errs
		}, natsjs.BatchConfig{Config: config, MaxBatch: batch})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	began, ended := time.Now(), make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	until(t, "all acks", func() bool {
		lasts(2 * time.Millisecond)
		info := natstest.Ask(t, "the consumer", func(ctx context.Context) (*jetstream.ConsumerInfo, error) { return cons.Info(ctx) })
		return info.NumPending == 0 && info.NumAckPending == 0
	})
	took := time.Since(began)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if fails {
		took -= pause
	}
	return took
}
