package franz

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
)

// A Handler does the work for one record. Its error decides what happens next: see oncemill.RunFunc. A record that
// comes from a retry topic has that topic, partition and offset. The record is not changed, and must not be.
type Handler func(ctx context.Context, rec *kgo.Record) error

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
	config  Config
	process func(*handling) process
	once    *consumer.Processor
	look    time.Duration // how often it looks for what kgo tells nobody; zero: the session timeout
	client  binding
}

// NewWorker returns a worker whose records are handled by handle, guarded by once. The error names the field of the
// config that is wrong.
func NewWorker(once *consumer.Processor, handle Handler, config Config) (*Worker, error) {
	switch {
	case once == nil:
		return nil, errors.New("franz: NewWorker needs a Processor")
	case handle == nil:
		return nil, errors.New("franz: NewWorker needs a Handler")
	}
	if problem := consumer.HandlerProblem(config.Handler); problem != "" {
		return nil, fmt.Errorf("franz: Config.Handler %s", problem)
	}
	return newWorker(once, config, guarded(once, config.Handler, handle))
}

func newWorker(once *consumer.Processor, config Config, process func(*handling) process) (*Worker, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Worker{config: config, once: once, process: process}, nil
}

const defaultRebalanceTimeout = time.Minute // kgo's

// Opts returns the options that a worker's client must be made with. Add your own: seed brokers, kgo.ConsumerGroup,
// kgo.ConsumeTopics, TLS. They are for one client at a time.
//
// They switch auto-commit off and set the rebalance callbacks, the cooperative-sticky balancer and the rebalance
// timeout (see Config.Grace). Only committed records of transactions are read. With Config.Retry they set what
// PublisherOpts sets. Later options win; Check refuses what would break a guarantee.
func (w *Worker) Opts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.WithHooks(birth{w}),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // for the time it takes to hand records to their partitions, no longer
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
// Run calls Check first. Afterwards it returns an error only if it cannot go on. That is kgo.ErrClientClosed, or a
// *dedupstore.SetupError if a right, a topic or its place in the group is gone. A topic that is deleted while it is
// consumed is noticed only when the broker says so, at the latest when it is made again. Stop workers before you delete
// one.
//
// Nobody else may poll the client or commit with it, not even after Run. Kgo's CommitUncommittedOffsets takes
// everything fetched for done, and would pass over records that were not handled.
//
// The client stays yours. Close it (kgo.Client.CloseAllowingRebalance) soon after Run returns, also if Check refuses
// it. It is a member of its group from the moment that it is made, and its partitions rest until it leaves. A client
// and a worker are for one Run.
func (w *Worker) Run(ctx context.Context, cl *kgo.Client) error {
	w.once.Announce(w.config.Handler)
	if err := w.Check(ctx, cl); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // stopped before anything was begun
		}
		return err
	}
	group := option[string](cl, kgo.ConsumerGroup)
	h, err := newHandling(w.once, w.process, cl, group, w.config.Logger, w.config.MaxInFlight, w.config.Retry)
	if err != nil {
		return err
	}
	s := newSession(w.config, h)
	s.look = w.look
	if err := w.client.begin(cl, s); err != nil {
		return err
	}
	defer w.client.end()
	return s.tell(ctx, w.config.Handler, cl.GetConsumeTopics(), s.run)
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

// placeName is how a partition is called in logs and errors.
func placeName(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }
