package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A kafka is a broker: the real one, or kfake, which is quick and keeps the same protocol.
type kafka struct {
	addr string
	fake *kfake.Cluster // nil: the real one
}

// eachKafka runs a test with kfake and with the broker that the real tests share.
func eachKafka(t *testing.T, test func(t *testing.T, k kafka)) {
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		test(t, fakeKafka(t))
	})
	t.Run("broker", func(t *testing.T) {
		t.Parallel()
		test(t, kafka{addr: kafkatest.Shared(t).Addr})
	})
}

func fakeKafka(t *testing.T, opts ...kfake.Opt) kafka {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return kafka{addr: c.ListenAddrs()[0], fake: c}
}

// client returns a client that is closed when the test ends.
func (k kafka) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(k.addr)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// A kafkaSetup says what a rig does.
type kafkaSetup struct {
	partitions int           // 0: 4
	rate       int           // messages a second that are offered; 0: none but those of produce
	lease      time.Duration // 0: the default
	attempts   int           // 0: the default
	config     franz.Config
	opts       []kgo.Opt // of the clients of members, beside those of every rig

	// work is what a handler does after its effect. Nil: nothing.
	work func(ctx context.Context, r oncemill.Run)

	// fails says what becomes of a run before it has an effect: an error, or a panic of its own. Nil: nothing.
	fails func() error
}

// A kafkaRig is a topic, the group that consumes it, and a ledger of what its members did. Every fifth message comes
// twice, at once, the copy in another partition, and every 25th once more, later. While it works, it looks at the offsets that the group has
// committed: before each of them, every record must have an outcome.
type kafkaRig struct {
	kafkaSetup
	*ledger.Ledger

	t            *testing.T
	at           kafka
	topic, group string
	once         *consumer.Processor
	adm          *kadm.Client
	source       *kgo.Client // produces

	known sync.Map // messages with an outcome, as the store has said

	mu      sync.Mutex
	next    int                // number of the next message
	records map[int32][]string // the ID of each record, by partition and offset
	audited map[int32]int64
	members []*kafkaMember

	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// kafkaSession is how long a member may be silent, and so how long its partitions stand still when it is killed.
const kafkaSession = time.Second

// kafkaGrace is how long handlers may go on when their member ends.
const kafkaGrace = 5 * time.Second

// patient is the session of members that have to end well. kfake, unlike Kafka, lets a session expire while its member
// waits in a join, and never answers that; and a join may last for the rebalance timeout.
func patient() kgo.Opt { return kgo.SessionTimeout(patientSession) }

const patientSession = 3 * kafkaGrace

// newKafkaRig starts a rig without members.
func newKafkaRig(t *testing.T, k kafka, s kafkaSetup) *kafkaRig {
	t.Helper()
	store, err := redisstore.New(client(t, redistest.Start(t).Addr), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if s.partitions == 0 {
		s.partitions = 4
	}
	name := strings.NewReplacer("/", "-", "TestKafka_", "").Replace(t.Name())
	r := &kafkaRig{
		kafkaSetup: s, Ledger: ledger.New(store), t: t, at: k, topic: fmt.Sprintf("%s-%d", name, rand.Uint32()),
		records: map[int32][]string{}, audited: map[int32]int64{},
	}
	r.group = r.topic + "-billing"
	r.once = kafkaProcessor(t, r, s)
	r.source = k.client(t, kgo.DefaultProduceTopic(r.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordDeliveryTimeout(waitLimit))
	r.adm = kadm.NewClient(k.client(t))
	k.createTopic(t, r.adm, r.topic, s.partitions)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	r.tasks.Go(func() { r.audits(ctx) })
	if s.rate > 0 {
		r.tasks.Go(func() { r.offer(ctx) })
	}
	t.Cleanup(r.close)
	return r
}

func kafkaProcessor(t *testing.T, r *kafkaRig, s kafkaSetup) *consumer.Processor {
	t.Helper()
	once, err := consumer.New(r, kafkaConsumer(r, s.lease, s.attempts))
	if err != nil {
		t.Fatal(err)
	}
	return once
}

// kafkaConsumer is how the consumers of these tests are configured, in this process and in others.
func kafkaConsumer(deadLetters producer.Publisher, lease time.Duration, attempts int) consumer.Config {
	return consumer.Config{
		Group: "billing", DeadLetters: deadLetters, DeadLetterTopic: "dead",
		Policy: oncemill.Policy{
			Lease: lease, MaxAttempts: attempts, Logger: slog.New(slog.DiscardHandler),
			Backoff: oncemill.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		},
	}
}

// createTopic creates a topic and waits for its leaders.
func (k kafka) createTopic(t *testing.T, adm *kadm.Client, name string, partitions int) {
	t.Helper()
	if _, err := adm.CreateTopic(t.Context(), int32(partitions), 1, nil, name); err != nil {
		t.Fatal(err)
	}
	until(t, "leaders of "+name, func() bool {
		topics, err := adm.ListTopics(t.Context(), name)
		return err == nil && len(topics[name].Partitions) == partitions &&
			!slices.ContainsFunc(topics[name].Partitions.Sorted(), func(p kadm.PartitionDetail) bool { return p.Err != nil || p.Leader < 0 })
	})
}

// produce appends messages to the topic, with their copies.
func (r *kafkaRig) produce(ctx context.Context, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch []*kgo.Record
	for range n {
		i := r.next
		r.next++
		batch = append(batch, r.record(i, i))
		if i%5 == 0 {
			batch = append(batch, r.record(i, i+1))
		}
		if late := i - lateCopy; late >= 0 && late%25 == 0 {
			batch = append(batch, r.record(late, late))
		}
	}
	r.append(ctx, batch...)
}

// record is a copy of a message, in the partition of a number.
func (r *kafkaRig) record(i, partition int) *kgo.Record {
	id := orderID(i)
	return &kgo.Record{
		Partition: int32(partition % r.partitions), Key: []byte(fmt.Sprintf("customer-%d", i%97)), Value: []byte(id),
		Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(id)}},
	}
}

// append appends records, and notes where they are. The rig is locked.
func (r *kafkaRig) append(ctx context.Context, batch ...*kgo.Record) {
	for _, res := range r.source.ProduceSync(ctx, batch...) {
		if res.Err != nil {
			if ctx.Err() == nil {
				r.t.Errorf("produce: %v", res.Err)
			}
			continue
		}
		id, p := recordID(res.Record), res.Record.Partition
		for int64(len(r.records[p])) <= res.Record.Offset {
			r.records[p] = append(r.records[p], "")
		}
		r.records[p][res.Record.Offset] = id
		r.Ask(id)
	}
}

// recordID is the ID under which the ledger will know a record; "" if it has none.
func recordID(record *kgo.Record) string {
	for _, h := range record.Headers {
		if h.Key == producer.HeaderID && utf8.Valid(h.Value) && len(h.Value) < 1024 {
			return string(h.Value)
		}
	}
	return ""
}

// offer produces at the rate, until it is to end.
func (r *kafkaRig) offer(ctx context.Context) {
	began, produced := time.Now(), 0
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := int(time.Since(began).Seconds() * float64(r.rate))
		r.produce(context.WithoutCancel(ctx), due-produced)
		produced = due
	}
}

