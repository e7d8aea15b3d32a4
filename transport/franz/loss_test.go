package franz_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// Without an error in the log, nobody would know that these records are missing.
func TestWorker_RecordsThatWereDeletedBeforeTheyWereHandledAreSaid(t *testing.T) {
	t.Parallel()
	const said = "lost its beginning"
	for name, tc := range map[string]struct {
		handled, deleted int64 // offsets
		loud             bool
	}{
		"while nobody was there":       {5, 12, true},
		"when they were handled":       {5, 5, false},
		"of those, and fewer":          {5, 3, false},
		"while nothing was handled":    {0, 12, false}, // nobody knows whether the group wanted them
		"to the last that was handled": {6, 6, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 15
			b := newBench(t, 1)
			if tc.handled > 0 {
				b.produce(0, int(tc.handled), 1, 0)
				m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
				until(t, "the first", func() bool { return b.committed("orders")[0] == tc.handled })
				m.leave()
			}
			b.produce(int(tc.handled), n-int(tc.handled), 1, 0)
			b.deleteBefore(tc.deleted)
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
			until(t, "the others", func() bool { return b.committed("orders")[0] == n })
			m.leave()
			if tc.loud {
				wantLog(t, b, "level=ERROR", said, "partition=orders/0", "from_offset=5", "to_offset=12")
			} else if strings.Contains(b.log.String(), said) {
				t.Errorf("nothing is missing:\n%s", b.log.String())
			}
		})
	}
}

func TestWorker_RecordsThatAreDeletedWhileItIsBehindAreSaid(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	release := make(chan struct{})
	b.produce(0, 2, 1, 0)
	b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(ctx context.Context, id string, _ int) error {
		if id == orderID(1) {
			<-release
		}
		return nil
	}), franz.Config{MaxInFlight: 1})
	until(t, "the handler", func() bool { return b.runsOf(orderID(1)) == 1 })
	b.produce(2, 2, 1, 0) // fetched: two are a long queue
	lasts(300 * time.Millisecond)
	b.produce(4, 10, 1, 0)
	lasts(300 * time.Millisecond)
	b.deleteBefore(9)
	close(release)
	until(t, "the others", func() bool { return b.committed("orders")[0] == 14 })
	wantLog(t, b, "level=ERROR", "lost its beginning", "to_offset=9")
}

// A commit by hand, or one that a mirror made, has no epoch by which the client would see the loss itself.
func TestWorker_OffsetBeyondTheEndIsSaid(t *testing.T) {
	t.Parallel()
	const said = "the group's offset is beyond what the partition has"
	for name, tc := range map[string]struct {
		committed int64
		runs      int
		loud      bool
	}{
		"beyond the end": {1000, 6, true},
		"at the end":     {5, 1, false},
		"before the end": {3, 3, false},
		"none":           {0, 6, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			b.produce(0, 5, 1, 0)
			if tc.committed > 0 {
				offsets := kadm.Offsets{}
				offsets.AddOffset("orders", 0, tc.committed, -1)
				if err := b.admin.CommitAllOffsets(t.Context(), group, offsets); err != nil {
					t.Fatal(err)
				}
			}
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
			if tc.loud {
				until(t, "what it has", func() bool { return b.finished() == 5 })
			}
			b.produce(5, 1, 1, 0)
			until(t, "the last", func() bool { return b.committed("orders")[0] == 6 })
			m.leave()
			if b.finished() != tc.runs {
				t.Errorf("%d records were handled, want %d", b.finished(), tc.runs)
			}
			if tc.loud {
				wantLog(t, b, "level=ERROR", said, "partition=orders/0", "from_offset=0", "committed=1000")
			} else if strings.Contains(b.log.String(), said) {
				t.Errorf("nothing is wrong:\n%s", b.log.String())
			}
		})
	}
}

