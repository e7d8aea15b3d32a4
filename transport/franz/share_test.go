package franz_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// shareLock is how long the broker keeps a record for a member in these tests.
const shareLock = 3 * time.Second

// A shareBench is a bench on the real broker, with a share group and topics of its own.
type shareBench struct {
	*bench
	topic, retry, dead, group string
}

var shareBenches atomic.Int64

// newShareBench makes topics, and a share group with settings, "name=value", that win over those of the tests.
func newShareBench(t testing.TB, partitions int, settings ...string) *shareBench {
	t.Helper()
	return newShareBenchOn(t, kafkatest.Shared(t), partitions, settings...)
}

func newShareBenchOn(t testing.TB, server *kafkatest.Server, partitions int, settings ...string) *shareBench {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("share-%d", shareBenches.Add(1))
	b := &shareBench{
		bench: &bench{t: t, ledger: newLedger(), store: store, addrs: []string{server.Addr}},
		topic: name, retry: name + "-retry", dead: name + "-dead", group: name + "-billing",
	}
	b.logger = slog.New(slog.NewTextHandler(&b.log, nil))
	b.client = b.newClient()
	b.admin = kadm.NewClient(b.client)
	server.CreateTopic(b.topic, partitions)
	server.CreateTopic(b.retry, 1)
	server.CreateTopic(b.dead, 1)
	b.set(append([]string{
		"share.auto.offset.reset=earliest", "share.isolation.level=read_committed", "share.session.timeout.ms=5000",
		"share.record.lock.duration.ms=" + strconv.FormatInt(shareLock.Milliseconds(), 10),
	}, settings...)...)
	return b
}

// set changes settings of the group.
func (b *shareBench) set(settings ...string) {
	b.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, b.group
	values := map[string]string{}
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		values[name] = value
	}
	for name, value := range values {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = name, &value
		resource.Configs = append(resource.Configs, c)
	}
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(b.t.Context(), b.client)
	if err != nil || resp.Resources[0].ErrorCode != 0 {
		b.t.Fatalf("set %v: %v, %+v", settings, err, resp)
	}
	until(b.t, "the group's settings", func() bool { return b.has(values) })
}

