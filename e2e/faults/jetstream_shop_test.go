package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A shop is a stream of orders, a consumer of it, and processes that work for the consumer, each with a journal.
type shop struct {
	*ledger.Ledger
	t     *testing.T
	dir   string // of journals
	task  task   // of each process
	js    jetstream.JetStream
	store dedupstore.Store
	pub   *natsjs.Publisher

	most     int          // deliveries of a message that the consumer allows
	givenUp  atomic.Int64 // messages that had the deliveries that the consumer allows
	workers  int          // that were started
	messages atomic.Int64 // that were published, without copies
}

// newShop makes a shop that keeps its records in Redis, unless its task names another server.
func newShop(t *testing.T, urls []string, js jetstream.JetStream, stream jetstream.StreamConfig, ackWait time.Duration, j task) *shop {
	t.Helper()
	if j.URLs = urls; j.Dynamo+j.Node+j.Bucket == "" {
		j.Redis = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec").Addr
	}
	store, shut, err := j.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shut)
	return newShopOn(t, store, urls, js, stream, ackWait, j)
}

// newShopOn makes streams, with a consumer that gives messages up after five deliveries, or 20 of a message that kills
// its processes: it has used up four by then, and a machine that stands still for a moment another one.
func newShopOn(
	t *testing.T, store dedupstore.Store, urls []string, js jetstream.JetStream, stream jetstream.StreamConfig,
	ackWait time.Duration, j task,
) *shop {
	t.Helper()
	j.URLs = urls
	s := &shop{Ledger: ledger.New(nil), t: t, dir: t.TempDir(), task: j, js: js, store: store, most: 5}
	if j.Handler == "deadly" {
		s.most = 20
	}
	var err error
	if s.pub, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	s.make(stream, ackWait)
	s.watch()
	return s
}

// make makes the streams and the consumer.
func (s *shop) make(stream jetstream.StreamConfig, ackWait time.Duration) {
	s.t.Helper()
	stream.MaxAge = time.Hour // less than outcomes are remembered
	deadLetters := stream
	stream.Name, stream.Subjects = ordersStream, []string{ordersStream}
	deadLetters.Name, deadLetters.Subjects, deadLetters.Retention = lettersStream, []string{lettersStream}, jetstream.LimitsPolicy
	for _, config := range []jetstream.StreamConfig{stream, deadLetters} {
		createStream(s.t, s.js, config)
	}
	s.makeConsumer(stream, ackWait)
}

func (s *shop) makeConsumer(stream jetstream.StreamConfig, ackWait time.Duration) {
	s.t.Helper()
	config := jetstream.ConsumerConfig{
		Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: s.most,
		Replicas: stream.Replicas,
	}
	natstest.Ask(s.t, "consumer "+consumerName, func(ctx context.Context) (jetstream.Consumer, error) {
		return s.js.CreateConsumer(ctx, ordersStream, config)
	})
}

// watch counts the messages that the server gives up.
func (s *shop) watch() {
	s.t.Helper()
	nc := s.js.Conn()
	subject := "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + ordersStream + ".*"
	_, err := nc.Subscribe(subject, func(*nats.Msg) { s.givenUp.Add(1) })
	if err = errors.Join(err, nc.Flush()); err != nil {
		s.t.Fatal(err)
	}
}

// publish sends messages until the stream has all of them.
func (s *shop) publish(ctx context.Context, messages ...producer.Message) {
	for len(messages) > 0 && ctx.Err() == nil {
		err := s.pub.Publish(ctx, messages...)
		var failed *producer.PublishError
		if !errors.As(err, &failed) {
			return
		}
		var again []producer.Message
		for _, f := range failed.Failures {
			again = append(again, messages[f.Index])
		}
		messages = again
		lasts(20 * time.Millisecond)
	}
}

// order is the nth message. A copy is another message to the stream, and the same to its consumers.
func order(n int, asCopy bool) producer.Message {
	m := producer.Message{ID: orderID(n), Topic: ordersStream, Payload: []byte(orderID(n))}
	if asCopy {
		m.Header = producer.Header{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "1"}
	}
	return m
}

