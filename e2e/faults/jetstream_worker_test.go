package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// Names at the servers of these tests.
const (
	ordersStream  = "orders" // and its subject
	lettersStream = "letters"
	consumerName  = "billing"
)

// A job is what a consumer is to do, in this process or in one of its own.
type task struct {
	URLs    []string      // of NATS
	Redis   string        // host:port
	Dynamo  string        // endpoint of DynamoDB
	Node    string        // of Cassandra, host:port/keyspace
	Bucket  string        // in the same NATS; without these three, records are in Redis
	Journal string        // a file
	Handler string        // one of handlers
	Work    time.Duration // how long it takes about
	Lease   time.Duration
	MaxWait time.Duration
	Grace   time.Duration
	Window  int
	Order   bool // one message after the other, in one lane
	Batch   int  // messages of a batch; zero: the handler gets one
	Router  bool // it is in Watermill's Router
}

// TestJetStream_WorkerProcess is no test, but what other tests run in processes of their own, which get a job as their
// argument. The process works until SIGTERM, and fails if a goroutine is left in the end: see TestMain.
func TestJetStream_WorkerProcess(t *testing.T) {
	j := taskOf[task](t)
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	if err := j.run(ctx, t); err != nil {
		t.Error(err)
	}
}

// arguments are those of a process that does the job.
func (j task) arguments(t *testing.T) []string {
	return taskArguments(t, "TestJetStream_WorkerProcess", j)
}

// run works until ctx ends.
func (j task) run(ctx context.Context, t *testing.T) error {
	nc, err := nats.Connect(strings.Join(j.URLs, ","), nats.Timeout(waitLimit), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer nc.Close()
	store, shut, err := j.open()
	if err != nil {
		return err
	}
	defer shut()
	if j.Router {
		return j.route(ctx, nc, ledger.Keep(t, store, j.Journal))
	}
	w, err := j.worker(ctx, nc, ledger.Keep(t, store, j.Journal))
	if ctx.Err() != nil {
		return nil // before it began
	}
	if err != nil {
		return err
	}
	err = w.Run(ctx)
	switch {
	case j.Handler == "endless" && errors.Is(err, natsjs.ErrCutShort):
		err = nil
	case j.Handler == "endless":
		err = fmt.Errorf("the worker ended with %w, want natsjs.ErrCutShort", err)
	}
	if n := w.MaxDeliveries(); n > 0 {
		err = errors.Join(err, fmt.Errorf("the worker counts %d messages that the server gave up", n))
	}
	return err
}

// open opens the store of the records.
func (j task) open() (store dedupstore.Store, shut func(), err error) {
	switch {
	case j.Dynamo != "":
		return openDynamo(j.Dynamo)
	case j.Node != "":
		return openCassandra(j.Node)
	case j.Bucket != "":
		return openNATSKV(j.URLs, j.Bucket)
	}
	rdb := redis.NewClient(&redis.Options{Addr: j.Redis, ContextTimeoutEnabled: true})
	s, err := redisstore.New(rdb, redisstore.Config{})
	return s, func() {
		s.Close()
		rdb.Close()
	}, err
}

func (j task) worker(ctx context.Context, nc *nats.Conn, journal *ledger.Ledger) (*natsjs.Worker, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	once, err := j.processor(js, journal)
	if err != nil {
		return nil, err
	}
	cons, err := find(ctx, js)
	if err != nil {
		return nil, err
	}
	config := natsjs.Config{Handler: "charge", MaxInFlight: j.Window, Grace: j.Grace}
	if j.Order {
		config.Order = natsjs.BySubject
	}
	if j.Batch > 0 {
		return natsjs.NewBatchWorker(once, js, cons, j.batchHandler(journal), natsjs.BatchConfig{
			Config: config, MaxBatch: j.Batch,
		})
	}
	return natsjs.NewWorker(once, js, cons, j.handler(journal), config)
}

// route works in a Router until ctx ends.
func (j task) route(ctx context.Context, nc *nats.Conn, journal *ledger.Ledger) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	once, err := j.processor(js, journal)
	if err != nil {
		return err
	}
	source, err := natsjs.NewSource(once, js, natsjs.SourceConfig{
		Config:   natsjs.Config{MaxInFlight: j.Window, Grace: j.Grace},
		Consumer: func(ctx context.Context, _ string) (jetstream.Consumer, error) { return find(ctx, js) },
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: waitLimit}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	oncewatermill.AddConsumerHandler(router, once, "charge", ordersStream, source, func(msg *message.Message) error {
		return handlers[j.Handler](msg.Context(), oncemill.FromContext(msg.Context()), j, journal)
	})
	return errors.Join(router.Run(ctx), once.Close(context.WithoutCancel(ctx)))
}

func (j task) processor(js jetstream.JetStream, journal *ledger.Ledger) (*consumer.Processor, error) {
	deadLetters, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	return consumer.New(journal, consumer.Config{
		Group: "billing", MaxWait: j.MaxWait, DeadLetters: deadLetters, DeadLetterTopic: lettersStream,
		Policy: oncemill.Policy{Lease: j.Lease, MaxAttempts: 4, Backoff: oncemill.Backoff{Min: 100 * time.Millisecond}},
	})
}

// find asks for the consumer until somebody leads it.
func find(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		cons, err := js.Consumer(try, ordersStream, consumerName)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, jetstream.ErrConsumerNotFound) {
			return cons, err
		}
		lasts(20 * time.Millisecond)
	}
}

