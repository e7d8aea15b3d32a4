package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/rabbittest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A rabbitTask is what a worker over RabbitMQ is to do, in a process of its own.
type rabbitTask struct {
	URL, Queue, Kind string
	Redis            string        // host:port
	Journal          string        // a file
	Subscriptions    int           // each handles one message at a time
	Work             time.Duration // how long a handler takes about
	Lease            time.Duration
}

// config is what docs/brokers.md asks for.
func (j rabbitTask) config() amqp.Config {
	c := amqp.NewDurableQueueConfig(j.URL)
	c.Queue.GenerateName = amqp.GenerateQueueNameConstant(j.Queue)
	c.Queue.Arguments = amqp091.Table{"x-queue-type": j.Kind}
	c.Publish.ConfirmDelivery = true
	c.Marshaler = textMarshaler{}
	c.Connection.Reconnect = amqp.DefaultReconnectConfig()
	c.Connection.Reconnect.BackoffInitialInterval = 50 * time.Millisecond
	c.Connection.Reconnect.BackoffMaxInterval = time.Second
	return c
}

// A textMarshaler leaves out headers that are no text, which the adapter's own refuses.
type textMarshaler struct{ amqp.DefaultMarshaler }

// Unmarshal makes a message of a delivery.
func (m textMarshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	text := amqp091.Table{}
	for name, value := range d.Headers {
		if s, ok := value.(string); ok {
			text[name] = s
		}
	}
	d.Headers = text
	return m.DefaultMarshaler.Unmarshal(d)
}

// TestRabbitMQ_WorkerProcess is no test, but what the tests below run in processes of their own, until SIGTERM.
func TestRabbitMQ_WorkerProcess(t *testing.T) {
	j := taskOf[rabbitTask](t)
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	if err := j.run(ctx, t); err != nil {
		t.Error(err)
	}
}

func (j rabbitTask) open() (store *redisstore.Store, shut func(), err error) {
	rdb := redis.NewClient(&redis.Options{Addr: j.Redis, ContextTimeoutEnabled: true})
	store, err = redisstore.New(rdb, redisstore.Config{})
	return store, func() {
		store.Close()
		rdb.Close()
	}, err
}

// run works in Routers until ctx ends.
func (j rabbitTask) run(ctx context.Context, t *testing.T) error {
	store, shut, err := j.open()
	if err != nil {
		return err
	}
	defer shut()
	journal := ledger.Keep(t, store, j.Journal)
	once, err := consumer.New(journal, consumer.Config{
		Group: "billing", MaxWait: j.Lease / 2, DeadLetters: journal, DeadLetterTopic: "dead",
		Policy: oncemill.Policy{
			Lease: j.Lease, MaxAttempts: 10, Backoff: oncemill.Backoff{Min: 50 * time.Millisecond, Max: time.Second},
			Logger: slog.New(slog.DiscardHandler),
		},
	})
	if err != nil {
		return err
	}
	work := task{Work: j.Work}
	ended := make(chan error, j.Subscriptions)
	for range j.Subscriptions {
		sub, err := amqp.NewSubscriber(j.config(), watermill.NopLogger{})
		if err != nil {
			return err
		}
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: waitLimit}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		router.AddMiddleware(oncewatermill.Middleware(once))
		router.AddConsumerHandler("charge", j.Queue, sub, func(msg *message.Message) error {
			return unsteady(msg.Context(), oncemill.FromContext(msg.Context()), work, journal)
		})
		go func() { ended <- errors.Join(router.Run(ctx), sub.Close()) }()
	}
	for range j.Subscriptions {
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, once.Close(context.WithoutCancel(ctx)))
}

// A warren is a queue of RabbitMQ, and the processes that work for it.
type warren struct {
	*ledger.Ledger
	t      *testing.T
	server *rabbittest.Server
	task   rabbitTask
	dir    string // of journals
	pub    message.Publisher
	alive  []*testserver.Process

	started, published int
}

func newWarren(t *testing.T, kind string) *warren {
	t.Helper()
	server := rabbittest.Start(t)
	w := &warren{Ledger: ledger.New(nil), t: t, server: server, dir: t.TempDir(), task: rabbitTask{
		URL: server.URL(), Queue: "orders", Kind: kind, Redis: redistest.Start(t).Addr, Subscriptions: 4,
		Work: 10 * time.Millisecond, Lease: 5 * time.Second,
	}}
	var err error
	if w.pub, err = amqp.NewPublisher(w.task.config(), watermill.NopLogger{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.pub.Close() })
	if w.ready(true) != 0 {
		t.Fatal("the queue is not empty")
	}
	return w
}