// offer publishes n messages at a rate. One in ten has a copy beside it, and another one in ten a copy that comes later.
func (s *shop) offer(ctx context.Context, n, rate int) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for next := 0; next < n && ctx.Err() == nil; <-tick.C {
		var batch []producer.Message
		for range min(max(rate/50, 1), n-next) {
			batch = append(batch, order(next, false))
			if next%10 == 0 {
				batch = append(batch, order(next, true))
			}
			if late := next - lateCopy; late >= 0 && late%10 == 5 {
				batch = append(batch, order(late, true))
			}
			next++
		}
		s.publish(ctx, batch...)
		s.messages.Store(int64(next))
	}
}

// A workerProcess is a process that does the shop's job.
type workerProcess struct {
	*testserver.Process
	dir     string
	journal string
}

// start starts a process of this test's program.
func (s *shop) start() workerProcess {
	s.t.Helper()
	return s.startProgram(executable(s.t), func(j task) []string { return j.arguments(s.t) })
}

// startProgram starts a process.
func (s *shop) startProgram(program string, arguments func(task) []string) workerProcess {
	s.t.Helper()
	s.workers++
	dir := filepath.Join(s.dir, fmt.Sprint(s.workers))
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	j := s.next()
	p, err := testserver.StartProgram(dir, program, arguments(j)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Kill() })
	return workerProcess{p, dir, j.Journal}
}

// next is the job with a journal of its own.
func (s *shop) next() task {
	j := s.task
	j.Journal = filepath.Join(s.dir, fmt.Sprintf("%d-%d.journal", s.workers, rand.Uint32()))
	return j
}

// terminate ends processes with SIGTERM, and returns how long that took. They must have ended well.
func (s *shop) terminate(workers ...workerProcess) time.Duration {
	s.t.Helper()
	for _, w := range workers {
		until(s.t, "a worker to begin", w.listens)
	}
	start := time.Now()
	for _, w := range workers {
		p, err := os.FindProcess(w.Pid())
		if err == nil {
			err = p.Signal(syscall.SIGTERM)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	for _, w := range workers {
		select {
		case <-w.Ended():
		case <-time.After(waitLimit):
			s.t.Fatalf("a worker that got SIGTERM has not ended after %v\n%s", waitLimit, w.output())
		}
		if code := w.ExitCode(); code != 0 {
			s.t.Errorf("a worker that got SIGTERM ended with code %d\n%s", code, w.output())
		}
	}
	return time.Since(start)
}

// listens is whether the process takes signals, or has ended. It does before it has a journal.
func (w workerProcess) listens() bool {
	select {
	case <-w.Ended():
		return true
	default:
	}
	_, err := os.Stat(w.journal)
	return err == nil
}

// output is the end of what the process wrote.
func (w workerProcess) output() string {
	b, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-8192):])
}

// info is what the server says about the consumer.
func (s *shop) info() (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
	defer cancel()
	cons, err := s.js.Consumer(ctx, ordersStream, consumerName)
	if err != nil {
		return nil, err
	}
	return cons.CachedInfo(), nil
}

// drain waits until every message of the stream is acknowledged, and returns how many deliveries that took.
func (s *shop) drain() int {
	s.t.Helper()
	var last *jetstream.ConsumerInfo
	defer func() {
		if s.t.Failed() && last != nil {
			s.t.Logf("consumer: %d pending, %d unacknowledged, %d being redelivered, %d waiting, delivered %+v, floor %+v",
				last.NumPending, last.NumAckPending, last.NumRedelivered, last.NumWaiting, last.Delivered, last.AckFloor)
		}
	}()
	s.await("the consumer to be drained", func() bool {
		info, err := s.info()
		if err != nil {
			return false
		}
		stream, err := s.js.Stream(s.t.Context(), ordersStream)
		if err != nil {
			return false
		}
		last = info
		// Nothing pending is also what a server says that has begun to lead and knows nothing yet.
		return info.NumPending == 0 && info.NumAckPending == 0 && info.AckFloor.Stream >= stream.CachedInfo().State.LastSeq
	})
	return int(last.Delivered.Consumer)
}