// handlers are what a job may name. Each notes which delivery it got.
var handlers = map[string]func(ctx context.Context, r oncemill.Run, j task, journal *ledger.Ledger) error{
	"unsteady": unsteady,
	"steady":   steady,
	"endless":  endless,
	"deadly":   deadly,
}

// batchHandler is the handler for each message of a batch.
func (j task) batchHandler(journal *ledger.Ledger) natsjs.BatchHandler {
	handle := handlers[j.Handler]
	return func(ctx context.Context, msgs []jetstream.Msg) []error {
		errs := make([]error, len(msgs))
		for i, r := range oncemill.RunsFromContext(ctx) {
			receives(journal, r, msgs[i])
			errs[i] = handle(ctx, r, j, journal)
		}
		return errs
	}
}

// deadlyOrder is the message that ends the process of a deadly handler.
const deadlyOrder = 42

// deadly is a steady handler that one message ends, with its process.
func deadly(ctx context.Context, r oncemill.Run, j task, journal *ledger.Ledger) error {
	if r.Key.ID == orderID(deadlyOrder) {
		journal.Does(r)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		<-ctx.Done()
	}
	return steady(ctx, r, j, journal)
}

// receives notes how often the broker has delivered the message of a run.
func receives(journal *ledger.Ledger, r oncemill.Run, msg jetstream.Msg) {
	if meta, err := msg.Metadata(); err == nil {
		journal.Receives(r, meta.NumDelivered)
	}
}

func (j task) handler(journal *ledger.Ledger) natsjs.Handler {
	handle := handlers[j.Handler]
	return func(ctx context.Context, msg jetstream.Msg) error {
		r := oncemill.FromContext(ctx)
		receives(journal, r, msg)
		return handle(ctx, r, j, journal)
	}
}

// unsteady is a handler that fails in 5 of 100 runs and panics in 2, half of them after the effect. It refuses some
// messages for good.
func unsteady(_ context.Context, r oncemill.Run, j task, journal *ledger.Ledger) error {
	if refuses(r.Key.ID) {
		return oncemill.Permanent(errors.New("no such customer"))
	}
	lasts(rand.N(j.Work))
	dice := rand.IntN(200)
	if dice < 7 {
		return fail(dice < 5)
	}
	journal.Does(r)
	lasts(rand.N(j.Work))
	if dice < 14 {
		journal.Fails(r)
		return fail(dice < 12)
	}
	return nil
}

func fail(byError bool) error {
	if byError {
		return errors.New("the bank does not answer")
	}
	panic("a bug")
}

// refuses is whether the unsteady handler refuses a message: one in 200.
func refuses(id string) bool { return strings.HasSuffix(id, "07") && (id[len(id)-3]-'0')%2 == 0 }

// steady is a handler that takes its time, whatever becomes of its context, and has its effect in the end.
func steady(_ context.Context, r oncemill.Run, j task, journal *ledger.Ledger) error {
	lasts(j.Work)
	journal.Does(r)
	return nil
}

// endless is a handler that, for every other message, goes on until its context ends, and leaves it at that.
func endless(ctx context.Context, r oncemill.Run, j task, journal *ledger.Ledger) error {
	if r.Key.ID[len(r.Key.ID)-1]%2 == 0 {
		return steady(ctx, r, j, journal)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// executable is this test's program.
func executable(t *testing.T) string {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return name
}
