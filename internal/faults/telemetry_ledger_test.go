package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// A tally is what a test knows about its deliveries by what it sees of them: runs of handlers, decisions, faults that it
// made itself.
type tally struct {
	mu        sync.Mutex
	outcomes  map[string]int
	errors    map[string]int // runs by error.type; "": none
	storeErrs int
	takeovers int
	losses    int
	dead      int            // holders
	wonRuns   map[string]int // of a key
}

func newTally() *tally {
	return &tally{outcomes: map[string]int{}, errors: map[string]int{}, wonRuns: map[string]int{}}
}

// An errand is what is known of one delivery.
type errand struct {
	id      string
	attempt int  // of the run that it made
	letter  bool // it has published a dead letter
	other   bool // its content is not the first one's
}

type errandKey struct{}

func errandOf(ctx context.Context) *errand { return ctx.Value(errandKey{}).(*errand) }

// faulty is a store that fails, with and without having done what it was asked to.
type faulty struct {
	dedupstore.Store
	tally *tally
	rate  int // one claim in so many fails each way
}

var errFault = errors.New("a fault of the test")

func (f *faulty) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	fault := rand.N(f.rate)
	if fault == 0 {
		f.tally.failed()
		return dedupstore.Answer{}, errFault
	}
	a, err := f.Store.Claim(ctx, r)
	if err == nil && fault == 1 { // the answer is lost
		f.tally.failed()
		return dedupstore.Answer{}, errFault
	}
	switch {
	case err != nil: // on a machine that is slow, the context has ended
		f.tally.failed()
	case a.Found == dedupstore.Running && a.Status != dedupstore.Busy:
		f.tally.tookOver()
	}
	return a, err
}

func (f *faulty) Settle(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if rand.N(f.rate) == 0 {
		return errFault // and is asked again
	}
	if f.tally.loses(c) {
		return dedupstore.ErrClaimLost
	}
	return f.Store.Settle(ctx, c, s)
}

func (t *tally) failed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storeErrs++
}

func (t *tally) tookOver() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takeovers++
}

// loses says whether a run is to find that it has lost its claim: the first one of each seventh key.
func (t *tally) loses(c dedupstore.Claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return kindOf(c.Key.ID) == "loses" && t.wonRuns[c.Key.ID] == 1
}

// run notes that a handler runs.
func (t *tally) run(e *errand, attempt int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.attempt = attempt
	t.wonRuns[e.id]++
}

func (t *tally) ran(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors[kind]++
}

// answered notes what became of a delivery.
func (t *tally) answered(e *errand, d consumer.Decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	outcome := "reclaimed"
	var busy *oncemill.BusyError
	var down *oncemill.StoreError
	var missing *consumer.MissingIDError
	var lost *oncemill.ClaimLostError
	if errors.As(d.Err, &lost) {
		t.losses++
	}
	switch {
	case errors.As(d.Err, &missing):
		outcome = "rejected"
	case errors.As(d.Err, &down):
		outcome = "store_error"
	case e.other:
		outcome = "fingerprint_mismatch"
	case errors.As(d.Err, &busy) && busy.NotDue:
		outcome = "not_due"
	case errors.As(d.Err, &busy):
		outcome = "duplicate_in_progress"
	case d.Result.Bypassed:
		outcome = "bypassed"
	case e.attempt == 1:
		outcome = "claimed"
	case e.attempt > 1:
	case e.letter:
		outcome = "publish_only"
	case d.Result.Outcome.Kind == dedupstore.Failed:
		outcome = "duplicate_failed"
	case d.Result.Outcome.Kind == dedupstore.Unknown:
		outcome = "duplicate_unknown"
	default:
		outcome = "duplicate_completed"
	}
	t.outcomes[outcome]++
}

// moody publishes dead letters, but for the first one of each message.
type moody struct {
	mu     sync.Mutex
	failed map[string]bool
}

func (m *moody) Publish(ctx context.Context, messages ...producer.Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := errandOf(ctx)
	e.letter = true
	for _, letter := range messages {
		if first := !m.failed[letter.ID]; first {
			m.failed[letter.ID] = true
			return errFault
		}
	}
	return nil
}

