package faults_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/producer"
)

// A tally is what a process knows about its deliveries by what it sees of them: runs of handlers, decisions, faults that
// it made itself. It notes them in the ledger under the names of the metrics that should say the same.
type tally struct {
	*ledger.Ledger

	errands sync.Map // by trace ID, and by owner
}

// Metrics that are compared.
const (
	claimsMetric    = "oncemill.claims"            // deliveries, by outcome
	runsMetric      = "messaging.process.duration" // by error.type; "": none
	storeMetric     = "oncemill.store.errors"      // by operation: of settlements those that were given up
	takeoversMetric = "oncemill.lease.takeovers"
	lossesMetric    = "oncemill.lease.losses"
	failuresMetric  = "oncemill.failures" // outcomes that are no success, by the result, as the store took them
	delayMetric     = "oncemill.duplicate.delay"
)

// An errand is what is known of one delivery.
type errand struct {
	id        string
	other     bool // its content is not the first one's
	attempt   int  // of the run that it was granted
	publishes bool // it was granted the publish step of another one
	ran       bool // its handler did
	unstored  bool // its last settlement failed
}

type errandKey struct{}

func errandOf(ctx context.Context) *errand { return ctx.Value(errandKey{}).(*errand) }

// begin gives an errand a trace of its own. By that the store knows whose claim it is asked for: claims travel together,
// in a context of nobody.
func (t *tally) begin(ctx context.Context, e *errand) context.Context {
	var id trace.TraceID
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	t.errands.Store(id.String(), e)
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	}))
	return context.WithValue(ctx, errandKey{}, e)
}

// errand returns the errand of a trace, or of an owner.
func (t *tally) errand(id string) *errand {
	e, _ := t.errands.Load(id)
	return e.(*errand)
}

// faulty is a store that fails, with and without having done what it was asked to.
type faulty struct {
	dedupstore.Store
	tally *tally
	rate  int // one claim in so many fails each way
}

var errFault = errors.New("a fault of the test")

func (f *faulty) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, f.claimOne)
}

func (f *faulty) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	fault := rand.N(f.rate)
	if fault == 0 {
		f.tally.Note(storeMetric, "claim")
		return dedupstore.Answer{}, errFault
	}
	a, err := dedupstore.ClaimOne(ctx, f.Store, r)
	if err == nil && fault == 1 { // the answer is lost
		f.tally.Note(storeMetric, "claim")
		return dedupstore.Answer{}, errFault
	}
	switch {
	case err != nil: // on a machine that is slow, the context has ended
		f.tally.Note(storeMetric, "claim")
		return a, err
	case a.Found == dedupstore.Running && a.Status != dedupstore.Busy && a.Status != dedupstore.Suspect:
		f.tally.Note(takeoversMetric, "")
		if a.Status == dedupstore.AcquiredPublish { // nobody else has seen this outcome
			f.tally.ended(a.Outcome)
		}
	}
	e := f.tally.errand(r.Trace[3:35])
	f.tally.errands.Store(r.Owner, e)
	switch a.Status {
	case dedupstore.AcquiredRun:
		e.attempt = a.Claim.Attempt
	case dedupstore.AcquiredPublish:
		e.publishes = true
	}
	return a, nil
}

func (f *faulty) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, f.settleOne)
}

func (f *faulty) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) (err error) {
	e := f.tally.errand(c.Owner)
	defer func() {
		givesBack := e.attempt > 0 && !e.ran // which is tried once, and no error
		e.unstored = err != nil && !errors.Is(err, dedupstore.ErrClaimLost) && !givesBack
	}()
	if rand.N(f.rate) == 0 {
		return errFault // and is asked again
	}
	if kindOf(c.Key.ID) == "loses" && c.Attempt == 1 {
		return dedupstore.ErrClaimLost
	}
	err = dedupstore.SettleOne(ctx, f.Store, c, s)
	if finish, ok := s.(dedupstore.Finish); ok && err == nil {
		f.tally.ended(finish.Outcome)
	}
	return err
}

// unsettling is a store that never takes a settlement.
type unsettling struct{ dedupstore.Store }

func (s unsettling) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (unsettling) settleOne(context.Context, dedupstore.Claim, dedupstore.Settlement) error {
	return errFault
}

// ended notes an outcome that the store has taken.
func (t *tally) ended(o dedupstore.Outcome) {
	switch {
	case o.Kind == dedupstore.Unknown:
		t.Note(failuresMetric, "unknown")
	case o.Exhausted:
		t.Note(failuresMetric, "exhausted")
	case o.Kind == dedupstore.Failed:
		t.Note(failuresMetric, "permanent")
	}
}

func (t *tally) ran(kind string) { t.Note(runsMetric, kind) }

// answered notes what became of a delivery.
func (t *tally) answered(e *errand, d consumer.Decision) {
	outcome := "reclaimed"
	status := d.Result.Status
	var missing *consumer.MissingIDError
	if status == oncemill.StatusLost {
		t.Note(lossesMetric, "")
	}
	if e.unstored {
		t.Note(storeMetric, "settle")
	}
	down := status == oncemill.StatusStoreDown
	unanswered := down && strings.HasPrefix(d.Result.Err.Error(), "claim: ")
	if down && !unanswered { // on a machine that is slow, the lease could not be renewed before the run
		t.Note(storeMetric, "extend")
	}
	switch {
	case errors.As(d.Err, &missing):
		outcome = "rejected"
	case unanswered:
		outcome = "store_error"
	case e.other:
		outcome = "fingerprint_mismatch"
	case status == oncemill.StatusNotDue:
		outcome = "not_due"
	case status == oncemill.StatusBusy:
		outcome = "duplicate_in_progress"
	case d.Result.Bypassed:
		outcome = "bypassed"
	case e.attempt == 1:
		outcome = "claimed"
	case e.attempt > 1:
	case e.publishes:
		outcome = "publish_only"
	case d.Result.Outcome.Kind == dedupstore.Failed:
		outcome = "duplicate_failed"
	case d.Result.Outcome.Kind == dedupstore.Unknown:
		outcome = "duplicate_unknown"
	default:
		outcome = "duplicate_completed"
	}
	t.Note(claimsMetric, outcome)
}