// A worker's commit has an epoch. While that lasts, the broker says of it that it ends where the partition does.
func TestWorker_OffsetBeyondTheEndOfItsEpochGoesToThatEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 5, 1, 0)
	offsets := kadm.Offsets{}
	offsets.AddOffset("orders", 0, 1000, 0)
	if err := b.admin.CommitAllOffsets(t.Context(), group, offsets); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
	until(t, "the loss to be said", func() bool { return strings.Contains(b.log.String(), "the broker has lost records") })
	b.produce(5, 1, 1, 0)
	until(t, "the last", func() bool { return b.committed("orders")[0] == 6 })
	m.leave()
	if b.finished() != 1 {
		t.Errorf("%d records were handled, want the last", b.finished())
	}
	wantLog(t, b, "level=ERROR", "the partition is consumed from from_offset", "partition=orders/0", "from_offset=5", "committed=1000")
}

// deleteBefore deletes the records of orders that lie before an offset.
func (b *bench) deleteBefore(offset int64) {
	b.t.Helper()
	if _, err := b.admin.DeleteRecords(b.t.Context(), kadm.Offsets{"orders": {0: {Topic: "orders", At: offset}}}); err != nil {
		b.t.Fatal(err)
	}
}

// A dead letter that is refused for how its message spells a header would hold its partition up for ever.
func TestWorker_SpellingsOfTheKeyDoNotKeepADeadLetterBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
	keyed, keyless := order(0), order(1)
	keyed.Key = []byte("k")
	keyed.Headers = append(keyed.Headers, kgo.RecordHeader{Key: "Oncemill-Key", Value: []byte("other")})
	for _, name := range []string{"Oncemill-Key", "ONCEMILL-KEY"} {
		keyless.Headers = append(keyless.Headers, kgo.RecordHeader{Key: name, Value: []byte(name)})
	}
	if err := b.client.ProduceSync(t.Context(), keyed, keyless, order(2)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	once := b.processor(consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "dead"})
	m := b.start(once, b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(2) {
			return nil
		}
		return oncemill.Permanent(errors.New("declined"))
	}), franz.Config{})
	until(t, "what is behind them", func() bool { return b.committed("orders")[0] == 3 })
	m.leave()
	deadLetters := b.records("dead")
	if len(deadLetters) != 2 || string(deadLetters[0].Key) != "k" {
		t.Errorf("dead letters %v, want two, and of the first the key of its record", deadLetters)
	}
}

// A record that others put into a retry topic fails and is tried again like any other.
func TestWorker_RecordThatOthersPutIntoARetryTopicIsRetried(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	record := order(0)
	record.Topic = "soon"
	if err := b.client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, _ string, run int) error {
		if run == 1 {
			return errors.New("not yet")
		}
		return nil
	}), config, topics)
	until(t, "the second attempt", func() bool { return b.finished() == 1 })
	m.leave()
}

// A topic that was added to a client that runs already has its retry topics, too.
func TestWorker_RecordsOfATopicThatWasAddedAreRetried(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	if err := b.cluster.CreateTopic("refunds", 1, nil); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, _ string, run int) error {
		if run == 1 {
			return errors.New("not yet")
		}
		return nil
	}), config, topics)
	b.produce(0, 1, 1, 0)
	until(t, "a record", func() bool { return b.finished() == 1 })
	m.cl.AddConsumeTopics("refunds")
	record := order(1)
	record.Topic = "refunds"
	if err := b.client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	until(t, "the second attempt", func() bool { return b.finished() == 2 })
	m.leave()
}