// ready is how many messages the queue has that nobody has been sent. The first call makes the queue.
func (w *warren) ready(first bool) int {
	w.t.Helper()
	conn, err := amqp091.Dial(w.server.URL())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		w.t.Fatal(err)
	}
	declare := ch.QueueDeclarePassive
	if first {
		declare = ch.QueueDeclare
	}
	q, err := declare(w.task.Queue, true, false, false, false, w.task.config().Queue.Arguments)
	if err != nil {
		w.t.Fatal(err)
	}
	return q.Messages
}

// offer publishes n messages, one in ten with a copy.
func (w *warren) offer(n int) {
	w.t.Helper()
	for i := range n {
		id := orderID(i)
		w.Ask(id)
		for range 1 + (n-i)%10/9 {
			msg := message.NewMessage(id, []byte(id))
			msg.Metadata.Set(producer.HeaderID, id)
			until(w.t, "RabbitMQ to confirm a message", func() bool { return w.pub.Publish(w.task.Queue, msg) == nil })
			w.published++
		}
	}
}

func (w *warren) start() {
	w.t.Helper()
	w.started++
	j := w.task
	j.Journal = filepath.Join(w.dir, fmt.Sprintf("%d.journal", w.started))
	arguments := taskArguments(w.t, "TestRabbitMQ_WorkerProcess", j)
	p, err := testserver.StartProgram(w.t.TempDir(), executable(w.t), arguments...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { p.Kill() })
	w.alive = append(w.alive, p)
}

// done reads the journals on, and returns how many effects there were.
func (w *warren) done() int {
	w.t.Helper()
	if err := w.Read(w.dir); err != nil {
		w.t.Fatal(err)
	}
	return w.Done()
}

// kill ends a worker with SIGKILL, and starts another one.
func (w *warren) kill() {
	w.t.Helper()
	i := rand.IntN(len(w.alive))
	p := w.alive[i]
	kill := ledger.Event{Why: ledger.HolderKilled, Holder: p.Pid(), From: time.Now()}
	if err := p.Kill(); err != nil {
		w.t.Fatal(err)
	}
	if code := p.ExitCode(); code != -1 {
		w.t.Errorf("a worker had ended by itself, with %d\n%s", code, p.Output())
	}
	kill.To = time.Now()
	w.Happened(kill)
	w.alive = append(w.alive[:i], w.alive[i+1:]...)
	w.start()
}

// finish waits until all messages have an outcome, ends the workers, and closes the books.
func (w *warren) finish(n int) ledger.Books {
	w.t.Helper()
	store, shut, err := w.task.open()
	if err != nil {
		w.t.Fatal(err)
	}
	defer shut()
	next := 0
	until(w.t, "an outcome of each message", func() bool {
		for ; next < n; next++ {
			a, err := dedupstore.ClaimOne(w.t.Context(), store, dedupstore.Request{
				Key: orderKey(orderID(next)), Owner: fmt.Sprintf("auditor-%016x", rand.Uint64()), Lease: time.Second,
				Retention: time.Minute, MaxAttempts: 10,
			})
			if err != nil {
				w.t.Fatal(err)
			}
			if a.Status != dedupstore.Done {
				return false
			}
			w.Over(orderID(next))
		}
		return true
	})
	until(w.t, "an empty queue", func() bool { return w.ready(false) == 0 })
	for _, p := range w.alive {
		if err := p.Stop(); err != nil {
			w.t.Error(err)
		}
	}
	if left := w.ready(false); left > 12 { // whose acks were on their way
		w.t.Errorf("%d messages are left, want no more than there are subscriptions", left)
	}
	w.done()
	return w.Balance(w.published)
}

// Full: 2,000 messages on each kind of queue, 40 SIGKILLs of workers.
func TestRabbitMQ_KilledWorkersLoseNothingAndRepeatOnlyWhatIsExplained(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("only with ONCEMILL_PROOF=1: it takes a minute")
	}
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const n, kills = 2000, 40
			w := newWarren(t, kind)
			w.offer(n)
			for range 3 {
				w.start()
			}
			for i := range kills {
				target := n * 9 / 10 * (i + 1) / kills
				until(t, fmt.Sprintf("%d effects", target), func() bool { return w.done() >= target })
				w.kill()
			}
			w.finish(n).MustExplain(t, ledger.HolderKilled, ledger.HandlerFailed, ledger.LostLease)
		})
	}
}

// Full: 2,000 messages, 5 SIGKILLs of RabbitMQ itself, whose queues are on disk.
func TestRabbitMQ_KilledBrokerLosesNothing(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("only with ONCEMILL_PROOF=1: it takes a minute")
	}
	const n, kills = 2000, 5
	w := newWarren(t, "quorum")
	w.offer(n)
	for range 3 {
		w.start()
	}
	for i := range kills {
		target := n * 9 / 10 * (i + 1) / kills
		until(t, fmt.Sprintf("%d effects", target), func() bool { return w.done() >= target })
		w.server.Kill()
		w.server.Restart()
	}
	w.finish(n).MustExplain(t, ledger.HandlerFailed, ledger.LostLease)
}
