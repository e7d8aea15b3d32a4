package sourcetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

const (
	// short is a delay that a case waits for, long one that never ends within a case.
	short = 200 * time.Millisecond
	long  = time.Hour

	// waitLimit is for what takes milliseconds on a quiet machine, or a few seconds with some brokers.
	waitLimit = 2 * time.Minute

	// usualGrace is the Member.Grace of cases that do not need it.
	usualGrace = waitLimit / 2

	pollEvery = 5 * time.Millisecond
)

var errLater = errors.New("sourcetest: not yet")

// Decisions.
var (
	ack    = consumer.Decision{Action: consumer.Ack}
	reject = consumer.Decision{Action: consumer.Reject, Err: errors.New("sourcetest: no")}
	leave  = consumer.Decision{Action: consumer.Leave, Err: errLater}
)

func retry(delay time.Duration) consumer.Decision {
	return consumer.Decision{Action: consumer.RetryLater, Delay: delay, Err: errLater}
}

// A kit is what a case works with: the broker, members of a group, and what they did.
type kit struct {
	testing.TB
	Subject
	store *dedupstore.Memory
	over  chan struct{} // closed: the case has ended

	members []*member
	again   func() *member // runs one more, as the last was, that acknowledges all

	mu     sync.Mutex
	calls  []*call
	counts map[string]int // calls, by ID
}

func newKit(tb testing.TB, s Subject) *kit {
	tb.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	return &kit{TB: tb, Subject: s, store: store, over: make(chan struct{}), counts: map[string]int{}}
}

// close ends what the case has left running.
func (k *kit) close() {
	close(k.over)
	for _, m := range k.members {
		m.end()
	}
}

// until polls for what must come. It cannot come if a Run has ended by itself.
func (k *kit) until(what string, met func() bool) {
	k.Helper()
	for end := time.Now().Add(waitLimit); !met(); time.Sleep(pollEvery) {
		for _, m := range k.members {
			if m.hasEnded() && !m.cut && !m.stopping {
				k.Fatalf("while the case waited for %s, Run ended with %v", what, m.err)
			}
		}
		if time.Now().After(end) {
			k.Fatalf("waited %v for %s; calls: %v", waitLimit, what, k.all())
		}
	}
}

// wait returns when a channel is closed, or the case is over.
func (k *kit) wait(c <-chan struct{}) {
	select {
	case <-c:
	case <-k.over:
	}
}

// publish appends messages with these IDs, without keys.
func (k *kit) publish(ids ...string) {
	k.Helper()
	for _, id := range ids {
		k.Publish(message(id, ""))
	}
}

func message(id, key string) Message {
	return Message{ID: id, Key: key, Payload: []byte("payload of " + id)}
}

func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return ids
}

// A call is one call of handle: a message that was handed over.
type call struct {
	ctx      context.Context
	delivery consumer.Delivery
	id       string
	number   int // of the calls for this ID, from 1
	began    time.Time
	decided  time.Time // zero: not yet
	decision consumer.Decision
}

func (c *call) String() string { return fmt.Sprintf("%s#%d %s", c.id, c.number, c.decision.Action) }

// all returns the calls so far.
func (k *kit) all() []call {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls := make([]call, len(k.calls))
	for i, c := range k.calls {
		calls[i] = *c
	}
	return calls
}

// of returns the calls for an ID.
func (k *kit) of(id string) (calls []call) {
	for _, c := range k.all() {
		if c.id == id {
			calls = append(calls, c)
		}
	}
	return calls
}

// acked is for how many IDs an ack was decided.
func (k *kit) acked() int {
	ids := map[string]bool{}
	for _, c := range k.all() {
		if c.decision.Action == consumer.Ack {
			ids[c.id] = true
		}
	}
	return len(ids)
}

func (k *kit) untilAcked(n int) {
	k.Helper()
	k.until(fmt.Sprintf("acks of %d messages", n), func() bool { return k.acked() >= n })
}

// once wants each of these to have been handed over once.
func (k *kit) once(what string, ids ...string) {
	k.Helper()
	for _, id := range ids {
		if n := len(k.of(id)); n != 1 {
			k.Errorf("%s: %s was handed over %d times, want once", what, id, n)
		}
	}
}

// begin notes a call.
func (k *kit) begin(ctx context.Context, d consumer.Delivery) *call {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := &call{ctx: ctx, delivery: d, id: d.Header.Get(producer.HeaderID), began: time.Now()}
	k.counts[c.id]++
	c.number = k.counts[c.id]
	k.calls = append(k.calls, c)
	return c
}

// decide notes the decision of a call.
func (k *kit) decide(c *call, d consumer.Decision) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c.decided, c.decision = time.Now(), d
}

// A member is one that consumes.
type member struct {
	k      *kit
	source consumer.Source // nil: of Subject.Guard or Batches
	label  string          // of its goroutines
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, when it has ended

	stopping bool // its Run is to end
	cut      bool // its Run may end: it was cut off
}

func (m *member) hasEnded() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// drain ends the context of Run.
func (m *member) drain() {
	m.stopping = true
	m.cancel()
}

// run runs a member until it is stopped.
func (k *kit) run(run func(ctx context.Context, m *member) error) *member {
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{k: k, label: rand.Text(), cancel: cancel, ended: make(chan struct{})}
	k.members = append(k.members, m)
	go func() {
		defer close(m.ended)
		pprof.Do(ctx, pprof.Labels("sourcetest", m.label), func(ctx context.Context) { m.err = run(ctx, m) })
	}()
	return m
}