// has reports whether the broker knows settings of the group.
func (b *shareBench) has(values map[string]string) bool {
	b.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, b.group
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(b.t.Context(), b.client)
	if err != nil {
		b.t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range resp.Resources[0].Configs {
		if c.Value != nil {
			found[c.Name] = *c.Value
		}
	}
	for name, value := range values {
		if found[name] != value {
			return false
		}
	}
	return true
}

// put writes orders from to from+n-1, each as often as copies says, one after the other to the partitions.
func (b *shareBench) put(from, n, copies int) {
	b.t.Helper()
	cl := b.newClient(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	defer cl.Close()
	var records []*kgo.Record
	for range copies {
		for i := from; i < from+n; i++ {
			r := order(i)
			r.Topic = b.topic
			r.Key = fmt.Appendf(nil, "k%d", i)
			records = append(records, r)
		}
	}
	if err := cl.ProduceSync(b.t.Context(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// opts are those of a member's client, beside the worker's.
func (b *shareBench) opts(opts ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{kgo.ShareGroup(b.group), kgo.ConsumeTopics(b.topic, b.retry), kgo.FetchMaxWait(100 * time.Millisecond)}, opts...)
}

// begin runs a worker.
func (b *shareBench) begin(once *consumer.Processor, handle franz.Handler, config franz.ShareConfig, opts ...kgo.Opt) *member {
	b.t.Helper()
	if config.Logger == nil {
		config.Logger = b.logger
	}
	config.Handler, config.RetryTopic = "charge", b.retry
	w, err := franz.NewShareWorker(once, handle, config)
	if err != nil {
		b.t.Fatal(err)
	}
	cl := b.newClient(append(w.Opts(), b.opts(opts...)...)...)
	ctx, stop := context.WithCancel(context.Background())
	m := &member{t: b.t, cl: cl, stop: stop, ended: make(chan error, 1)}
	go func() { m.ended <- w.Run(ctx, cl) }()
	b.t.Cleanup(func() {
		stop()
		if m.ended != nil {
			<-m.ended
		}
		cl.Close()
	})
	return m
}

// raw returns a member of the group without a worker.
func (b *shareBench) raw() *kgo.Client {
	return b.newClient(b.opts(kgo.ShareMaxRecordsStrict())...)
}

// await waits until as many members have partitions of the topic.
func (b *shareBench) await(members int) {
	b.t.Helper()
	until(b.t, "members to have partitions", func() bool {
		found, err := b.admin.DescribeShareGroups(b.t.Context(), b.group)
		if err != nil {
			b.t.Fatal(err)
		}
		assigned := 0
		for _, m := range found[b.group].Members {
			if len(m.Assignment[b.topic]) > 0 {
				assigned++
			}
		}
		return assigned >= members
	})
}

// wantSettled waits until the group has nothing before it in a topic.
func (b *shareBench) wantSettled(topic string) {
	b.t.Helper()
	until(b.t, "the group to have settled "+topic, func() bool {
		found, err := b.admin.DescribeShareGroupOffsets(b.t.Context(), b.group)
		if err != nil {
			b.t.Fatal(err)
		}
		ends, err := b.admin.ListEndOffsets(b.t.Context(), topic)
		if err != nil {
			b.t.Fatal(err)
		}
		settled := true
		ends.Each(func(end kadm.ListedOffset) {
			at, known := found[b.group].Offsets[topic][end.Partition]
			settled = settled && (end.Offset == 0 || known && at.Err == nil && at.Lag == 0)
		})
		return settled
	})
}

func TestShareWorker_EachMessageRunsOnceOverCopiesAndMembers(t *testing.T) {
	t.Parallel()
	const n = 400
	b := newShareBench(t, 1) // which they share
	var runs [4]atomic.Int64
	var members []*member
	for i := range runs {
		members = append(members, b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(context.Context, string, int) error {
			runs[i].Add(1)
			lasts(5 * time.Millisecond)
			return nil
		}), franz.ShareConfig{MaxInFlight: 8}))
	}
	b.await(2) // others may have the retry topic alone
	b.put(0, n, 2)
	until(t, "all messages", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	for _, m := range members {
		m.leave()
	}
	b.wantOnce(t, n)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d messages", runs, n)
	}
	busy := 0
	for i := range runs {
		if runs[i].Load() > 0 {
			busy++
		}
	}
	if busy < 2 {
		t.Errorf("%d members had records of the one partition, want at least 2", busy)
	}
	if left := b.records(b.retry); len(left) > 0 {
		t.Errorf("%d records were copied, want none", len(left))
	}
}

// shareMember is the argument that makes the test program a member of a share group whose handlers never end.
const shareMember = "share-member"

func beShareMember(args []string) {
	addr, group, topic, retry := args[0], args[1], args[2], args[3]
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	once, err := consumer.New(store, consumer.Config{Group: "billing"})
	if err != nil {
		panic(err)
	}
	w, err := franz.NewShareWorker(once, func(context.Context, *kgo.Record) error {
		fmt.Println("started")
		select {}
	}, franz.ShareConfig{Handler: "charge", RetryTopic: retry})
	if err != nil {
		panic(err)
	}
	cl, err := kgo.NewClient(append(w.Opts(), kgo.SeedBrokers(addr), kgo.ShareGroup(group), kgo.ConsumeTopics(topic, retry))...)
	if err != nil {
		panic(err)
	}
	fmt.Println(w.Run(context.Background(), cl))
}

func TestShareWorker_WhatAKilledMemberHadIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	const n = 50
	b := newShareBench(t, 2)
	b.put(0, n, 1)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	killed, err := testserver.StartProgram(dir, self, shareMember, b.addrs[0], b.group, b.topic, b.retry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killed.Kill() })
	until(t, "the member that is killed to have all", func() bool {
		log, err := os.ReadFile(dir + "/log")
		return err == nil && strings.Count(string(log), "started") == n
	})
	if err := killed.Kill(); err != nil {
		t.Fatal(err)
	}
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	until(t, "all messages", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	m.leave()
	b.wantOnce(t, n)
}

// A wire is how a member reaches the broker.
type wire struct {
	mu     sync.Mutex
	conns  []net.Conn
	gone   bool
	frozen chan struct{} // closed: nothing goes through any more, and nobody is told
}

type wiredConn struct {
	net.Conn
	frozen <-chan struct{}
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	wired := wiredConn{c, w.frozen}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		c.Close()
		return nil, net.ErrClosed
	}
	w.conns = append(w.conns, wired)
	return wired, nil
}

// cut breaks all connections. When they were frozen, there are no new ones.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = wiredConn{frozen: w.frozen}.isFrozen()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func (c wiredConn) isFrozen() bool {
	select {
	case <-c.frozen:
		return true
	default:
		return false
	}
}

func (c wiredConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.isFrozen() {
			return n, err
		}
	}
}

func (c wiredConn) Write(p []byte) (int, error) {
	if c.isFrozen() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func TestShareWorker_WhatAMemberThatIsCutOffHadIsDeliveredAgainAndRunsOnce(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 1, 1)
	var counts sync.Map // delivery counts by member
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	handle := func(name string) franz.Handler {
		return func(ctx context.Context, rec *kgo.Record) error {
			counts.Store(name, rec.DeliveryCount())
			return b.handler(byRecord, func(context.Context, string, int) error {
				<-release
				return nil
			})(ctx, rec)
		}
	}
	w := &wire{frozen: make(chan struct{})}
	store := &counting{Store: b.store, id: orderID(0)}
	b.store = store
	once := b.processor(consumer.Config{MaxWait: waitLimit}) // else the second would wait for the lease of the first
	lost := b.begin(once, handle("lost"), franz.ShareConfig{}, kgo.Dialer(w.dial), kgo.RetryTimeout(time.Second), kgo.RequestTimeoutOverhead(time.Second))
	until(t, "the run", func() bool { return b.started() == 1 })
	close(w.frozen)
	defer w.cut()
	claims := store.claims.Load()
	heir := b.begin(once, handle("heir"), franz.ShareConfig{})
	until(t, "the record to come to another member, when its lock has ended", func() bool { return store.claims.Load() > claims })
	free()
	b.wantSettled(b.topic)
	heir.leave()
	if runs := b.started(); runs != 1 {
		t.Errorf("%d runs, want one: the second member finds the outcome", runs)
	}
	if _, ran := counts.Load("heir"); ran {
		t.Error("the second member ran it")
	}
	lost.stop()
	if err := lost.wait(); err != nil {
		wantUnconfirmed(t, err) // if it has not noticed before that the lock is lost
	}
}

func TestShareWorker_BrokenConnectionsRunNothingTwice(t *testing.T) {
	t.Parallel()
	const n = 60
	b := newShareBench(t, 2)
	b.put(0, n, 1)
	w := &wire{frozen: make(chan struct{})}
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(context.Context, string, int) error {
		lasts(300 * time.Millisecond)
		return nil
	}), franz.ShareConfig{MaxInFlight: 20}, kgo.Dialer(w.dial))
	for run := range 3 {
		until(t, "runs", func() bool { return b.started() > run*20 })
		w.cut()
	}
	until(t, "all messages", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	b.wantSettled(b.retry)
	m.stop()
	if err := m.wait(); err != nil {
		wantUnconfirmed(t, err) // of a lock that was lost with a connection
	}
	b.wantOnce(t, n)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d messages", runs, n)
	}
}

func TestShareWorker_HandlerLongerThanItsLockIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	store := &counting{Store: b.store, id: orderID(0)}
	b.store = store
	b.put(0, 1, 1)
	var ended atomic.Int32
	handle := b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
		select {
		case <-time.After(shareLock * 2):
		case <-ctx.Done():
		}
		ended.Add(1)
		return ctx.Err()
	})
	once := b.processor(consumer.Config{})
	members := []*member{b.begin(once, handle, franz.ShareConfig{}), b.begin(once, handle, franz.ShareConfig{})}
	until(t, "the long handler", func() bool { return ended.Load() == 1 })
	b.wantSettled(b.topic)
	for _, m := range members {
		m.leave()
	}
	if claims := store.claims.Load(); claims != 1 {
		t.Errorf("%d claims, want one: the record was delivered again", claims)
	}
	b.wantOnce(t, 1)
}

func TestShareWorker_BusyKeysUseUpNoDeliveryAndTakeNoRoom(t *testing.T) {
	t.Parallel()
	const n, busy, window = 60, 4, 3
	b := newShareBench(t, 1)
	const lease = shareLock + time.Second
	for i := range busy {
		key := dedupstore.Key{Tenant: "default", Group: group, Handler: "charge", ID: orderID(i)}
		fingerprint, err := producer.FingerprintPayload([]byte(orderID(i)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dedupstore.ClaimOne(t.Context(), b.store, dedupstore.Request{
			Key: key, Owner: "another-owner-of-the-key", Lease: lease, Retention: time.Hour, MaxAttempts: 10,
			Fingerprint: fingerprint,
		}); err != nil {
			t.Fatal(err)
		}
	}
	claimed := time.Now()
	b.put(0, n, 1)
	var again atomic.Int32
	var first atomic.Int64 // when the first busy one ran
	work := b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(0) {
			first.Store(int64(time.Since(claimed)))
		}
		return nil
	})
	m := b.begin(b.processor(consumer.Config{MaxWait: consumer.NoWait}), func(ctx context.Context, rec *kgo.Record) error {
		if rec.DeliveryCount() != 1 {
			again.Add(1)
		}
		return work(ctx, rec)
	}, franz.ShareConfig{MaxInFlight: window})
	until(t, "all, the busy ones after their leases", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	m.leave()
	if got := again.Load(); got != 0 {
		t.Errorf("%d records were delivered again", got)
	}
	if copies := b.records(b.retry); len(copies) > 0 {
		t.Errorf("%d records had to be copied", len(copies))
	}
	if took := time.Duration(first.Load()); took < lease-200*time.Millisecond {
		t.Errorf("a busy one ran after %v, the lease of its owner is %v", took, lease)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := busy; i < n; i++ {
		if b.done[orderID(i)] != 1 {
			t.Errorf("%s was done %d times, want once", orderID(i), b.done[orderID(i)])
		}
	}
}

// Which come first cannot be told by the time on a machine that is busy: the ones that wait stay busy until the others
// are done.
func TestShareWorker_RecordsThatWaitHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	const n, waiting, window = 40, 7, 3
	b := newShareBench(t, 1)
	b.put(0, n, 1)
	var others atomic.Int32
	m := b.begin(b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1000}}), b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		i, err := strconv.Atoi(strings.TrimPrefix(id, "o"))
		switch {
		case err != nil:
			return oncemill.Permanent(err)
		case i < waiting && others.Load() < n-waiting:
			return oncemill.RetryAfter(500*time.Millisecond, errors.New("not before the others"))
		case i >= waiting:
			others.Add(1)
		}
		return nil
	}), franz.ShareConfig{MaxInFlight: window})
	until(t, "all", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	m.leave()
	b.wantOnce(t, n)
}

func TestShareWorker_OutageOfTheStoreUsesUpNoDelivery(t *testing.T) {
	t.Parallel()
	const n = 20
	b := newShareBench(t, 1)
	store := &switched{Store: b.store}
	store.down.Store(true)
	b.store = store
	b.put(0, n, 1)
	var again atomic.Int32
	work := b.handler(byRecord, nil)
	m := b.begin(b.processor(consumer.Config{MaxWait: 100 * time.Millisecond}), func(ctx context.Context, rec *kgo.Record) error {
		if rec.DeliveryCount() != 1 {
			again.Add(1)
		}
		return work(ctx, rec)
	}, franz.ShareConfig{})
	until(t, "the store to be asked", func() bool { return store.asked.Load() > 0 })
	lasts(shareLock + time.Second)
	if runs := b.started(); runs != 0 {
		t.Errorf("%d runs while the store was down", runs)
	}
	store.down.Store(false)
	until(t, "all messages", func() bool { return b.finished() == n })
	m.leave()
	if got := again.Load(); got != 0 {
		t.Errorf("%d messages were delivered again", got)
	}
	b.wantOnce(t, n)
}

// A switched store can be down.
type switched struct {
	dedupstore.Store
	down  atomic.Bool
	asked atomic.Int64
}

func (s *switched) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *switched) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.asked.Add(1)
	if s.down.Load() {
		return dedupstore.Answer{}, errors.New("down")
	}
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func TestShareWorker_PoisonIsDeadLetteredAfterItsAttempts(t *testing.T) {
	t.Parallel()
	const n, attempts = 20, 7 // more than the deliveries that the broker allows
	b := newShareBench(t, 1)
	b.put(0, n, 1)
	deadLetters, err := franz.NewPublisher(b.newClient(franz.PublisherOpts()...), franz.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once := b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: attempts}, DeadLetters: deadLetters, DeadLetterTopic: b.dead})
	m := b.begin(once, b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(7) {
			return errors.New("never")
		}
		return nil
	}), franz.ShareConfig{})
	until(t, "the others", func() bool { return b.finished() == n-1 })
	b.wantSettled(b.topic)
	until(t, "the attempts, in the retry topic", func() bool { return b.runsOf(orderID(7)) == attempts })
	b.wantSettled(b.retry)
	m.leave()
	if runs := b.runsOf(orderID(7)); runs != attempts {
		t.Errorf("the poison ran %d times, want %d", runs, attempts)
	}
	letter := b.only(b.dead)
	if got := headerOf(letter, producer.HeaderOriginalID); got != orderID(7) {
		t.Errorf("the dead letter is of %q", got)
	}
	if got := headerOf(letter, producer.HeaderTopic); got != b.topic {
		t.Errorf("the dead letter names topic %q", got)
	}
}

