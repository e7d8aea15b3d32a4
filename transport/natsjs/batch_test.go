package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
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

func TestBatchWorker_EachErrorSteersItsOwnMessage(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.config.MaxBatch, r.config.Linger = 8, time.Minute // one batch of all
	r.publish(8, oneKey)
	stop := r.start(r.worker(func(_ context.Context, ids []string) []error {
		errs := make([]error, len(ids))
		for i, id := range ids {
			switch id {
			case "o3":
				errs[i] = oncemill.Permanent(errors.New("no such account"))
			case "o5":
				if len(ids) == 8 {
					errs[i] = oncemill.RetryAfter(time.Millisecond, errors.New("try again"))
				}
			}
		}
		return errs
	}))
	until(t, "seven outcomes", func() bool { return r.info().NumAckPending <= 1 && len(r.got()) > 0 })
	r.stops(stop)
	for i := range 8 {
		a := r.record(fmt.Sprintf("o%d", i))
		switch i {
		case 3:
			if a.Outcome.Kind != dedupstore.Failed {
				t.Errorf("o3 ended as %+v, want failed", a)
			}
		case 5:
			if a.Status == dedupstore.Done {
				t.Errorf("o5 is %+v, want due for another attempt", a)
			}
		default:
			if a.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("o%d ended as %+v, want succeeded", i, a)
			}
		}
	}
	if first := r.got()[0]; len(first) != 8 {
		t.Errorf("the first batch is %v, want all", first)
	}
}

// A poison message in a batch of 64 costs the others nothing: no attempt, no second effect of what counts as one.
func TestBatchWorker_APoisonMessageCostsNobodyElseAnAttempt(t *testing.T) {
	t.Parallel()
	for name, poison := range map[string]func(n int) []error{
		"an error for all": func(n int) []error { return []error{errors.New("syntax error in row 17")} },
		"a panic":          func(int) []error { panic("row 17") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newBatchRig(t)
			r.config.Linger = time.Minute
			r.policy.MaxAttempts = 3
			r.policy.Backoff = oncemill.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}
			r.publish(64, oneKey)
			r.config.MaxBatch = 64
			stop := r.start(r.worker(func(_ context.Context, ids []string) []error {
				if slices.Contains(ids, "o17") {
					return poison(len(ids))
				}
				return nil
			}))
			until(t, "the outcomes of all", func() bool { return r.info().NumAckPending <= 1 && len(r.got()) > 64 })
			r.stops(stop)
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.batches[0]) != 64 {
				t.Fatalf("the first batch has %d messages, want 64", len(r.batches[0]))
			}
			for id, attempts := range r.attempts {
				if id != "o17" && !slices.Equal(attempts, []int{1, 1}) { // in the batch that failed, and alone
					t.Errorf("%s ran as attempts %v, want twice as the first", id, attempts)
				}
			}
		})
	}
}

// A message whose last two runs ended with their processes could end this one, too, and spend the attempts of others.
func TestBatchWorker_AMessageWhoseLastRunsCrashedRunsAlone(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.config.MaxBatch, r.config.Linger = 8, 2*time.Second
	for _, owner := range []string{"dead-process-0001", "dead-process-0002"} {
		request := r.request("o4", 10*time.Millisecond)
		request.Owner = owner
		answer, err := dedupstore.ClaimOne(t.Context(), r.store, request)
		if err != nil || answer.Status != dedupstore.AcquiredRun {
			t.Fatalf("%+v, %v", answer, err)
		}
		lasts(20 * time.Millisecond)
	}
	r.publish(8, oneKey)
	stop := r.start(r.worker(func(context.Context, []string) []error { return nil }))
	r.acked(8)
	r.stops(stop)
	batches := r.got()
	if len(batches) != 2 || len(batches[0])+len(batches[1]) != 8 {
		t.Fatalf("batches of %v, want one of seven messages, and one of o4", batches)
	}
	for _, batch := range batches {
		if len(batch) > 1 && slices.Contains(batch, "o4") {
			t.Errorf("o4 is in a batch of %v, want alone", batch)
		}
	}
}