// Records that were settled in a topic that is gone can never be committed.
func TestWorker_TopicThatIsDeletedDoesNotHoldUpTheShutdown(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "other"))
	b.produce(0, 2, 1, 0)
	release := make(chan struct{})
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(1) {
			<-release
		}
		return nil
	}), franz.Config{}, kgo.ConsumeTopics("orders", "other"))
	until(t, "the first", func() bool { return b.committed("orders")[0] == 1 && b.runsOf(orderID(1)) == 1 })
	if _, err := b.admin.DeleteTopics(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	close(release)
	until(t, "the second", func() bool { return b.finished() == 2 })
	elsewhere := &kgo.Record{Topic: "other", Value: []byte("p"), Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte("p")}}}
	if err := b.client.ProduceSync(t.Context(), elsewhere).FirstErr(); err != nil {
		t.Fatal(err)
	}
	until(t, "what is in the other topic", func() bool { return b.finished() == 3 })
	until(t, "a line that says so", func() bool { return strings.Contains(b.log.String(), "commit failed") })
	lasts(time.Second) // 50 commits
	if said := strings.Count(b.log.String(), "commit failed"); said < 1 || said > 5 {
		t.Errorf("%d lines say that commits fail, want one for each reason a minute", said)
	}
	m.stop()
	wantUnconfirmed(t, m.wait()) // which is less patient than a rebalance lasts
	if got := b.committed("other")[0]; got != 1 {
		t.Errorf("committed %d of the other topic, want 1", got)
	}
}

// A commit names several topics in any order, and so do the errors of those that are gone: they are the same ones.
func TestWorker_TopicsThatAreDeletedFloodNoLog(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "other"))
	b.produce(0, 1, 1, 0)
	elsewhere := order(1)
	elsewhere.Topic = "other"
	if err := b.client.ProduceSync(t.Context(), elsewhere).FirstErr(); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	}), franz.Config{}, kgo.ConsumeTopics("orders", "other"))
	until(t, "both records", func() bool { return b.runsOf(orderID(0)) == 1 && b.runsOf(orderID(1)) == 1 })
	if _, err := b.admin.DeleteTopics(t.Context(), "orders", "other"); err != nil {
		t.Fatal(err)
	}
	close(release)
	until(t, "the handlers", func() bool { return b.finished() == 2 })
	until(t, "a line that says so", func() bool { return strings.Contains(b.log.String(), "commit failed") })
	lasts(time.Second) // 50 commits
	if said := strings.Count(b.log.String(), "commit failed"); said < 1 || said > 5 {
		t.Errorf("%d lines say that commits fail, want one for each reason a minute", said)
	}
	m.stop()
	wantUnconfirmed(t, m.wait())
}

// A topic may have a longer name than a handler.
func TestWorker_TopicWithALongNameIsGuarded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("orders", 30)
	b := newBench(t, 1, kfake.SeedTopics(1, long))
	record := order(0)
	record.Topic = long
	if err := b.client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{}, kgo.ConsumeTopics(long))
	until(t, "the record", func() bool { return b.finished() == 1 })
	m.leave()
}

// A fingerprinter may trip over a single payload.
func TestWorker_RecordThatCannotBeGuardedKeepsOnlyItsOwnPartition(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 4, 2, 0)
	bad := string(order(1).Value)
	var met atomic.Bool
	once := b.processor(consumer.Config{
		Policy: oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}},
		Fingerprint: func(payload []byte) (dedupstore.Fingerprint, error) {
			if string(payload) == bad && !met.Load() {
				return dedupstore.Fingerprint{Scheme: "own", Sum: "order 1"}, nil
			}
			return producer.FingerprintPayload(payload)
		},
	})
	m := b.start(once, b.handler(byRecord, nil), franz.Config{})
	until(t, "the other partition", func() bool { return b.finished() == 2 })
	until(t, "the record to be said", func() bool { return strings.Contains(b.log.String(), "offered many times") })
	met.Store(true)
	until(t, "all records", func() bool { return b.finished() == 4 })
	m.leave()
	wantLog(t, b, "level=WARN", "offered many times", "topic=orders", "partition=1", "offset=0")
}

