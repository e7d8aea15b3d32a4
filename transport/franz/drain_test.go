package franz_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestWorker_FinishedHandlersAreCommittedOnShutdown(t *testing.T) {
	t.Parallel()
	const inFlight, n = 100, 1000
	b := newBench(t, 1)
	b.produce(0, n, 1, 0) // no keys: no order
	release := make(chan struct{})
	handle := b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
		<-release
		return ctx.Err() // Run's context has ended, the handler's has not
	})
	m := b.start(b.processor(consumer.Config{}), handle, franz.Config{Order: franz.PerKey, MaxInFlight: inFlight})
	until(t, "a full window", func() bool { return b.started() == inFlight })
	m.stop()
	lasts(50 * time.Millisecond)
	close(release)
	if err := m.wait(); err != nil {
		t.Fatal(err)
	}
	m.cl.CloseAllowingRebalance()
	if started, finished := b.started(), b.finished(); started != inFlight || finished != inFlight {
		t.Errorf("%d started, %d finished, want %d: nothing starts in a drain", started, finished, inFlight)
	}
	if got := b.committed("orders")[0]; got != inFlight {
		t.Errorf("committed %d, want %d", got, inFlight)
	}
	again := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{Order: franz.PerKey})
	until(t, "the rest", func() bool { return b.finished() == n })
	again.leave()
	b.wantOnce(t, n)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d records: something that finished ran again", runs, n)
	}
}

func TestWorker_HandlersThatOutliveTheGraceAreCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 4, 2, 0)
	handle := b.handler(byPartition, func(ctx context.Context, id string, run int) error {
		if id == orderID(2) && run == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	m := b.start(b.processor(consumer.Config{}), handle, franz.Config{Grace: 50 * time.Millisecond})
	until(t, "the slow one, and the others", func() bool { return b.finished() == 3 && b.runsOf(orderID(2)) == 1 })
	m.leave()
	if got := b.committed("orders"); got[0] != 1 || got[1] != 2 {
		t.Errorf("committed %v, want 1 and 2", got)
	}
	again := b.start(b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1}}), handle, franz.Config{})
	until(t, "the slow one, whose attempt does not count", func() bool { return b.finished() == 4 })
	again.leave()
}

func TestWorker_RewoundOffsetsRunNothingAgain(t *testing.T) {
	t.Parallel()
	const n = 300
	b := newBench(t, 3)
	b.produce(0, n, 3, 4)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{})
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	var zero kadm.Offsets
	for p := range int32(3) {
		zero.AddOffset("orders", p, 0, -1)
	}
	if err := b.admin.CommitAllOffsets(t.Context(), group, zero); err != nil {
		t.Fatal(err)
	}
	again := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{})
	until(t, "the offsets to come back", func() bool {
		got := b.committed("orders")
		return got[0] == n/3 && got[1] == n/3 && got[2] == n/3
	})
	again.leave()
	b.wantOnce(t, n)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d records", runs, n)
	}
}

func TestWorker_PoisonIsDeadLetteredAfterItsAttemptsAndThePartitionFlowsOn(t *testing.T) {
	t.Parallel()
	const n, attempts = 20, 3
	b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
	b.produce(0, n, 1, 2)
	deadLetters, err := franz.NewPublisher(b.newClient(franz.PublisherOpts()...), franz.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once := b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: attempts}, DeadLetters: deadLetters, DeadLetterTopic: "dead"})
	m := b.start(once, b.handler(byPartition, func(_ context.Context, id string, _ int) error {
		if id == orderID(7) {
			return errors.New("never")
		}
		return nil
	}), franz.Config{})
	until(t, "the others", func() bool { return b.finished() == n-1 })
	m.leave()
	b.wantOrder(t)
	if runs := b.runsOf(orderID(7)); runs != attempts {
		t.Errorf("the poison ran %d times, want %d", runs, attempts)
	}
	letter := b.only("dead")
	if got := headerOf(letter, producer.HeaderOriginalID); got != orderID(7) {
		t.Errorf("the dead letter is of %q", got)
	}
	if got := headerOf(letter, producer.HeaderTopic); got != "orders" {
		t.Errorf("the dead letter names topic %q", got)
	}
	if got := string(letter.Key); got != "k1" {
		t.Errorf("the dead letter's key is %q, want the record's", got)
	}
	if got := b.committed("orders")[0]; got != n {
		t.Errorf("committed %d, want %d", got, n)
	}
}