// await is until, which fails at once when the server gives a message up.
func (s *shop) await(what string, met func() bool) {
	s.t.Helper()
	until(s.t, what, func() bool {
		if s.givenUp.Load() > 0 {
			s.t.Fatalf("the server gave a message up after its last delivery, while waiting for %s", what)
		}
		return met()
	})
}

// refresh reads what the processes wrote since.
func (s *shop) refresh() {
	s.t.Helper()
	if err := s.Read(s.dir); err != nil {
		s.t.Fatal(err)
	}
}

// done reads on, and returns how many effects there were.
func (s *shop) done() int {
	s.t.Helper()
	s.refresh()
	return s.Done()
}

// count reads on, and returns how many runs a function accepts.
func (s *shop) count(accept func(ledger.Run) bool) int {
	s.t.Helper()
	s.refresh()
	return s.Count(accept)
}

// redelivered reads on, and returns how often a message was delivered at most.
func (s *shop) redelivered() (most uint64) {
	s.t.Helper()
	s.refresh()
	for r := range s.Runs {
		most = max(most, r.Delivered)
	}
	return most
}

// books closes the books of the first messages. All of them must have been acknowledged.
func (s *shop) books(messages, deliveries int) ledger.Books {
	s.t.Helper()
	s.refresh()
	for id, n := range s.deadLetters() {
		s.DeadLettered(id, n)
	}
	for n := range messages {
		s.Ask(orderID(n))
		if s.finished(orderID(n)) {
			s.Over(orderID(n))
		}
	}
	return s.Balance(deliveries)
}

// finished is whether the store has an outcome of a message.
func (s *shop) finished(id string) bool {
	s.t.Helper()
	a, err := dedupstore.ClaimOne(s.t.Context(), s.store, dedupstore.Request{
		Key: orderKey(id), Owner: fmt.Sprintf("auditor-%016x", rand.Uint64()), Lease: time.Second, Retention: time.Minute, MaxAttempts: 10,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return a.Status == dedupstore.Done
}

// orderKey is under what the workers keep the record of a message.
func orderKey(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id}
}

// letters are how many dead letters there are of each message.
func (s *shop) deadLetters() map[string]int {
	s.t.Helper()
	all := map[string]int{}
	stream := lookAt(s.t, s.js, lettersStream)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg := messageAt(s.t, stream, seq)
		if msg == nil {
			s.t.Fatalf("dead letter %d is not in its stream", seq)
		}
		all[msg.Header.Get(producer.HeaderOriginalID)]++
	}
	return all
}

// mustHaveGivenUpNothing fails the test if the server has stopped delivering a message.
func (s *shop) mustHaveGivenUpNothing() {
	s.t.Helper()
	if n := s.givenUp.Load(); n > 0 {
		s.t.Errorf("the server gave %d messages up after their last delivery", n)
	}
}

// createStream makes a stream.
func createStream(t *testing.T, js jetstream.JetStream, config jetstream.StreamConfig) {
	t.Helper()
	natstest.Ask(t, "stream "+config.Name, func(ctx context.Context) (jetstream.Stream, error) {
		return js.CreateOrUpdateStream(ctx, config)
	})
}

// lookAt is a stream as it is now.
func lookAt(t *testing.T, js jetstream.JetStream, name string) jetstream.Stream {
	t.Helper()
	return natstest.Ask(t, "stream "+name, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, name) })
}

// messageAt is a message of a stream, or nil if the stream does not hold it any more.
func messageAt(t *testing.T, stream jetstream.Stream, seq uint64) *jetstream.RawStreamMsg {
	t.Helper()
	return natstest.Ask(t, fmt.Sprint("message ", seq), func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		msg, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, nil
		}
		return msg, err
	})
}
