package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

// A Handler does the work for one record. Its error decides what happens next: see oncemill.RunFunc. A record that
// comes from a retry topic has that topic, partition and offset. The record is not changed, and must not be.
type Handler func(ctx context.Context, rec *kgo.Record) error

// A BatchHandler does the work for several records at once, such as an insert of many rows. It returns an error for
// each record, in their order, which has the effect of a Handler's error. Nil: all have succeeded.
// oncemill.RunsFromContext returns the runs of a batch.
//
// One error for several records, any other wrong number, or a panic says that the batch failed as a whole; over an
// inbox, where a batch is one transaction, any error does. Then its records are handled in batches of one, which costs
// no attempt. So are records whose last two runs or more ended with
// expired leases, one at a time. A batch has no order, and at most one record of each order key.
type BatchHandler func(ctx context.Context, records []*kgo.Record) []error

// BatchConfig configures a Worker with a BatchHandler. As many batches run at once as MaxInFlight has room for. Its
// Order is PerKey by default: under PerPartition a batch would have at most one record of each partition.
type BatchConfig struct {
	Config

	// MaxBatch is how many records a batch has at most. Zero: 64.
	MaxBatch int

	// MaxBatchBytes is how many bytes of values a batch has at most. A larger record is a batch of its own. Zero: 1
	// MiB.
	MaxBatchBytes int

	// Linger is how long a batch that is not full waits for more records. Zero: no wait, a batch is what is there.
	Linger time.Duration
}

// A Worker consumes topics as a member of a group, and handles each record under a Processor. Make it first, then the
// client with the worker's Opts, then call Run, once.
//
// A delivery's topic and origin are the source topic. Its position is partition, offset and leader epoch ("3-1042-7").
// Headers pass as they are, binary values too; different values of one name are joined with ", ". The record's key is
// in the header oncemill-key, so that dead letters keep it. Watermill's header _watermill_message_uuid is the UUID.
// Tombstones are records like any other. Records of aborted transactions are not handled.
//
// A record that waits takes no room in the window and asks nobody. Fetching pauses when enough lies ready, and
// heartbeats go on. After eight offers of a record there is a warning in the log, of many at once one a second. When a
// partition is revoked, records that wait are dropped at once, and nothing new is fetched until the revocation ends.
// Partitions that stay work off what was fetched. The next commit makes up for one that failed.
//
// If records were deleted before the group got to them, the error in the log may be a false alarm: compaction and
// markers of transactions look the same.
type Worker struct {
	config Config
	work   worker.Work
	look   time.Duration // how often it looks for what kgo tells nobody; zero: the session timeout
	client binding
}

// NewWorker returns a worker whose records are handled by handle, guarded by once. The error names the field of the
// config that is wrong.
func NewWorker(once *consumer.Processor, handle Handler, config Config) (*Worker, error) {
	if handle == nil {
		return nil, errors.New("franz: NewWorker needs a Handler")
	}
	return newHandlerWorker(config, worker.Work{
		Once: once, Handler: config.Handler,
		Each: func(ctx context.Context, m worker.Message) error { return handle(ctx, m.(*record).rec) },
	})
}

// NewBatchWorker is NewWorker for a handler of batches.
func NewBatchWorker(once *consumer.Processor, handle BatchHandler, config BatchConfig) (*Worker, error) {
	batches := worker.Batches{Most: config.MaxBatch, Bytes: config.MaxBatchBytes, Linger: config.Linger}.WithDefaults()
	switch {
	case handle == nil:
		return nil, errors.New("franz: NewBatchWorker needs a BatchHandler")
	case batches.Problem() != "":
		return nil, fmt.Errorf("franz: BatchConfig.%s", batches.Problem())
	}
	config.Order = cmp.Or(config.Order, PerKey)
	w, err := newHandlerWorker(config.Config, worker.Work{
		Once: once, Handler: config.Handler, Batches: batches,
		Batch: func(ctx context.Context, messages []worker.Message) []error {
			records := make([]*kgo.Record, len(messages))
			for i, m := range messages {
				records[i] = m.(*record).rec
			}
			return handle(ctx, records)
		},
	})
	if err == nil && !once.Batches() {
		w.config.Logger.Warn("franz: under a policy that parks, an inbox takes one record a transaction: each "+
			"batch has one record; use NewWorker, or another policy", "handler", config.Handler)
	}
	return w, err
}

// newHandlerWorker returns a worker whose handler has a name.
func newHandlerWorker(config Config, work worker.Work) (*Worker, error) {
	if work.Once == nil {
		return nil, errors.New("franz: a Worker needs a Processor")
	}
	if problem := consumer.HandlerProblem(config.Handler); problem != "" {
		return nil, fmt.Errorf("franz: Config.Handler %s", problem)
	}
	return newWorker(config, work)
}

func newWorker(config Config, work worker.Work) (*Worker, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Worker{config: config, work: work}, nil
}

const defaultRebalanceTimeout = time.Minute // kgo's