func TestShareWorker_RejectedRecordIsSaidLoudlyAndNotDeliveredAgain(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 3, 1)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(1) {
			return oncemill.Permanent(errors.New("no such account"))
		}
		return nil
	}), franz.ShareConfig{})
	b.wantSettled(b.topic)
	m.leave()
	if runs := b.runsOf(orderID(1)); runs != 1 || b.finished() != 2 {
		t.Errorf("%d runs of the rejected one, %d others done, want 1 and 2", runs, b.finished())
	}
	wantLog(t, b.bench, "level=ERROR", "rejected", "topic="+b.topic, "partition=0", "offset=1", "no such account")
}

func TestShareWorker_FinishedHandlersAreAcknowledgedOnShutdownAndTheRestIsGivenBack(t *testing.T) {
	t.Parallel()
	const inFlight, n = 10, 30
	b := newShareBench(t, 1)
	b.put(0, n, 1)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	handle := b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
		<-release
		return ctx.Err() // Run's context has ended, the handler's has not
	})
	m := b.begin(b.processor(consumer.Config{}), handle, franz.ShareConfig{MaxInFlight: inFlight}, kgo.ShareMaxRecords(n))
	until(t, "a full window", func() bool { return b.started() == inFlight })
	m.stop()
	lasts(50 * time.Millisecond)
	free()
	if err := m.wait(); err != nil {
		t.Fatal(err)
	}
	if started, finished := b.started(), b.finished(); started != inFlight || finished != inFlight {
		t.Errorf("%d started, %d finished, want %d: nothing starts in a drain", started, finished, inFlight)
	}
	m.cl.Close()
	again := b.begin(b.processor(consumer.Config{}), handle, franz.ShareConfig{})
	until(t, "the rest", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	again.leave()
	b.wantOnce(t, n)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d messages: something that finished ran again", runs, n)
	}
}

func TestShareWorker_HandlersThatOutliveTheGraceAreCancelled(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 4, 1)
	handle := b.handler(byRecord, func(ctx context.Context, id string, run int) error {
		if id == orderID(2) && run == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	m := b.begin(b.processor(consumer.Config{}), handle, franz.ShareConfig{Grace: 50 * time.Millisecond})
	until(t, "the slow one, and the others", func() bool { return b.finished() == 3 && b.runsOf(orderID(2)) == 1 })
	m.leave()
	again := b.begin(b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1}}), handle, franz.ShareConfig{})
	until(t, "the slow one, whose attempt does not count", func() bool { return b.finished() == 4 })
	again.leave()
	b.wantOnce(t, 4)
}

func TestShareWorker_RecordsOfAbortedTransactionsAreNotHandled(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	cl := b.newClient(kgo.TransactionalID(b.topic))
	for i := range 6 { // each ends with a record of the broker's
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		rec := order(i)
		rec.Topic = b.topic
		if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(i%2 == 0)); err != nil {
			t.Fatal(err)
		}
	}
	b.put(6, 1, 1)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	until(t, "the last record", func() bool { return b.finished() == 4 })
	b.wantSettled(b.topic)
	m.leave()
	if started := b.started(); started != 4 {
		t.Errorf("%d runs, want 4: of three committed records, and one without a transaction", started)
	}
}

func TestShareWorker_RunReturnsWhenItsClientIsClosed(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 3, 1)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	until(t, "all records", func() bool { return b.finished() == 3 })
	m.cl.Close()
	if err := m.wait(); !errors.Is(err, kgo.ErrClientClosed) {
		t.Errorf("Run: %v, want %v", err, kgo.ErrClientClosed)
	}
}

