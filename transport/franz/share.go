package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// ShareConfig configures a ShareWorker. Handler and RetryTopic are required.
type ShareConfig struct {
	// Handler names the handler within the group: see Config.Handler. Required.
	Handler string

	// RetryTopic is where a record goes, as a copy with the same ID, when its handler failed. It also goes there when
	// it has had more than half of share.delivery.count.limit, because the broker drops a record after that many
	// deliveries. Required.
	//
	// The worker's client must consume the topic, and be allowed to write to it. The topic must not be compacted, and
	// must keep records for longer than they wait (retention.ms). All its records should belong to one group: another
	// group would handle them too. Topic (max.message.bytes) and client (kgo.ProducerBatchMaxBytes) should take what
	// the source topics take, and some hundred bytes more. Nobody else has the messages that wait in it:
	// docs/operations.md says how to replace it.
	RetryTopic string

	// MaxInFlight is how many records are handled at once. Records that wait take no room in it. The worker holds up to
	// ten times as many; when so many wait, nothing more comes. Zero: 256.
	MaxInFlight int

	// Grace is how long running handlers may go on when Run's context has ended, before their contexts are cancelled.
	// Zero: 30 s.
	Grace time.Duration

	// Logger gets what operators must know. Nil: slog.Default().
	Logger *slog.Logger
}

func (c ShareConfig) withDefaults() ShareConfig {
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultMaxInFlight)
	c.Grace = cmp.Or(c.Grace, defaultGrace)
	c.Logger = telemetry.Logger(cmp.Or(c.Logger, slog.Default()))
	return c
}

// validate checks a config after its defaults were filled in.
func (c ShareConfig) validate() error {
	if problem := consumer.HandlerProblem(c.Handler); problem != "" {
		return fmt.Errorf("franz: ShareConfig.Handler %s", problem)
	}
	if problem := topicProblem(c.RetryTopic); problem != "" {
		return fmt.Errorf("franz: ShareConfig.RetryTopic %s", problem)
	}
	switch {
	case c.MaxInFlight < 1:
		return fmt.Errorf("franz: ShareConfig.MaxInFlight is %d, want at least 1, or zero", c.MaxInFlight)
	case c.Grace < 0:
		return fmt.Errorf("franz: ShareConfig.Grace is %v, want at least 0", c.Grace)
	}
	return nil
}

// A ShareWorker consumes topics as a member of a share group (KIP-932), and handles each record under a Processor. Many
// members can work on one partition, and others pass a record that waits. It needs Kafka 4.3 or later. Make it first,
// then the client with the worker's Opts, then call Run, once. It guarantees:
//
//   - A record is accepted only when it is settled, as a Worker's is, or when its copy in the retry topic is confirmed.
//     A rejected record is rejected at the broker and logged as an error: set consumer.Config.DeadLetters to keep it.
//   - A record whose handler failed goes on as a copy in ShareConfig.RetryTopic and waits there. A record that waits
//     for something else is held here, and its lock is prolonged, as that of a running one. That is one delivery,
//     however long it takes, and takes no room in ShareConfig.MaxInFlight.
//   - Only shutdowns, crashes, lost connections, moves of a partition's leader and brokers that cannot write the
//     group's state use up deliveries. The broker drops a record after share.delivery.count.limit of them. So a record
//     that has had more than half is not run. It goes on as a copy with the same ID, and nothing else is begun until
//     that is confirmed. If the topic refuses it as too large, it is run where it is.
//   - A lost lock brings the record again, here or elsewhere. The guard keeps the copies apart, and a record with an
//     outcome does not run again. If the process stood still and no broker has the number 0, Run ends with an error,
//     because kgo 1.22.2 would fetch nothing more.
//   - When Run's context ends, running handlers may finish within ShareConfig.Grace, acknowledgements reach the broker,
//     and everything else is given back. No goroutine is left.
//
// It does not guarantee
//
//   - order;
//   - that others always pass a record that waits or runs. The broker stops a partition, for all members, when
//     share.partition.max.record.locks (2000) offsets have come after its first record that is not settled. A member
//     gets nothing when ten times MaxInFlight records wait;
//   - that a record survives if process or connection die in each delivery that is left when it should be copied: half
//     of the limit, rounded up;
//   - that partitions which a dead member had alone go on before share.session.timeout.ms is over;
//   - a log line for records that the broker deletes too early, or does not deliver because its log lost its end and
//     their offsets were used before;
//   - anything beside members of the group that are no ShareWorkers: they can release records and so use up deliveries;
//   - that a dead letter stays one. Its copy in the retry topic does not name its source, and consumer.Rerun refuses
//     it. Let a Worker run dead letters again.
//
// docs/brokers.md has the settings of the group.
type ShareWorker struct {
	config  ShareConfig
	once    *consumer.Processor
	process func(*handling) process
	client  binding[shareSession]
}