// moody takes dead letters, but for the first one of each message.
type moody struct {
	producer.Publisher
	mu     sync.Mutex
	failed map[string]bool
}

func (m *moody) Publish(ctx context.Context, messages ...producer.Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, letter := range messages {
		if first := !m.failed[letter.ID]; first {
			m.failed[letter.ID] = true
			return errFault
		}
	}
	return m.Publisher.Publish(ctx, messages...)
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
	e.ran = true
	run := oncemill.FromContext(ctx)
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
	t.Does(run)
	return nil
}

// deliver delivers a message until it is acknowledged.
func (t *tally) deliver(tt *testing.T, p *consumer.Processor, id string, i int) {
	for range 1000 {
		d := t.once(tt, p, id, "content", i, t.handle)
		if kindOf(id) == "mismatch" && d.Action == consumer.Ack && rand.N(2) == 0 {
			t.once(tt, p, id, "other content", i, t.handle)
		}
		switch d.Action {
		case consumer.Ack, consumer.Reject:
			return
		}
		lasts(min(max(d.Delay/4, time.Millisecond), 20*time.Millisecond))
	}
	tt.Errorf("%q never ends", id)
}

func (t *tally) once(tt *testing.T, p *consumer.Processor, id, content string, i int, handle consumer.Handler) consumer.Decision {
	e := &errand{id: id, other: content == "other content"}
	ctx := t.begin(tt.Context(), e)
	header := producer.Header{}
	if id != "" {
		header[producer.HeaderID] = id
	}
	d := p.Process(ctx, consumer.Delivery{Handler: "charge", Topic: "orders", System: "nats", Header: header, Count: 1 + i%2, Payload: []byte(content)}, handle)
	t.answered(e, d)
	return d
}

// unsaid is a message whose outcome nobody takes.
const unsaid = "works and cannot say so"

// others are deliveries that need policies of their own.
func (t *tally) others(tt *testing.T, store dedupstore.Store, newProcessor func(dedupstore.Store, func(*consumer.Config)) *consumer.Processor) {
	parks := newProcessor(&faulty{store, t, math.MaxInt}, func(c *consumer.Config) { c.Group, c.Policy.ExpiredLease = "parks", oncemill.Park })
	for range 3 {
		t.once(tt, parks, "panics in a group that parks", "content", 0, t.handle)
	}
	for range 5 {
		t.once(tt, parks, "", "content", 0, t.handle) // rejected
	}
	ends := newProcessor(&faulty{store, t, math.MaxInt}, func(c *consumer.Config) {
		c.Group, c.Policy.MaxAttempts = "ends", 1
		c.DeadLetters, c.DeadLetterTopic = &moody{Publisher: t, failed: map[string]bool{}}, "dead"
	})
	parksLater := newProcessor(&faulty{store, t, math.MaxInt}, func(c *consumer.Config) {
		c.Group, c.Policy.ExpiredLease = "parks later", oncemill.Park
		c.DeadLetters, c.DeadLetterTopic = &moody{Publisher: t, failed: map[string]bool{}}, "dead"
	})
	dies := func(group, id string) { // in its last attempt, after the handler has begun
		a, err := dedupstore.ClaimOne(tt.Context(), store, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: group, Handler: "charge", ID: id},
			Owner: "of-a-dead-holder", Lease: time.Millisecond, Retention: time.Hour, MaxAttempts: 1,
		})
		if err == nil {
			err = dedupstore.ExtendOne(tt.Context(), store, dedupstore.Extension{
				Claim: a.Claim, Lease: time.Millisecond, Started: true,
			})
		}
		if err != nil {
			tt.Error(err)
		}
	}
	dies("ends", "ended")
	dies("parks later", "parked")
	lasts(20 * time.Millisecond)
	t.once(tt, ends, "ended", "content", 0, t.handle)        // takes over, to publish
	t.once(tt, parksLater, "parked", "content", 0, t.handle) // the same
	deaf := newProcessor(&faulty{unsettling{store}, t, math.MaxInt}, func(c *consumer.Config) { c.Group = "deaf" })
	t.once(tt, deaf, unsaid, "content", 0, t.handle)
	open := newProcessor(&faulty{store, t, 1}, func(c *consumer.Config) { c.Group, c.Policy.StoreDown = "open", oncemill.FailOpen })
	for i := range 2 {
		e := &errand{id: fmt.Sprintf("bypassed %d", i)}
		d := open.Process(t.begin(tt.Context(), e), consumer.Delivery{
			Handler: "charge", Topic: "orders", Header: producer.Header{producer.HeaderID: e.id},
		}, func(context.Context) error { t.ran(""); return nil })
		t.answered(e, d)
	}
	bypass := newProcessor(store, func(c *consumer.Config) { c.Group, c.Policy.MissingID = "bypasses", oncemill.MissingIDBypass })
	d := bypass.Process(t.begin(tt.Context(), &errand{}), consumer.Delivery{Handler: "charge", Topic: "orders"},
		func(context.Context) error { t.ran(""); return nil })
	t.answered(&errand{}, d)
}
