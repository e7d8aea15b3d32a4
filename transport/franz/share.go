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

	// RetryTopic is where a record goes, as a copy with the same ID, when its handler failed, and before it has used up
	// the deliveries that the broker allows it (share.delivery.count.limit), because then the broker drops it: when it
	// has had more than half of them. The worker's client must consume the topic, and be allowed to write to it. All
	// its records should belong to one group: another group would handle them too. It should take what the source
	// topics take, and some hundred bytes more (max.message.bytes), and so should the client
	// (kgo.ProducerBatchMaxBytes). It must keep records for longer than they wait (retention.ms), and not be compacted.
	// Nobody else has the messages that wait in it: docs/operations.md says how to replace it. Required.
	RetryTopic string

	// MaxInFlight is how many records are handled at once. Records that wait take no room in it; up to ten times as
	// many are in the worker's hands. When so many wait, nothing more comes. Zero: 256.
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

// A ShareWorker consumes topics as a member of a share group (KIP-932), and handles each record under a Processor: many
// members can work on one partition, and others pass a record that waits, within a limit of the broker's. It is made
// first, then the client with the worker's Opts, then it runs, once.
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

// Opts returns the options that a worker's client must be made with, beside those of its own: seed brokers,
// kgo.ShareGroup, kgo.ConsumeTopics with the source topics and the retry topic, TLS. They are for one client at a time.
//
// They bound what one fetch brings, let the client fetch nothing ahead, as nobody prolongs the locks of what lies
// there, set the callback for acknowledgements, and what PublisherOpts does. Options behind them win; Check refuses
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

// Run consumes until ctx ends, and then drains: no record is started any more, running handlers may go on for
// ShareConfig.Grace until their contexts are cancelled, what is settled is acknowledged, and the rest is released. It
// returns nil when the broker has answered all that, and ErrUnconfirmed if it has not, or has refused some. It waits
// for every handler, also for one that ignores its context.
//
// Run calls Check first. Afterwards it returns an error only if it cannot go on: a *dedupstore.SetupError, one that
// says that the process has to be started again, or kgo.ErrClientClosed.
//
// The client stays the caller's. Close it soon after Run returns, also where Check refuses it: it is a member of its
// group from when it is made on, partitions that it has alone rest until it leaves, and what it may have fetched last
// is locked. A client and a worker are for one Run.
func (w *ShareWorker) Run(ctx context.Context, cl *kgo.Client) error {
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
	return s.run(ctx)
}

func (w *ShareWorker) retry() []RetryTopic { return []RetryTopic{{Topic: w.config.RetryTopic}} }

// onAcked hears what the broker says to acknowledgements.
func (w *ShareWorker) onAcked(cl *kgo.Client, results kgo.ShareAckResults) {
	if s := w.client.current(cl); s != nil {
		s.locks.answered(results)
	}
}