// NewShareWorker returns a worker whose records are handled by handle, guarded by once. The handler must leave
// Record.Ack alone. The error names the field of the config that is wrong.
func NewShareWorker(once *consumer.Processor, handle Handler, config ShareConfig) (*ShareWorker, error) {
	switch {
	case once == nil:
		return nil, errors.New("franz: NewShareWorker needs a Processor")
	case handle == nil:
		return nil, errors.New("franz: NewShareWorker needs a Handler")
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &ShareWorker{config: config, once: once, process: guarded(once, config.Handler, handle)}, nil
}

// maxShareFetch is how many records one fetch brings at most.
const maxShareFetch = 500

// Opts returns the options that a worker's client must be made with. Add your own: seed brokers, kgo.ShareGroup,
// kgo.ConsumeTopics with the source topics and the retry topic, TLS. They are for one client at a time.
//
// They bound what one fetch brings, and let the client fetch nothing ahead, because nobody prolongs the locks of such
// records. They set the callback for acknowledgements, and what PublisherOpts sets. Later options win; Check refuses
// what would break a guarantee.
func (w *ShareWorker) Opts() []kgo.Opt {
	return append(PublisherOpts(),
		kgo.WithHooks(shareHooks{w}),
		kgo.ShareMaxRecords(int32(min(w.config.MaxInFlight, maxShareFetch))),
		kgo.ShareMaxRecordsStrict(),
		kgo.MaxConcurrentFetches(0),
		kgo.ShareAckCallback(w.onAcked),
	)
}

// shareHooks tell a worker which client was made with its options, and veil records.
type shareHooks struct{ w *ShareWorker }

// OnNewClient comes before anything is fetched.
func (h shareHooks) OnNewClient(cl *kgo.Client) {
	h.w.client.born(cl, sameFunc(cl.OptValue(kgo.ShareAckCallback), h.w.onAcked))
}

// OnFetchRecordBuffered comes before a record can be polled.
func (shareHooks) OnFetchRecordBuffered(rec *kgo.Record) { hide(rec) }

var (
	_ kgo.HookNewClient           = shareHooks{}
	_ kgo.HookFetchRecordBuffered = shareHooks{}
)

// Run consumes until ctx ends, and then drains. No record is started any more, and running handlers may go on for
// ShareConfig.Grace until their contexts are cancelled. Settled records are acknowledged, and the rest is released. Run
// waits for every handler, also for one that ignores its context. It returns nil when the broker has accepted all that,
// and ErrUnconfirmed otherwise.
//
// Run calls Check first. Afterwards it returns an error only if it cannot go on: a *dedupstore.SetupError, one that
// says that the process must be started again, or kgo.ErrClientClosed.
//
// The client stays yours. Close it soon after Run returns, also if Check refuses it. It is a member of its group as
// soon as it is made. Partitions that it has alone rest until it leaves, and what it fetched last may be locked. A
// client and a worker are for one Run.
func (w *ShareWorker) Run(ctx context.Context, cl *kgo.Client) error {
	w.once.Announce(w.config.Handler)
	rules, err := w.check(ctx, cl)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // stopped before anything was begun
		}
		return err
	}
	group := option[string](cl, kgo.ShareGroup)
	h, err := newHandling(w.once, w.process, cl, group, w.config.Logger, w.config.MaxInFlight, w.retry())
	if err != nil {
		return err
	}
	s := newShareSession(w.config, h, rules)
	if err := w.client.begin(cl, s); err != nil {
		return err
	}
	defer w.client.end()
	return s.tell(ctx, w.config.Handler, cl.GetConsumeTopics(), s.run)
}

func (w *ShareWorker) retry() []RetryTopic { return []RetryTopic{{Topic: w.config.RetryTopic}} }

// onAcked hears what the broker says to acknowledgements.
func (w *ShareWorker) onAcked(cl *kgo.Client, results kgo.ShareAckResults) {
	if s := w.client.current(cl); s != nil {
		s.locks.answered(results)
	}
}