// The log says which message holds up a partition for long, but not each time.
func TestWorker_RecordThatWaitsForLongIsSaid(t *testing.T) {
	t.Parallel()
	const runs = 40
	b := newBench(t, 1)
	b.produce(0, 1, 1, 0)
	once := b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: runs + 1, Backoff: oncemill.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}}})
	m := b.start(once, b.handler(byRecord, func(_ context.Context, _ string, run int) error {
		if run < runs {
			return errors.New("the bank is closed")
		}
		return nil
	}), franz.Config{})
	until(t, "the record", func() bool { return b.finished() == 1 })
	m.leave()
	wantLog(t, b, "level=WARN", "offered many times", "topic=orders", "offset=0", "id=o0", "offers=8", "the bank is closed")
	if said := strings.Count(b.log.String(), "offered many times"); said < 1 || said > 3 {
		t.Errorf("%d lines of %d runs, want some, but few", said, runs)
	}
}

// A fullStore has no room while it is full.
type fullStore struct {
	dedupstore.Store
	full  atomic.Bool
	asked atomic.Int64
}

func (s *fullStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *fullStore) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.asked.Add(1)
	if s.full.Load() {
		return dedupstore.Answer{}, dedupstore.ErrFull
	}
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func TestWorker_RecordsThatAllWaitForTheSameFloodNoLog(t *testing.T) {
	t.Parallel()
	const n = 200
	b := newBench(t, 2)
	b.produce(0, n, 2, n)
	store := &fullStore{Store: b.store}
	store.full.Store(true)
	b.store = store
	began := time.Now()
	m := b.start(b.processor(consumer.Config{}), b.handler(byKey, nil), franz.Config{Order: franz.PerKey})
	until(t, "many offers of each", func() bool { return store.asked.Load() > 20*n })
	store.full.Store(false)
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	said, most := strings.Count(b.log.String(), "offered many times"), int(time.Since(began)/time.Second)+1
	if said < 1 || said > most {
		t.Errorf("%d lines of %d records that wait, want 1 to %d, one a second", said, n, most)
	}
}

// A partition that stays broken is known after the first line.
func TestWorker_PartitionThatCannotBeFetchedFloodsNoLog(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 2, 2, 0)
	broken := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Partitions: []int32{1}, Err: kerr.UnknownServerError, Count: -1})
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
	until(t, "the other partition", func() bool { return b.finished() == 1 })
	hits := broken.Hits()
	until(t, "the partition to be asked for again", func() bool { return broken.Hits() > hits+10 })
	m.leave()
	if said := strings.Count(b.log.String(), "cannot be fetched"); said != 1 {
		t.Errorf("%d lines, want one a minute:\n%s", said, b.log.String())
	}
}

// A group with records in a topic that was made again would miss as many as the old one had.
func TestWorker_OffsetsOfATopicAreNotForItsNamesake(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]kfake.Opt{
		"commits name topics by ID":   nil,
		"commits name topics by name": {kfake.MaxVersions(kversion.V4_1_0())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			offsetsAreNotForNamesakes(t, newBench(t, 1, opts...))
		})
	}
}

func offsetsAreNotForNamesakes(t *testing.T, b *bench) {
	t.Helper()
	b.produce(0, 2, 1, 0)
	release := make(chan struct{})
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(1) {
			<-release
		}
		return nil
	}), franz.Config{})
	until(t, "the first", func() bool { return b.committed("orders")[0] == 1 && b.runsOf(orderID(1)) == 1 })
	if _, err := b.admin.DeleteTopics(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	b.produce(2, 4, 1, 0)
	close(release)
	select { // kgo asks for it several times, and the last commit for 5 s
	case err := <-m.ended:
		m.ended = nil
		if as[*dedupstore.SetupError](t, err); !strings.Contains(err.Error(), "--delete-offsets") {
			t.Errorf("error %q does not say what to do about offsets", err)
		}
	case <-time.After(3 * waitLimit):
		t.Fatal("Run does not return")
	}
	m.cl.CloseAllowingRebalance()
	if offset, ok := b.committed("orders")[0]; ok {
		t.Errorf("committed %d of a topic of which nothing was settled", offset)
	}
	m = b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
	until(t, "all of the new topic", func() bool { return b.finished() == 6 })
	m.leave()
}