// A message that waits for a busy key holds up nobody else.
func TestBatchWorker_ABusyMessageHoldsUpNoBatch(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.config.MaxBatch, r.config.Linger = 8, 2*time.Second
	r.maxWait = longWait
	taken := r.request("o4", time.Minute)
	answer, err := dedupstore.ClaimOne(t.Context(), r.store, taken)
	if err != nil {
		t.Fatal(err)
	}
	r.publish(8, oneKey)
	stop := r.start(r.worker(func(context.Context, []string) []error { return nil }))
	until(t, "the others", func() bool { return r.info().NumAckPending == 1 && len(r.got()) > 0 })
	if first := r.got()[0]; len(first) != 7 || slices.Contains(first, "o4") {
		t.Errorf("the batch is %v, want all but o4", first)
	}
	if err := dedupstore.SettleOne(t.Context(), r.store, answer.Claim, dedupstore.Release{}); err != nil {
		t.Fatal(err)
	}
	r.acked(8)
	r.stops(stop)
}

func TestBatchWorker_KeepsTheOrderOfEachKey(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.config.MaxBatch, r.config.Order = 16, natsjs.BySubject
	const n, keys = 400, 8
	r.publish(n, func(i int) string { return fmt.Sprint(i % keys) })
	stop := r.start(r.worker(func(context.Context, []string) []error { return nil }))
	r.acked(n)
	r.stops(stop)
	next := map[int]int{}
	for _, batch := range r.got() {
		for _, id := range batch {
			var i int
			if _, err := fmt.Sscanf(id, "o%d", &i); err != nil {
				t.Fatal(err)
			}
			if i/keys != next[i%keys] {
				t.Fatalf("%s came as number %d of its key", id, next[i%keys])
			}
			next[i%keys]++
		}
	}
}

// Messages that are not started when the drain begins are given back.
func TestBatchWorker_TheDrainStartsNoBatch(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.config.MaxBatch, r.config.MaxInFlight = 4, 4 // one batch at a time
	r.publish(4, oneKey)
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	stop := r.start(r.worker(func(context.Context, []string) []error {
		entered <- struct{}{}
		<-leave
		return nil
	}))
	<-entered
	time.AfterFunc(500*time.Millisecond, func() { close(leave) }) // the drain begins before
	r.stops(stop)
	first := len(r.got()[0])
	if n := len(r.got()); n != 1 {
		t.Errorf("%d batches, want one", n)
	}
	until(t, "the rest to be given back", func() bool {
		info := r.info()
		return int(info.NumPending)+info.NumAckPending+info.NumRedelivered >= 4-first
	})
}

// The last delivery of a message is handled in the drain, and does not linger for others then.
func TestBatchWorker_NothingLingersInTheDrain(t *testing.T) {
	t.Parallel()
	r := &batchRig{rig: newRig(t, jetstream.ConsumerConfig{MaxDeliver: 2}), attempts: map[string][]int{}}
	r.policy.MaxAttempts = 1
	r.config.Order = natsjs.BySubject
	r.config.MaxBatch, r.config.Linger = 4, time.Hour
	r.publish(2, oneKey)
	msgs, err := r.cons.Fetch(2)
	if err != nil {
		t.Fatal(err)
	}
	for m := range msgs.Messages() {
		if err := m.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w := r.worker(func(context.Context, []string) []error { return nil })
	go func() { ended <- w.Run(ctx) }()
	until(t, "both", func() bool { return r.info().Delivered.Consumer == 4 })
	cancel() // the first one lingered until now
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(longWait):
		t.Fatal("the second one still lingers")
	}
	r.acked(2)
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

// inbox is a store with transactions of one message.
type inbox struct{ dedupstore.Store }

func (inbox) InTx(
	context.Context, dedupstore.Claim, func(context.Context) (dedupstore.Settlement, error),
) error {
	return errors.New("not called here")
}

func TestNewBatchWorker_WarnsOfBatchesOfOne(t *testing.T) {
	t.Parallel()
	r := newBatchRig(t)
	r.worker(nil)
	if r.log.String() != "" {
		t.Errorf("logged without an inbox:\n%s", r.log.String())
	}
	r.store = inbox{r.store}
	r.worker(nil)
	if log := r.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "each batch has one message") {
		t.Errorf("logged:\n%s", log)
	}
}