// kinds of messages, by what becomes of them.
var kinds = []string{"works", "retries", "permanent", "slow", "panics", "loses", "mismatch", "dead holder"}

func messageOf(i int) string { return fmt.Sprintf("%s %d", kinds[i%len(kinds)], i) }

func kindOf(id string) (kind string) {
	for _, k := range kinds {
		if len(id) >= len(k) && id[:len(k)] == k {
			return k
		}
	}
	return ""
}

// handle is the handler of all messages.
func (t *tally) handle(ctx context.Context) error {
	e := errandOf(ctx)
	run := oncemill.FromContext(ctx)
	t.run(e, run.Attempt)
	switch kind := kindOf(e.id); {
	case kind == "retries" && run.Attempt <= 2:
		t.ran("retry_after")
		return oncemill.RetryAfter(30*time.Millisecond, errFault)
	case kind == "permanent":
		t.ran("permanent")
		return oncemill.Permanent(errFault)
	case kind == "panics" && run.Attempt == 1:
		t.ran("panic")
		panic(errFault)
	case kind == "slow":
		lasts(5 * time.Millisecond)
	}
	t.ran("")
	return nil
}

// After a run with faults of every kind, over two processes that share a store and stop cleanly, each counter is what the
// test knows itself.
func TestTelemetry_CountersAreWhatHappened(t *testing.T) {
	t.Parallel()
	o, know := newObservatory(t), newTally()
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	store := &faulty{memory, know, 25}
	policy := oncemill.Policy{
		Lease: 300 * time.Millisecond, Telemetry: o.Telemetry, Logger: slog.New(slog.DiscardHandler),
		Backoff: oncemill.Backoff{Min: 10 * time.Millisecond, Max: 30 * time.Millisecond},
	}
	newProcess := func(s dedupstore.Store, change func(*consumer.Config)) *consumer.Processor {
		c := consumer.Config{Group: "billing", Handler: "charge", Hold: consumer.NoHold, Policy: policy}
		change(&c)
		p, err := consumer.New(s, c)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	letters := &moody{failed: map[string]bool{}}
	guarded := func(c *consumer.Config) { c.DeadLetters, c.DeadLetterTopic = letters, "dead" }
	processes := []*consumer.Processor{newProcess(store, guarded), newProcess(store, guarded)}
	n := full(4000, 320)
	know.holdersDie(t, memory, n)
	var workers sync.WaitGroup
	work := make(chan int)
	for w := range 8 {
		workers.Go(func() {
			for i := range work {
				know.deliver(t, processes[w%2], messageOf(i), i)
			}
		})
	}
	for i := range n {
		for range 1 + i%3 { // copies, at once
			work <- i
		}
	}
	close(work)
	workers.Wait()

	know.others(t, newProcess, memory)
	know.check(o)
}

// holdersDie leaves claims behind whose holders are gone.
func (t *tally) holdersDie(tt *testing.T, store dedupstore.Store, n int) {
	for i := range n {
		id := messageOf(i)
		if kindOf(id) != "dead holder" {
			continue
		}
		a, err := store.Claim(tt.Context(), dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
			Owner: fmt.Sprintf("dead-holder-%08d", i), Lease: 100 * time.Millisecond, Retention: time.Hour, MaxAttempts: 10,
		})
		if err != nil || a.Status != dedupstore.AcquiredRun {
			tt.Fatal(a, err)
		}
		t.dead++
	}
}

// deliver delivers a message until it is acknowledged.
func (t *tally) deliver(tt *testing.T, p *consumer.Processor, id string, i int) {
	for range 1000 {
		d := t.once(tt, p, id, "content", i)
		if kindOf(id) == "mismatch" && d.Action == consumer.Ack && rand.N(2) == 0 {
			t.once(tt, p, id, "other content", i)
		}
		switch d.Action {
		case consumer.Ack, consumer.Reject:
			return
		}
		lasts(min(max(d.Delay/4, time.Millisecond), 20*time.Millisecond))
	}
	tt.Errorf("%q never ends", id)
}

