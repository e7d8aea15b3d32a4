package natsjs_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A batchRig is a rig with a batch worker, and what its handler got.
type batchRig struct {
	*rig
	config natsjs.BatchConfig

	mu       sync.Mutex
	batches  [][]string
	attempts map[string][]int
}

func newBatchRig(t *testing.T) *batchRig {
	return &batchRig{rig: newRig(t, jetstream.ConsumerConfig{}), attempts: map[string][]int{}}
}

// worker makes a batch worker whose handler counts what it does.
func (r *batchRig) worker(handle func(ctx context.Context, ids []string) []error) *natsjs.Worker {
	r.t.Helper()
	r.config.Handler, r.config.Logger = "charge", slog.New(slog.NewTextHandler(&r.log, nil))
	w, err := natsjs.NewBatchWorker(r.processor(), r.js, r.cons,
		func(ctx context.Context, msgs []jetstream.Msg) []error {
			var ids []string
			r.mu.Lock()
			for i, run := range oncemill.RunsFromContext(ctx) {
				id := msgs[i].Headers().Get(producer.HeaderID)
				if run.Key.ID != id {
					r.t.Errorf("run %d is of %q, and its message is %q", i, run.Key.ID, id)
				}
				ids = append(ids, id)
				r.attempts[id] = append(r.attempts[id], run.Attempt)
			}
			r.batches = append(r.batches, ids)
			r.mu.Unlock()
			return handle(ctx, ids)
		}, r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

// got returns the batches so far.
func (r *batchRig) got() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.batches)
}

// record returns what the store knows of a message.
func (r *batchRig) record(id string) dedupstore.Answer {
	r.t.Helper()
	answer, err := dedupstore.ClaimOne(r.t.Context(), r.store, r.request(id, time.Minute))
	if err != nil {
		r.t.Fatal(err)
	}
	return answer
}

func (r *batchRig) request(id string, lease time.Duration) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
		Owner: "another-owner-01", Lease: lease, Retention: time.Hour, MaxAttempts: 5,
	}
}

func TestBatchWorker_BatchesOfWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.config.MaxBatch = 16
	const n = 500
	r.publish(n, oneKey)
	r.publish(n, oneKey) // duplicates
	stop := r.start(r.worker(func(context.Context, []string) []error { return nil }))
	r.acked(2 * n)
	r.stops(stop)
	seen, largest := map[string]int{}, 0
	for _, batch := range r.got() {
		largest = max(largest, len(batch))
		for _, id := range batch {
			seen[id]++
		}
	}
	wantOnce(t, seen, n)
	if largest < 2 || largest > 16 {
		t.Errorf("the largest batch had %d messages, want at most 16, and more than one", largest)
	}
}

// What a handler said of a message before its batch panicked is not said of the run that follows, whose effect is there.
func TestBatchWorker_APanicTakesBackWhatWasSaid(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.publish(2, oneKey)
	w, err := natsjs.NewBatchWorker(r.processor(), r.js, r.cons,
		func(_ context.Context, msgs []jetstream.Msg) []error {
			if len(msgs) == 2 {
				_ = msgs[0].Term()
				panic("row 17")
			}
			return nil
		}, natsjs.BatchConfig{Config: natsjs.Config{Handler: "charge"}, MaxBatch: 2, Linger: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	stop := r.start(w)
	r.acked(2)
	r.stops(stop)
	for _, id := range []string{"o0", "o1"} {
		if answer := r.record(id); answer.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%s ended as %+v, want a success", id, answer)
		}
	}
}

func TestNewBatchWorker_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	ok := func(context.Context, []jetstream.Msg) []error { return nil }
	for want, make := range map[string]func() (*natsjs.Worker, error){
		"natsjs: NewBatchWorker needs a handler": func() (*natsjs.Worker, error) {
			return natsjs.NewBatchWorker(r.processor(), r.js, r.cons, nil, natsjs.BatchConfig{})
		},
		"natsjs: BatchConfig.MaxBatch is -1, want at least 1, or zero": func() (*natsjs.Worker, error) {
			return natsjs.NewBatchWorker(r.processor(), r.js, r.cons, ok, natsjs.BatchConfig{MaxBatch: -1})
		},
		"natsjs: BatchConfig.Linger is -1ns, want at least 0": func() (*natsjs.Worker, error) {
			return natsjs.NewBatchWorker(r.processor(), r.js, r.cons, ok, natsjs.BatchConfig{Linger: -1})
		},
	} {
		if _, err := make(); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestNewBatchWorker_WarnsOfBatchesOfOne(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.worker(nil)
	if r.log.String() != "" {
		t.Errorf("logged without an inbox:\n%s", r.log.String())
	}
	r.store = storetest.NewMemoryInbox(r.store)
	r.worker(nil)
	if r.log.String() != "" {
		t.Errorf("logged over an inbox:\n%s", r.log.String())
	}
	r.policy = oncemill.Irreversible()
	r.worker(nil)
	if log := r.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "each batch has one message") {
		t.Errorf("logged:\n%s", log)
	}
}
