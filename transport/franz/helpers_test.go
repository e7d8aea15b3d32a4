package franz_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// Nothing that the tests start outlives them.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil { // they wait most of the time
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// topics counts those of the shared broker.
var topics atomic.Int64

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

// full is the first value in a proof, else the second.
func full[T any](inProof, reduced T) T {
	if proof {
		return inProof
	}
	return reduced
}

// patience bounds every wait for something that must come.
const waitLimit = 2 * time.Minute

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}

// lasts waits for something that takes its time.
func lasts(d time.Duration) { <-time.After(d) }

// A lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const group = "billing"

// A bench is a fake cluster, a store and what its handlers did.
type bench struct {
	*ledger
	t       testing.TB
	cluster *kfake.Cluster // nil: the real broker
	addrs   []string
	store   dedupstore.Store
	admin   *kadm.Client
	client  *kgo.Client // of the tests
	log     lockedBuffer
	logger  *slog.Logger
	look    time.Duration // how often workers look for what kgo tells nobody; zero: as they do
}

// newBench starts a cluster with topic "orders".
func newBench(t testing.TB, partitions int32, opts ...kfake.Opt) *bench {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, ledger: newLedger(), store: store}
	b.logger = slog.New(slog.NewTextHandler(&b.log, nil))
	opts = append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"), kfake.GroupMinSessionTimeout(time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})}, opts...)
	if b.cluster, err = kfake.NewCluster(opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.cluster.Close)
	b.addrs = b.cluster.ListenAddrs()
	b.client = b.newClient()
	b.admin = kadm.NewClient(b.client)
	return b
}

func (b *bench) newClient(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(b.addrs...), kgo.ProducerLinger(0), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cl.CloseAllowingRebalance)
	return cl
}

// produce writes stamped records to orders: record i has ID o<i>, the key k<i mod keys>, and lies in partition i mod
// partitions.
func (b *bench) produce(from, n, partitions, keys int) {
	b.t.Helper()
	cl := b.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer cl.Close()
	var records []*kgo.Record
	for i := from; i < from+n; i++ {
		r := order(i)
		r.Partition = int32(i % partitions)
		if keys > 0 {
			r.Key = fmt.Appendf(nil, "k%d", i%keys)
		}
		records = append(records, r)
	}
	if err := cl.ProduceSync(b.t.Context(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

func orderID(i int) string { return fmt.Sprintf("o%d", i) }

func order(i int) *kgo.Record {
	return &kgo.Record{Topic: "orders", Value: []byte(orderID(i)), Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(orderID(i))}}}
}

// committed returns the group's offsets of a topic by partition.
func (b *bench) committed(topic string) map[int32]int64 {
	b.t.Helper()
	found, err := b.admin.FetchOffsets(b.t.Context(), group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		b.t.Fatal(err)
	}
	offsets := map[int32]int64{}
	for p, o := range found[topic] {
		offsets[p] = o.At
	}
	return offsets
}

// processor returns a processor over the bench's store.
func (b *bench) processor(c consumer.Config) *consumer.Processor {
	b.t.Helper()
	c.Group = group
	if c.Policy.Logger == nil {
		c.Policy.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Policy.Backoff == (oncemill.Backoff{}) {
		c.Policy.Backoff = oncemill.Backoff{Min: 20 * time.Millisecond, Max: 50 * time.Millisecond}
	}
	p, err := consumer.New(b.store, c)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// A member is a worker that runs.
type member struct {
	t     testing.TB
	cl    *kgo.Client
	stop  context.CancelFunc
	ended chan error
}

// start runs a worker. The defaults of the tests are short.
func (b *bench) start(once *consumer.Processor, handle franz.Handler, config franz.Config, opts ...kgo.Opt) *member {
	b.t.Helper()
	config.Handler = "charge"
	if config.CommitEvery == 0 {
		config.CommitEvery = 20 * time.Millisecond
	}
	if config.Logger == nil {
		config.Logger = b.logger
	}
	w, err := franz.NewWorker(once, handle, config)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.run(w, opts...)
}

// startBatches is start for a handler of batches.
func (b *bench) startBatches(
	once *consumer.Processor, handle franz.BatchHandler, config franz.BatchConfig, opts ...kgo.Opt,
) *member {
	b.t.Helper()
	config.Handler, config.CommitEvery, config.Logger = "charge", 20*time.Millisecond, b.logger
	w, err := franz.NewBatchWorker(once, handle, config)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.run(w, opts...)
}

// run runs a worker.
func (b *bench) run(w *franz.Worker, opts ...kgo.Opt) *member {
	b.t.Helper()
	w.LookEvery(b.look)
	opts = append([]kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"), kgo.HeartbeatInterval(50 * time.Millisecond), kgo.SessionTimeout(30 * time.Second),
		kgo.FetchMaxWait(100 * time.Millisecond)}, opts...)
	cl := b.newClient(append(w.Opts(), opts...)...)
	ctx, stop := context.WithCancel(context.Background())
	m := &member{t: b.t, cl: cl, stop: stop, ended: make(chan error, 1)}
	go func() { m.ended <- w.Run(ctx, cl) }()
	b.t.Cleanup(func() {
		stop()
		if m.ended != nil {
			<-m.ended
		}
		cl.CloseAllowingRebalance()
	})
	return m
}

// wait returns what Run returned.
func (m *member) wait() error {
	m.t.Helper()
	select {
	case err := <-m.ended:
		m.ended = nil
		return err
	case <-time.After(waitLimit):
		m.t.Fatal("Run does not return")
		return nil
	}
}

// leave drains the member and closes its client.
func (m *member) leave() {
	m.t.Helper()
	m.stop()
	if err := m.wait(); err != nil {
		m.t.Errorf("Run: %v, want nil after a drain", err)
	}
	m.cl.CloseAllowingRebalance()
}

// A ledger is what handlers did.
type ledger struct {
	mu      sync.Mutex
	runs    map[string]int
	done    map[string]int
	order   map[string][]string // what was done, by lane
	inside  map[string]int      // running now, by lane
	overlap []string
}

func newLedger() *ledger {
	return &ledger{runs: map[string]int{}, done: map[string]int{}, order: map[string][]string{}, inside: map[string]int{}}
}

// handler returns a handler that keeps the ledger: lane says in which order a record belongs, work may be nil.
func (l *ledger) handler(partition func(*kgo.Record) string, work func(ctx context.Context, id string, run int) error) franz.Handler {
	return func(ctx context.Context, rec *kgo.Record) error {
		id, in := string(rec.Value), partition(rec)
		l.mu.Lock()
		l.runs[id]++
		run := l.runs[id]
		if l.inside[in]++; l.inside[in] > 1 {
			l.overlap = append(l.overlap, in+" "+id)
		}
		l.mu.Unlock()
		var err error
		if work != nil {
			err = work(ctx, id, run)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inside[in]--
		if err == nil {
			l.done[id]++
			l.order[in] = append(l.order[in], id)
		}
		return err
	}
}

func byPartition(rec *kgo.Record) string { return fmt.Sprint(rec.Partition) }
func byKey(rec *kgo.Record) string       { return string(rec.Key) }
func byRecord(rec *kgo.Record) string    { return string(rec.Value) }

func (l *ledger) finished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done)
}

func (l *ledger) started() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, runs := range l.runs {
		n += runs
	}
	return n
}

func (l *ledger) runsOf(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

// wantOnce checks that records 0 to n-1 were done, once each, and nothing ran beside its own lane.
func (l *ledger) wantOnce(t testing.TB, n int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n {
		if times := l.done[orderID(i)]; times != 1 {
			t.Errorf("%s was done %d times, want once", orderID(i), times)
		}
	}
	if len(l.overlap) > 0 {
		t.Errorf("ran beside another of its lane: %s", strings.Join(l.overlap, ", "))
	}
}

// wantOrder checks that each lane was done in the order of its numbers.
func (l *ledger) wantOrder(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for partition, ids := range l.order {
		last := -1
		for _, id := range ids {
			var n int
			if _, err := fmt.Sscanf(id, "o%d", &n); err != nil || n <= last {
				t.Errorf("lane %s was done in the order %v", partition, ids)
				break
			}
			last = n
		}
	}
}

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}