// release has all records of the group delivered n times, to nobody who handles them. The last time, they go back when
// the client leaves. A fetch that began as a poll ended takes what was given back before, and that is another delivery.
func (b *shareBench) release(records, n int) {
	b.t.Helper()
	cl := b.raw()
	defer cl.Close()
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
	defer cancel()
	for last := 0; last < records; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			b.t.Fatalf("only %d of %d records were delivered %d times", last, records, n)
		}
		for _, rec := range fetches.Records() {
			if int(rec.DeliveryCount()) < n {
				rec.Ack(kgo.AckRelease)
			} else {
				last++
			}
		}
		if last != 0 && last != records {
			b.t.Fatalf("%d of %d records were delivered %d times before the others", last, records, n)
		}
		if err := cl.FlushAcks(ctx); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestShareWorker_RecordThatHasUsedUpMostDeliveriesGoesOnAsACopy(t *testing.T) {
	t.Parallel()
	const n = 5
	b := newShareBench(t, 1, "share.delivery.count.limit=4")
	b.put(0, n, 1)
	b.release(n, 2)
	var seen sync.Map
	work := b.handler(byRecord, nil)
	store := &scoped{Store: b.store}
	b.store = store
	m := b.begin(b.processor(consumer.Config{}), func(ctx context.Context, rec *kgo.Record) error {
		seen.Store(string(rec.Value), rec)
		return work(ctx, rec)
	}, franz.ShareConfig{})
	until(t, "all messages", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	b.wantSettled(b.retry)
	m.leave()
	b.wantOnce(t, n)
	for i := range n {
		got, _ := seen.Load(orderID(i))
		rec, _ := got.(*kgo.Record)
		if rec == nil || rec.Topic != b.retry || rec.DeliveryCount() != 1 || string(rec.Key) != fmt.Sprintf("k%d", i) {
			t.Errorf("%s ran as %+v, want a copy in the retry topic", orderID(i), rec)
		}
	}
	if handlers := store.handlers(); !slices.Equal(handlers, []string{"charge"}) {
		t.Errorf("claims were made for %q, want one name: else a copy and its original were two messages", handlers)
	}
	wantLog(t, b.bench, "level=WARN", "goes on as a copy", "topic="+b.topic, "deliveries=3")
}

// A scoped store notes for which handlers claims are made.
type scoped struct {
	dedupstore.Store
	seen sync.Map
}

func (s *scoped) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *scoped) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.seen.Store(r.Key.Handler, true)
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func (s *scoped) handlers() (names []string) {
	s.seen.Range(func(name, _ any) bool {
		names = append(names, name.(string))
		return true
	})
	return names
}

// nowhere sends records to a partition that there is not.
var nowhere = kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
	return func(*kgo.Record, int) int { return -1 }
})

func TestShareWorker_RecordThatCannotBeCopiedIsSaidToBeLostOnlyWhenItIs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		releases int
		lost     bool
	}{
		{"a delivery is left", 2, false},
		{"the last delivery", 3, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newShareBench(t, 1, "share.delivery.count.limit=4")
			b.put(0, 1, 1)
			b.release(1, tc.releases)
			m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{}, kgo.RecordPartitioner(nowhere))
			until(t, "the copy to be refused", func() bool { return strings.Contains(b.log.String(), "cannot be copied") })
			m.leave()
			if runs := b.started(); runs != 0 {
				t.Errorf("%d runs", runs)
			}
			if lost := strings.Contains(b.log.String(), "record is lost"); lost != tc.lost {
				t.Errorf("lost: %v, want %v:\n%s", lost, tc.lost, b.log.String())
			}
			if tc.lost {
				return
			}
			again := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
			until(t, "the record", func() bool { return b.finished() == 1 })
			again.leave()
		})
	}
}