// consume runs a member that decides on each message in a goroutine of its own.
func (k *kit) consume(config Member, decide func(c *call) consumer.Decision) *member {
	k.Helper()
	k.again = func() *member { return k.consume(Member{}, func(*call) consumer.Decision { return ack }) }
	return k.handOver(k.open(config), func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
		c := k.begin(ctx, d)
		go func() {
			decision := decide(c)
			k.decide(c, decision)
			done(decision)
		}()
	})
}

func (k *kit) open(config Member) consumer.Source {
	k.Helper()
	return k.Open(k.config(config))
}

// handOver runs a source.
func (k *kit) handOver(source consumer.Source, handle consumer.SourceHandler) *member {
	m := k.run(func(ctx context.Context, _ *member) error { return source.Run(ctx, k.Topic, handle) })
	m.source = source
	return m
}

func (k *kit) config(c Member) Member {
	k.Helper()
	if c.Once == nil {
		c.Once = k.processor(k.store, consumer.Config{})
	}
	if c.Grace == 0 {
		c.Grace = usualGrace
	}
	return c
}

// The scope of guarded messages.
const group, handler = "sourcetest", "charge"

func (k *kit) processor(store dedupstore.Store, c consumer.Config) *consumer.Processor {
	k.Helper()
	c.Group = group
	c.Policy = oncemill.Policy{
		Logger: slog.New(slog.DiscardHandler), Lease: 10 * time.Second,
		Backoff: oncemill.Backoff{Min: short / 4, Max: short},
	}
	once, err := consumer.New(store, c)
	if err != nil {
		k.Fatal(err)
	}
	return once
}

// delivery stands for one that only its guard has seen.
func delivery(id string) consumer.Delivery {
	return consumer.Delivery{Header: producer.Header{producer.HeaderID: id}}
}

// guard runs a member whose handler is guarded. The handler gets the ID, and which run of it this is, from 1.
func (k *kit) guard(config Member, handle func(ctx context.Context, id string, run int) error) *member {
	k.Helper()
	k.again = func() *member {
		return k.guard(Member{}, func(context.Context, string, int) error { return nil })
	}
	config = k.config(config)
	guarded := func(ctx context.Context) error {
		id := oncemill.FromContext(ctx).Key.ID
		c := k.begin(ctx, delivery(id))
		err := handle(ctx, id, c.number)
		if err == nil {
			k.decide(c, ack)
		} else {
			k.decide(c, retry(0))
		}
		return err
	}
	if k.Guard != nil {
		return k.run(func(ctx context.Context, _ *member) error { return k.Guard(ctx, config, guarded) })
	}
	source, once := k.open(config), config.Once
	return k.handOver(source, func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
		d.Handler = handler
		once.Start(ctx, d, guarded, done)
	})
}

// end ends a member, and reports whether Run has returned.
func (m *member) end() bool {
	m.drain()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	select {
	case <-m.ended:
		return true
	case <-limit.C:
		m.k.Errorf("Run has not returned %v after the end of its context", waitLimit)
		return false
	}
}

// stop ends a member, which must drain well.
func (m *member) stop() {
	m.k.Helper()
	if !m.end() {
		m.k.FailNow()
	}
	if m.err != nil {
		m.k.Errorf("Run returned %v after a drain, want nil", m.err)
	}
}

// goroutines is what runs in the name of a member: stacks with their labels.
func (m *member) goroutines() (stacks []string) {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		m.k.Fatal(err)
	}
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, m.label) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// nothingLeft wants the broker to have nothing left, soon. Without a drain, acks may be lost at the end of a run.
func (k *kit) nothingLeft() {
	k.Helper()
	if _, lacks := k.Lacks[Drain]; lacks {
		k.nothingLeftAtLast()
		return
	}
	k.until("the broker to have nothing left", func() bool { return k.Left() == 0 })
}

// nothingLeftAtLast wants further runs to leave the broker with nothing.
func (k *kit) nothingLeftAtLast() {
	k.Helper()
	for end := time.Now().Add(waitLimit); k.Left() > 0; {
		if time.Now().After(end) {
			k.Fatalf("the broker has %d messages left after %v", k.Left(), waitLimit)
		}
		m := k.again()
		<-after(short)
		m.stop()
	}
}

// kept wants the broker to have at least so many messages left.
func (k *kit) kept(n int) {
	k.Helper()
	if left := k.Left(); left < n {
		k.Errorf("the broker has %d messages left, want %d that had no end", left, n)
	}
}

// nothingComesAgain looks with a new member whether a message comes that had ended: a later one is the proof.
func (k *kit) nothingComesAgain() {
	k.Helper()
	before := len(k.all())
	m := k.consume(Member{}, func(*call) consumer.Decision { return ack })
	last := "last-" + rand.Text()
	k.publish(last)
	k.until("a message that was published last", func() bool { return len(k.of(last)) > 0 })
	m.stop()
	for _, c := range k.all()[before:] {
		if c.id != last {
			k.Errorf("%s came again although it had ended", c.id)
		}
	}
}

// hold claims keys for another owner, whose lease ends after a time.
func (k *kit) hold(lease time.Duration, ids ...string) {
	k.Helper()
	for _, id := range ids {
		r := dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: group, Handler: handler, ID: id},
			Owner: rand.Text(), Lease: lease, Retention: long, MaxAttempts: 10,
		}
		if a, err := dedupstore.ClaimOne(k.Context(), k.store, r); err != nil || a.Status != dedupstore.AcquiredRun {
			k.Fatalf("claim of %s: %v, %v", id, a.Status, err)
		}
	}
}