func (t *tally) once(tt *testing.T, p *consumer.Processor, id, content string, i int) consumer.Decision {
	e := &errand{id: id, other: content == "other content"}
	ctx := context.WithValue(tt.Context(), errandKey{}, e)
	header := producer.Header{}
	if id != "" {
		header[producer.HeaderID] = id
	}
	d := p.Process(ctx, consumer.Delivery{Topic: "orders", System: "nats", Header: header, Count: 1 + i%2, Payload: []byte(content)}, t.handle)
	t.answered(e, d)
	return d
}

// others are deliveries that need policies of their own.
func (t *tally) others(tt *testing.T, newProcess func(dedupstore.Store, func(*consumer.Config)) *consumer.Processor, memory dedupstore.Store) {
	parks := newProcess(memory, func(c *consumer.Config) { c.Group, c.Policy.ExpiredLease = "parks", oncemill.Park })
	for range 3 {
		t.once(tt, parks, "panics in a group that parks", "content", 0)
	}
	for range 5 {
		t.once(tt, parks, "", "content", 0) // rejected
	}
	open := newProcess(&faulty{memory, t, 1}, func(c *consumer.Config) { c.Group, c.Policy.StoreDown = "open", oncemill.FailOpen })
	for i := range 2 {
		e := &errand{id: fmt.Sprintf("bypassed %d", i)}
		d := open.Process(context.WithValue(tt.Context(), errandKey{}, e), consumer.Delivery{
			Topic: "orders", Header: producer.Header{producer.HeaderID: e.id},
		}, func(context.Context) error { t.ran(""); return nil })
		t.answered(e, d)
	}
	bypass := newProcess(memory, func(c *consumer.Config) { c.Group, c.Policy.MissingID = "bypasses", oncemill.MissingIDBypass })
	d := bypass.Process(context.WithValue(tt.Context(), errandKey{}, &errand{}), consumer.Delivery{Topic: "orders"},
		func(context.Context) error { t.ran(""); return nil })
	t.answered(&errand{}, d)
}

func (t *tally) check(o *observatory) {
	o.t.Helper()
	for _, c := range []struct {
		metric, by string
		want       map[string]int
	}{
		{"oncemill.claims", "oncemill.outcome", t.outcomes},
		{"messaging.process.duration", "error.type", t.errors},
		{"oncemill.store.errors", "oncemill.store.operation", map[string]int{"claim": t.storeErrs}},
		{"oncemill.lease.takeovers", "", map[string]int{"": t.takeovers}},
		{"oncemill.lease.losses", "", map[string]int{"": t.losses}},
	} {
		if diff := cmp.Diff(c.want, o.counted(c.metric, c.by)); diff != "" {
			o.t.Errorf("%s by %q (-known +counted):\n%s", c.metric, c.by, diff)
		}
	}
	duplicates := map[string]int{}
	for _, name := range []string{"duplicate_completed", "duplicate_failed", "duplicate_unknown", "duplicate_in_progress"} {
		duplicates[name] = t.outcomes[name]
	}
	if diff := cmp.Diff(duplicates, o.counted("oncemill.duplicate.delay", "oncemill.outcome")); diff != "" {
		o.t.Errorf("delays of duplicates (-known +recorded):\n%s", diff)
	}
	all := maps.Clone(t.outcomes)
	for _, name := range []string{
		"claimed", "reclaimed", "publish_only", "duplicate_completed", "duplicate_failed", "duplicate_unknown", "duplicate_in_progress",
		"not_due", "fingerprint_mismatch", "rejected", "store_error", "bypassed",
	} {
		if all[name] == 0 {
			o.t.Errorf("no delivery was %s: the test shows nothing about it", name)
		}
		delete(all, name)
	}
	if len(all) > 0 || t.takeovers < t.dead || t.losses == 0 || t.storeErrs == 0 {
		o.t.Errorf("beside them: %v; %d takeovers after %d deaths, %d losses, %d store errors", all, t.takeovers, t.dead, t.losses, t.storeErrs)
	}
}