// limit bounds what the retry topic takes at once.
func (b *shareBench) limit(size int) {
	b.t.Helper()
	value := strconv.Itoa(size)
	resp, err := b.admin.AlterTopicConfigs(b.t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: &value}}, b.retry)
	if err == nil {
		_, err = resp.On(b.retry, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestShareWorker_CopiesThatAreTooLargeTogetherAreMadeOneByOne(t *testing.T) {
	t.Parallel()
	const n = 20
	b := newShareBench(t, 1, "share.delivery.count.limit=4")
	b.limit(400) // one of them, but not all
	b.put(0, n, 1)
	b.release(n, 2)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{}, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(100*time.Millisecond))
	until(t, "all messages", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	b.wantSettled(b.retry)
	m.leave()
	b.wantOnce(t, n)
}

func TestShareWorker_RecordThatTheRetryTopicRefusesIsHandledInPlace(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1, "share.delivery.count.limit=4")
	b.limit(400)
	large := order(0)
	large.Topic = b.topic
	large.Headers = append(large.Headers, kgo.RecordHeader{Key: "note", Value: make([]byte, 1000)})
	if err := b.client.ProduceSync(t.Context(), large).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.put(1, 1, 1)
	b.release(2, 2)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{}, kgo.ProducerBatchCompression(kgo.NoCompression()))
	until(t, "both messages", func() bool { return b.finished() == 2 })
	b.wantSettled(b.topic)
	b.wantSettled(b.retry)
	m.leave()
	b.wantOnce(t, 2)
	wantLog(t, b.bench, "level=ERROR", "refuses", "offset=0")
}

// A stalled wire holds back what goes over it while its lock is held for writing.
type stalled struct {
	net.Conn
	wire *sync.RWMutex
}

func (c stalled) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.RLock()
	defer c.wire.RUnlock()
	return n, err
}

func (c stalled) Write(p []byte) (int, error) {
	c.wire.RLock()
	defer c.wire.RUnlock()
	return c.Conn.Write(p)
}

// The test's broker is number 1: there is no broker 0, which kgo looks for after a refusal.
func TestShareWorker_LostLockEndsTheRunWhereKgoWouldFetchNothingMore(t *testing.T) {
	t.Parallel()
	const n = 20
	b := newShareBench(t, 1, "share.session.timeout.ms=45000")
	b.put(0, n, 1)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	var wire sync.RWMutex
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return stalled{c, &wire}, err
	}
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(context.Context, string, int) error {
		<-release
		return nil
	}), franz.ShareConfig{}, kgo.Dialer(dial), kgo.FetchMaxWait(shareLock/6))
	until(t, "the runs", func() bool { return b.started() == n })
	thief := b.newClient(kgo.ShareGroup(b.group), kgo.ConsumeTopics(b.topic), kgo.FetchMaxWait(100*time.Millisecond), kgo.MaxConcurrentFetches(0))
	b.await(2)
	wire.Lock()
	for stolen := 0; stolen < n; { // when the locks have ended
		stolen += thief.PollFetches(t.Context()).NumRecords()
	}
	wire.Unlock()
	until(t, "the refusal", func() bool { return strings.Contains(b.log.String(), "has refused acknowledgements") })
	free()
	if err := m.wait(); err == nil || !strings.Contains(err.Error(), "start the process again") {
		t.Errorf("Run: %v, want an error that says what to do", err)
	}
	m.cl.Close()
	thief.MarkAcks(kgo.AckRelease)
	if err := thief.FlushAcks(t.Context()); err != nil {
		t.Fatal(err)
	}
	thief.Close()
	again := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	b.wantSettled(b.topic)
	again.leave()
	b.wantOnce(t, n)
}

// Kafka 4.3 answers a fetch that names a topic which is gone with an error of the whole, and kgo goes on to name it.
func TestShareWorker_TopicThatIsMadeAgainEndsTheRun(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 1, 1)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	until(t, "the first", func() bool { return b.finished() == 1 })
	if _, err := b.admin.DeleteTopics(t.Context(), b.topic); err != nil {
		t.Fatal(err)
	}
	until(t, "the topic to be made again", func() bool {
		made, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, b.topic)
		return err == nil && made.Err == nil
	})
	// A broker that refuses an acknowledgement before anybody has looked at the topic ends the run, too.
	err := m.wait()
	if named := err != nil && strings.Contains(err.Error(), b.topic); !named && !strings.Contains(fmt.Sprint(err), "a lock was lost") {
		t.Errorf("Run: %v, want an error that names the topic, or says that a lock was lost", err)
	}
	m.cl.Close()
	b.put(1, 5, 1)
	again := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	until(t, "all of the new topic", func() bool { return b.finished() == 6 })
	again.leave()
	b.wantOnce(t, 6)
}