// records returns what is in a topic.
func (b *bench) records(topic string) []*kgo.Record {
	b.t.Helper()
	ends, err := b.admin.ListEndOffsets(b.t.Context(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	missing := 0
	ends.Each(func(o kadm.ListedOffset) { missing += int(o.Offset) })
	cl := b.newClient(kgo.ConsumeTopics(topic))
	defer cl.Close()
	var found []*kgo.Record
	for len(found) < missing {
		ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
		fetches := cl.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			b.t.Fatal(err)
		}
		found = append(found, fetches.Records()...)
	}
	return found
}

func (b *bench) only(topic string) *kgo.Record {
	b.t.Helper()
	found := b.records(topic)
	if len(found) != 1 {
		b.t.Fatalf("%d records in %s, want one", len(found), topic)
	}
	return found[0]
}

func headerOf(rec *kgo.Record, name string) string {
	for _, h := range rec.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func TestWorker_RejectedRecordIsSaidLoudlyAndPassedOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 3, 1, 0)
	once := b.processor(consumer.Config{})
	m := b.start(once, b.handler(byPartition, func(_ context.Context, id string, _ int) error {
		if id == orderID(1) {
			return oncemill.Permanent(errors.New("no such account"))
		}
		return nil
	}), franz.Config{})
	until(t, "the others", func() bool { return b.finished() == 2 })
	m.leave()
	if got := b.committed("orders")[0]; got != 3 {
		t.Errorf("committed %d, want 3", got)
	}
	wantLog(t, b, "level=ERROR", "rejected", "topic=orders", "partition=0", "offset=1", "no such account")
}

// A counting store counts claims.
type counting struct {
	dedupstore.Store
	id     string // of the message whose claims count
	claims atomic.Int64
}

func (c *counting) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, c.claimOne)
}

func (c *counting) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if r.Key.ID == c.id {
		c.claims.Add(1)
	}
	return dedupstore.ClaimOne(ctx, c.Store, r)
}

func TestWorker_BusyKeyNeitherSpinsNorLosesMembership(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	store := &counting{Store: b.store, id: orderID(0)}
	b.store = store
	key := dedupstore.Key{Tenant: "default", Group: group, Handler: "charge", ID: orderID(0)}
	const lease = 5 * time.Second
	fingerprint, err := producer.FingerprintPayload([]byte(orderID(0)))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := dedupstore.ClaimOne(t.Context(), b.store, dedupstore.Request{
		Key: key, Owner: "another-owner-of-the-key", Lease: lease, Retention: time.Hour, MaxAttempts: 10,
		Fingerprint: fingerprint,
	}); err != nil {
		t.Fatal(err)
	}
	var polls, joins atomic.Int64
	b.cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		polls.Add(1)
		return nil, nil, false
	})
	b.cluster.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		joins.Add(1)
		return nil, nil, false
	})
	b.produce(0, 1200, 2, 0)
	m := b.start(b.processor(consumer.Config{MaxWait: 100 * time.Millisecond}), b.handler(byPartition, nil),
		franz.Config{}, kgo.SessionTimeout(4*time.Second), kgo.RebalanceTimeout(time.Minute))
	until(t, "the other partition", func() bool { return b.finished() >= 600 })
	joined := joins.Load()
	store.claims.Store(0)
	polls.Store(0)
	until(t, "the busy one after its lease", func() bool { return b.runsOf(orderID(0)) == 1 })
	if took := time.Since(began); took < lease-200*time.Millisecond {
		t.Errorf("ran after %v, the other owner's lease is %v", took, lease)
	}
	// A hold asks every 500 ms at most after its first few, a fetch waits for 100 ms.
	if claims := store.claims.Load(); claims > 60 {
		t.Errorf("%d claims while the key was busy", claims)
	}
	if polls := polls.Load(); polls > 100 {
		t.Errorf("%d fetches while the key was busy", polls)
	}
	until(t, "all", func() bool { return b.finished() == 1200 })
	if now := joins.Load(); now != joined {
		t.Errorf("joined %d times more: membership was lost", now-joined)
	}
	m.leave()
	b.wantOnce(t, 1200)
	b.wantOrder(t)
}

func TestWorker_SurvivesABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	const n = 200
	b := newBench(t, 2)
	b.produce(0, n, 2, 0)
	slow := func(context.Context, string, int) error {
		lasts(2 * time.Millisecond)
		return nil
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, slow), franz.Config{})
	until(t, "a part", func() bool { return b.finished() > n/4 })
	var away atomic.Bool
	away.Store(true)
	b.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		if !away.Load() {
			b.cluster.DropControl()
			return nil, nil, false
		}
		b.cluster.KeepControl()
		return nil, errors.New("away"), true
	})
	lasts(full(20*time.Second, 1500*time.Millisecond))
	away.Store(false)
	b.produce(n, n, 2, 0)
	until(t, "all records", func() bool { return b.finished() == 2*n })
	m.leave()
	b.wantOnce(t, 2*n)
	if got := b.committed("orders"); got[0] != n || got[1] != n {
		t.Errorf("committed %v, want %d each", got, n)
	}
}

func TestWorker_RunReturnsWhenItsClientIsClosed(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 3, 1, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{})
	until(t, "all records", func() bool { return b.finished() == 3 })
	m.cl.CloseAllowingRebalance()
	if err := m.wait(); !errors.Is(err, kgo.ErrClientClosed) {
		t.Errorf("Run: %v, want %v", err, kgo.ErrClientClosed)
	}
	if got := b.committed("orders")[0]; got != 3 {
		t.Errorf("committed %d, want 3: closing revokes, and that commits", got)
	}
}

func wantLog(t testing.TB, b *bench, parts ...string) {
	t.Helper()
lines:
	for line := range strings.Lines(b.log.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		return
	}
	t.Errorf("no line of the log has %q:\n%s", parts, b.log.String())
}
