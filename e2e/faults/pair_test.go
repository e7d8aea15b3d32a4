package faults_test

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A pairTask tells a process of a pair, which is a broker with a store, where its servers are.
type pairTask struct {
	NATS, Kafka, Redis, SQL string
	Topic                   string // of Kafka
}

// letters is where dead letters go, receipts where relays publish.
func (t pairTask) letters() string  { return t.Topic + lettersStream }
func (t pairTask) receipts() string { return t.Topic + "receipts" }

// receipt is what the handlers of inboxes publish. It is the same in each run of a message.
func (t pairTask) receipt(run oncemill.Run) producer.Message {
	id := run.Key.ID
	return producer.Message{ID: run.ID("receipt"), Topic: t.receipts(), Key: id, Payload: []byte(id)}
}

// inPostgres is the effect of a run in an inbox of PostgreSQL: a row, and a receipt.
func (t pairTask) inPostgres(box *pgoutbox.Outbox) func(context.Context, oncemill.Run) error {
	return func(ctx context.Context, run oncemill.Run) error {
		_, err := pgstore.Tx(ctx).Exec(ctx, `INSERT INTO effects (id, pid) VALUES ($1, $2)`, run.Key.ID, os.Getpid())
		if err != nil {
			return err
		}
		return box.Publish(ctx, t.receipt(run))
	}
}

// inMariaDB is the effect of a run in an inbox of MariaDB.
func (t pairTask) inMariaDB(box *mysqloutbox.Outbox) func(context.Context, oncemill.Run) error {
	return func(ctx context.Context, run oncemill.Run) error {
		_, err := mysqlstore.Tx(ctx).ExecContext(ctx, `INSERT INTO effects (id, pid) VALUES (?, ?)`,
			run.Key.ID, os.Getpid())
		if err != nil {
			return err
		}
		return box.Publish(ctx, t.receipt(run))
	}
}

// publisher is of the pair's broker, which answers within a time; zero: the default.
func (t pairTask) publisher(js jetstream.JetStream, within time.Duration) (producer.Publisher, func(), error) {
	if t.Kafka == "" {
		pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: within})
		return pub, func() {}, err
	}
	cl, err := kgo.NewClient(append(franz.PublisherOpts(), kgo.SeedBrokers(t.Kafka))...)
	if err != nil {
		return nil, nil, err
	}
	pub, err := franz.NewPublisher(cl, franz.PublisherConfig{AckTimeout: within})
	return pub, cl.Close, err
}

// A pairWorker handles the messages of a pair's broker.
type pairWorker struct {
	pairTask
	js          jetstream.JetStream // nil: the broker is Kafka
	once        *consumer.Processor
	batch       int // messages in a batch; zero: the handler gets single ones
	inFlight    int
	grace       time.Duration
	commitEvery time.Duration // of Kafka
	opts        []kgo.Opt

	handle      func(context.Context, oncemill.Run) error
	handleBatch func(context.Context, []oncemill.Run) []error
}

// run works until ctx ends.
func (w pairWorker) run(ctx context.Context) error {
	one := func(ctx context.Context) error { return w.handle(ctx, oncemill.FromContext(ctx)) }
	many := func(ctx context.Context) []error { return w.handleBatch(ctx, oncemill.RunsFromContext(ctx)) }
	if w.Kafka != "" {
		return w.runKafka(ctx, one, many)
	}
	cons, err := find(ctx, w.js)
	if err != nil {
		return err
	}
	config := natsjs.Config{Handler: "charge", MaxInFlight: w.inFlight, Grace: w.grace}
	worker, err := natsjs.NewWorker(w.once, w.js, cons, func(ctx context.Context, _ jetstream.Msg) error {
		return one(ctx)
	}, config)
	if w.batch > 0 {
		worker, err = natsjs.NewBatchWorker(w.once, w.js, cons, func(ctx context.Context, _ []jetstream.Msg) []error {
			return many(ctx)
		}, natsjs.BatchConfig{Config: config, MaxBatch: w.batch})
	}
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

func (w pairWorker) runKafka(
	ctx context.Context, one func(context.Context) error, many func(context.Context) []error,
) error {
	config := franz.Config{
		Handler: "charge", Order: franz.PerKey, MaxInFlight: w.inFlight, Grace: w.grace, CommitEvery: w.commitEvery,
	}
	worker, err := franz.NewWorker(w.once, func(ctx context.Context, _ *kgo.Record) error { return one(ctx) }, config)
	if w.batch > 0 {
		worker, err = franz.NewBatchWorker(w.once, func(ctx context.Context, _ []*kgo.Record) []error {
			return many(ctx)
		}, franz.BatchConfig{Config: config, MaxBatch: w.batch})
	}
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(slices.Concat(worker.Opts(), kafkaMemberOpts(w.Kafka, w.Topic, w.Topic), w.opts)...)
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance()
	return worker.Run(ctx, cl)
}