// A client tries for ever to join its share group, without a word.
func TestShareWorker_MemberThatIsNotLetInIsSaid(t *testing.T) {
	t.Parallel()
	const said = "nothing may be consumed for now"
	b := newShareBench(t, 1)
	b.put(0, 1, 1)
	var letIn atomic.Bool
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return doorkept{c, &letIn}, err
	}
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{}, kgo.Dialer(dial))
	until(t, "it to be said", func() bool { return strings.Contains(b.log.String(), said) })
	letIn.Store(true)
	until(t, "the record", func() bool { return b.finished() == 1 })
	lasts(shareLock)
	m.leave()
	if n := strings.Count(b.log.String(), said); n != 1 {
		t.Errorf("%d lines, want one a minute:\n%s", n, b.log.String())
	}
}

// A doorkept connection breaks when a member would report to its share group, unless it is let in.
type doorkept struct {
	net.Conn
	letIn *atomic.Bool
}

func (c doorkept) Write(request []byte) (int, error) {
	if key := request[4:6]; !c.letIn.Load() && kmsg.Key(int16(key[0])<<8|int16(key[1])) == kmsg.ShareGroupHeartbeat {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(request)
}

// One broker with rights is enough: it takes some seconds to start.
func TestShareWorker_Rights(t *testing.T) {
	t.Parallel()
	server := kafkatest.Start(t, "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true")
	for name, inHand := range map[string]int{"to read that is taken away with a record in hand": 1, "to read that is taken away with none": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rightThatIsTakenAwayEndsTheRun(t, newShareBenchOn(t, server, 1), inHand)
		})
	}
	t.Run("that a member lacks to a topic of another", func(t *testing.T) {
		t.Parallel()
		topicOfAnotherIsNoAlarm(t, server, newShareBenchOn(t, server, 1))
	})
}

// A right may be taken away while it runs. Kafka's refusal of a fetch names broker 0 as the topic's leader. Where there
// is none kgo silently fetches nothing any more, also when the right is back.
func rightThatIsTakenAwayEndsTheRun(t *testing.T, b *shareBench, inHand int) {
	t.Helper()
	proceed := make(chan struct{})
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, _ string, run int) error {
		if inHand > 0 && run == 1 {
			<-proceed
		}
		return nil
	}), franz.ShareConfig{})
	b.await(1)
	b.put(0, inHand, 1)
	until(t, "the record in hand", func() bool { return b.started() == inHand })
	rights := kadm.NewACLs().Topics(b.topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite, kadm.OpDescribe).Allow("User:ANONYMOUS").AllowHosts()
	created, err := b.admin.CreateACLs(t.Context(), rights) // none at all allow everything
	if err != nil || created[0].Err != nil || created[1].Err != nil {
		t.Fatal(err, created)
	}
	close(proceed)
	if err := as[*dedupstore.SetupError](t, m.wait()); err.Subject != fmt.Sprintf("topic %q", b.topic) || !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("Run: %v, want the right to topic %s", err, b.topic)
	}
}

// Kafka tells nothing of a group to who may not see a topic of one of its members.
func topicOfAnotherIsNoAlarm(t *testing.T, server *kafkatest.Server, b *shareBench) {
	t.Helper()
	others := b.topic + "-others"
	server.CreateTopic(others, 1)
	_ = b.newClient(b.opts(kgo.ConsumeTopics(others))...)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{})
	until(t, "both members", func() bool {
		found, err := b.admin.DescribeShareGroups(t.Context(), b.group)
		return err == nil && len(found[b.group].Members) == 2
	})
	rights := kadm.NewACLs().Topics(others).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpRead).Allow("User:another").AllowHosts()
	created, err := b.admin.CreateACLs(t.Context(), rights)
	if err != nil || created[0].Err != nil {
		t.Fatal(err, created)
	}
	until(t, "the refusal", func() bool {
		_, err := b.admin.DescribeShareGroups(t.Context(), b.group)
		return errors.Is(err, kerr.TopicAuthorizationFailed)
	})
	lasts(shareLock) // three looks
	b.put(0, 1, 1)
	until(t, "the record", func() bool { return b.finished() == 1 })
	m.leave()
	if log := b.log.String(); strings.Contains(log, "nothing may be consumed") {
		t.Errorf("said although nothing is wrong:\n%s", log)
	}
}

// Ten times the largest number overflows, and there was never room for a record.
func TestShareWorker_MaxInFlightWithoutBound(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 3, 1)
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{MaxInFlight: math.MaxInt})
	until(t, "all records", func() bool { return b.finished() == 3 })
	m.leave()
}