// audits looks at the committed offsets again and again.
func (r *kafkaRig) audits(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.audit(ctx)
	}
}

// audit returns the committed offsets. For each record before them that has no outcome the test fails: nobody would ever
// look at it again. An outcome is known here before it is to the worker, so that there is no race.
func (r *kafkaRig) audit(ctx context.Context) map[int32]int64 {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fetched, err := r.adm.FetchOffsets(ctx, r.group)
	if err != nil {
		return nil // the broker is away
	}
	committed := map[int32]int64{}
	fetched.Each(func(o kadm.OffsetResponse) {
		if o.Err == nil && o.Topic == r.topic {
			committed[o.Partition] = o.At
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, at := range committed {
		for ; r.audited[p] < min(at, int64(len(r.records[p]))); r.audited[p]++ {
			id := r.records[p][r.audited[p]]
			if a := r.Message(id); !a.Finished() && !r.knows(id) {
				r.t.Errorf("offset %d of partition %d is committed, but record %d (%s) has no outcome: %s", at, p, r.audited[p], id, a)
			}
			r.Over(id)
		}
	}
	return committed
}

// Claim notes, beside what the ledger does, which messages the store says to have an outcome: it may have stored one and
// the confirmation was lost.
func (r *kafkaRig) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := r.Ledger.Claim(ctx, requests)
	for i, q := range requests {
		if results[i].Err == nil && results[i].Answer.Status == dedupstore.Done {
			r.known.Store(q.Key.ID, true)
		}
	}
	return results
}

func (r *kafkaRig) knows(id string) bool {
	_, known := r.known.Load(id)
	return known
}

// handle is the handler of members in this process.
func (r *kafkaRig) handle(ctx context.Context, _ *kgo.Record) error {
	run := oncemill.FromContext(ctx)
	if r.kafkaSetup.fails != nil {
		if err := r.kafkaSetup.fails(); err != nil {
			return err
		}
	}
	r.Does(run)
	if r.work != nil {
		r.work(ctx, run)
	}
	return nil
}

var errKafkaFlaky = errors.New("faults: the handler is flaky")

// flaky fails one run of ten, and panics in one of twenty.
func flaky() error {
	switch n := rand.N(20); {
	case n < 2:
		return errKafkaFlaky
	case n == 2:
		panic(errKafkaFlaky)
	}
	return nil
}

// A kafkaMember is a member of the group in this process, with a client and a network of its own.
type kafkaMember struct {
	r    *kafkaRig
	cl   *kgo.Client
	net  *kafkaNet
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error         // what it returned
}

// join adds a member.
func (r *kafkaRig) join(opts ...kgo.Opt) *kafkaMember {
	r.t.Helper()
	return r.joinAs("", opts...)
}

// joinAs adds a static member, or a dynamic one if it has no name.
func (r *kafkaRig) joinAs(instance string, opts ...kgo.Opt) *kafkaMember {
	r.t.Helper()
	config := r.config
	config.Handler = "charge"
	config.Grace = kafkaGrace
	config.Logger = slog.New(slog.DiscardHandler)
	w, err := franz.NewWorker(r.once, r.handle, config)
	if err != nil {
		r.t.Fatal(err)
	}
	m := &kafkaMember{r: r, net: newKafkaNet(), done: make(chan struct{})}
	own := append(kafkaMemberOpts(r.at.addr, r.group, r.topic), kgo.Dialer(m.net.dial))
	if instance != "" {
		own = append(own, kgo.InstanceID(instance))
	}
	if m.cl, err = kgo.NewClient(slices.Concat(w.Opts(), own, r.opts, opts)...); err != nil {
		r.t.Fatal(err)
	}
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	r.members = append(r.members, m)
	go func() {
		defer close(m.done)
		m.err = w.Run(ctx, m.cl)
	}()
	return m
}

// kafkaMemberOpts are the options of a member beside the worker's own.
func kafkaMemberOpts(addr, group, topic string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(kafkaSession), kgo.HeartbeatInterval(kafkaSession / 5), kgo.RebalanceTimeout(2 * kafkaGrace),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.MetadataMinAge(50 * time.Millisecond),
	}
}

// leave ends a member as a deployment does. It must end well.
func (m *kafkaMember) leave() {
	m.r.t.Helper()
	m.end()
	if m.err != nil {
		m.r.t.Errorf("Run ended with %v", m.err)
	}
}

// end ends a member, however.
func (m *kafkaMember) end() {
	m.stop()
	<-m.done
	m.cl.CloseAllowingRebalance()
}

// progress waits for further effects.
func (r *kafkaRig) progress(n int) {
	r.t.Helper()
	target := r.Done() + n
	until(r.t, fmt.Sprintf("%d effects", target), func() bool { return r.Done() >= target })
}

// produced is how many records there are.
func (r *kafkaRig) produced() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, records := range r.records {
		n += len(records)
	}
	return n
}

// drain waits until all offsets are committed.
func (r *kafkaRig) drain() {
	r.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); ; <-tick.C {
		committed, sum := r.audit(context.Background()), 0
		for _, at := range committed {
			sum += int(max(at, 0))
		}
		if sum == r.produced() {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("waited %v for %d offsets to be committed, got to %v, after %d effects; members that ended: %v",
				waitLimit, r.produced(), committed, r.Done(), r.gone())
		}
	}
}

// gone are the errors of members whose Run has returned.
func (r *kafkaRig) gone() (errs []error) {
	for _, m := range r.members {
		select {
		case <-m.done:
			errs = append(errs, m.err)
		default:
		}
	}
	return errs
}

// finish offers nothing more, waits until all is committed, ends the members, and closes the books.
func (r *kafkaRig) finish() ledger.Books {
	r.t.Helper()
	r.stop()
	r.tasks.Wait()
	r.drain()
	r.close()
	return r.Balance(r.produced())
}

// close ends what the rig has started.
func (r *kafkaRig) close() {
	r.stop()
	r.tasks.Wait()
	for _, m := range r.members {
		m.net.heal()
		m.end()
	}
	r.members = nil
}