// Opts returns the options that a worker's client must be made with. Add your own: seed brokers, kgo.ConsumerGroup,
// kgo.ConsumeTopics, TLS. They are for one client at a time.
//
// They switch auto-commit off and set all rebalance callbacks, the cooperative-sticky balancer and the rebalance
// timeout (see Config.Grace). Only committed records of transactions are read. With Config.Retry they set what
// PublisherOpts sets. Later options win; Check refuses what would break a guarantee.
func (w *Worker) Opts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.WithHooks(birth{w}),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // for the time it takes to hand records to their partitions, no longer
		kgo.OnPartitionsAssigned(w.onAssigned),
		kgo.OnPartitionsRevoked(w.onRevoked),
		kgo.OnPartitionsLost(w.onLost),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.RebalanceTimeout(max(defaultRebalanceTimeout, 2*w.config.Grace)),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}
	if len(w.config.Retry) > 0 {
		opts = append(opts, PublisherOpts()...)
	}
	return opts
}

// birth tells a worker which client was made with its options.
type birth struct{ w *Worker }

// OnNewClient comes before kgo wraps the callbacks, which then cannot be told apart.
func (b birth) OnNewClient(cl *kgo.Client) {
	b.w.client.born(cl, sameFunc(cl.OptValue(kgo.OnPartitionsRevoked), b.w.onRevoked) &&
		sameFunc(cl.OptValue(kgo.OnPartitionsLost), b.w.onLost))
}

var _ kgo.HookNewClient = birth{}

// Run consumes until ctx ends, and then drains. No record is started any more, and those that wait are dropped. Running
// handlers may go on for Config.Grace until their contexts are cancelled, and what is settled is committed. Run waits
// for every handler, also for one that ignores its context.
//
// It returns nil when the broker has confirmed the commit. It returns ErrUnconfirmed if the broker has not within twice
// the rebalance timeout, or within 5 s if only topics that are gone stand in the way. Behind connections that are taken
// and not answered, kgo 1.22.2 may hold that up for almost a minute more.
//
// Run calls Check first, which does not ask the store (consumer.Processor.Check does). Afterwards it returns an error
// only if it cannot go on. That is kgo.ErrClientClosed, or a *dedupstore.SetupError if a right, a topic or its place in
// the group is gone. A topic that is deleted while it is consumed is noticed only when the broker says so, at the
// latest when it is made again. Stop workers before you delete one.
//
// Nobody else may poll the client or commit with it, not even after Run. Kgo's CommitUncommittedOffsets takes
// everything fetched for done, and would pass over records that were not handled.
//
// The client stays yours. Close it (kgo.Client.CloseAllowingRebalance) soon after Run returns, also if Check refuses
// it. It is a member of its group from the moment that it is made, and its partitions rest until it leaves. A client
// and a worker are for one Run.
func (w *Worker) Run(ctx context.Context, cl *kgo.Client) error {
	w.work.Once.Announce(w.config.Handler)
	if err := w.Check(ctx, cl); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // stopped before anything was begun
		}
		return err
	}
	s, err := newSession(w, cl)
	if err != nil {
		return err
	}
	if err := w.client.begin(cl, s); err != nil {
		return err
	}
	defer w.client.end()
	return s.run(ctx)
}

// onAssigned says when the wait for the group is over: a member gets nothing until all have joined.
func (w *Worker) onAssigned(ctx context.Context, _ *kgo.Client, assigned map[string][]int32) {
	if len(assigned) > 0 {
		w.config.Logger.InfoContext(ctx, "franz: partitions are assigned", "handler",
			cmp.Or(w.config.Handler, "a Router's"), "partitions", assigned)
	}
}

func (w *Worker) onRevoked(ctx context.Context, cl *kgo.Client, revoked map[string][]int32) {
	if s := w.client.current(cl); s != nil {
		s.revoke(ctx, revoked)
	}
}

func (w *Worker) onLost(_ context.Context, cl *kgo.Client, lost map[string][]int32) {
	if s := w.client.current(cl); s != nil {
		s.lose(lost)
	}
}

// A binding ties a worker to the client that was made with its Opts, and to its one Run on that.
type binding struct {
	mu      sync.Mutex
	made    *kgo.Client // the last client that was made with Opts
	intact  bool        // its callbacks are those of Opts
	running *kgo.Client // the one of Run; nil: there was none
	session *session    // nil: it does not run
}

// born notes which client was made with the worker's options.
func (b *binding) born(cl *kgo.Client, intact bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made, b.intact = cl, intact
}

// is reports whether a client is the last that was made with the worker's options, and has its callbacks.
func (b *binding) is(cl *kgo.Client) (last, intact bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.made == cl, b.intact
}

func (b *binding) begin(cl *kgo.Client, s *session) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running != nil {
		return setupError("this worker", "has run already: make a new one, and a new client with its Opts, because "+
			"records that were fetched and not handled would be passed over")
	}
	b.running, b.session = cl, s
	return nil
}

func (b *binding) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session = nil
}

// current returns the session that runs on a client, or nil.
func (b *binding) current(cl *kgo.Client) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running != cl {
		return nil
	}
	return b.session
}