// A client that reaches no broker asks one after the other, and each has an address of its own: it is the same outage.
func TestWorker_OutageOfSeveralBrokersFloodsNoLog(t *testing.T) {
	t.Parallel()
	for line, opts := range map[string][]kgo.Opt{
		"commit failed":              {kgo.ServerSideBalancer()}, // which keeps what it has, and so has something to commit
		"membership was interrupted": nil,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, kfake.NumBrokers(3))
			b.produce(0, 1, 1, 0)
			release := make(chan struct{})
			opts := append(opts, kgo.SessionTimeout(500*time.Millisecond), kgo.HeartbeatInterval(50*time.Millisecond), kgo.RebalanceTimeout(time.Second),
				kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(context.Context, string, int) error { <-release; return nil }),
				franz.Config{Grace: 250 * time.Millisecond}, opts...)
			until(t, "the record", func() bool { return b.started() == 1 })
			b.cluster.Close()
			close(release)
			until(t, "the outage to be said", func() bool { return strings.Contains(b.log.String(), line) })
			lasts(2 * time.Second) // some tens of tries
			if said := strings.Count(b.log.String(), line); said > 5 {
				t.Errorf("%d lines, want one for each reason a minute:\n%s", said, b.log.String())
			}
			m.stop()
			_ = m.wait() // ErrUnconfirmed, unless the partition was lost before
		})
	}
}

// Of the new protocol nothing else says that a member is not let in.
func TestWorker_MemberThatIsNotLetInIsSaid(t *testing.T) {
	t.Parallel()
	const said = "nothing may be consumed for now"
	b := newBench(t, 1)
	b.produce(0, 1, 1, 0)
	full := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupHeartbeat}, Err: kerr.CoordinatorNotAvailable, Count: -1, TopLevel: true})
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{Grace: 250 * time.Millisecond}, kgo.ServerSideBalancer(), kgo.SessionTimeout(500*time.Millisecond), kgo.RebalanceTimeout(500*time.Millisecond))
	until(t, "it to be said", func() bool { return strings.Contains(b.log.String(), said) })
	full.Remove()
	until(t, "the record", func() bool { return b.finished() == 1 })
	m.leave()
	if n := strings.Count(b.log.String(), said); n != 1 {
		t.Errorf("%d lines, want one a minute:\n%s", n, b.log.String())
	}
}

// A member that joins waits until the others have given up what they have, and these wait for their handlers. That may
// take the rebalance timeout, which may be far longer than the session's.
func TestWorker_MemberThatWaitsForHandlersOfOthersIsNoAlarm(t *testing.T) {
	t.Parallel()
	const session = 5 * time.Second // the first must not be put out on a machine that is busy
	b := newBench(t, 2)
	b.look = session / 10
	b.produce(0, 1, 2, 0)
	proceed := make(chan struct{})
	handle := b.handler(byRecord, func(context.Context, string, int) error { <-proceed; return nil })
	opts := []kgo.Opt{kgo.SessionTimeout(session), kgo.Balancers(kgo.RangeBalancer())}
	first := b.start(b.processor(consumer.Config{}), handle, franz.Config{}, opts...)
	until(t, "the handler", func() bool { return b.started() == 1 })
	second := b.start(b.processor(consumer.Config{}), handle, franz.Config{}, opts...)
	lasts(session + 5*b.look)
	if _, generation := second.cl.GroupMetadata(); generation > 0 {
		t.Error("the second member has not waited")
	}
	close(proceed)
	until(t, "the second member", func() bool { _, generation := second.cl.GroupMetadata(); return generation > 0 })
	if log := b.log.String(); strings.Contains(log, "nothing may be consumed") {
		t.Errorf("said although nothing is wrong:\n%s", log)
	}
	first.leave()
	second.leave()
}
