package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/worker"
)

// A Handler does the work for one message. Its error decides what happens next: see oncemill.RunFunc. The worker
// settles the message. Ack and DoubleAck of the message do nothing, and InProgress is not needed. Nak and Term return
// ErrWorkerSettles, Term as a permanent error; the run fails with it even if the handler returns nil. The message must
// not be changed.
type Handler func(ctx context.Context, msg jetstream.Msg) error

// A BatchHandler does the work for several messages at once, such as an insert of many rows. It returns an error for
// each message, in their order, which has the effect of a Handler's error. Nil: all have succeeded.
// oncemill.RunsFromContext returns the runs of a batch. The worker settles the messages: see Handler.
//
// One error for several messages, any other wrong number, or a panic says that the batch failed as a whole; over an
// inbox, where a batch is one transaction, any error does. Then its messages are handled in batches of one, which costs
// no attempt. So are messages whose last two runs or more ended with expired leases, one at a time. A batch has no
// order, and at most one message of each order key.
type BatchHandler func(ctx context.Context, msgs []jetstream.Msg) []error

// BatchConfig configures a Worker with a BatchHandler. As many batches run at once as MaxInFlight has room for.
type BatchConfig struct {
	Config

	// MaxBatch is how many messages a batch has at most. Zero: 64.
	MaxBatch int

	// MaxBatchBytes is how many bytes of payload a batch has at most. A larger message is a batch of its own. Zero: 1
	// MiB.
	MaxBatchBytes int

	// Linger is how long a batch that is not full waits for more messages. Zero: no wait, a batch is what is there.
	Linger time.Duration
}

// A Worker gives the messages of one pull consumer to a guarded handler. It is safe for concurrent use; one Run works
// at a time.
//
// # Deliveries
//
// The origin of a delivery is the stream, and its position, for producer.ExtractPosition, is the stream's sequence and
// time. Header names keep their case. Several values of one header are joined by ", " in their order (RFC 9110, section
// 5.3). The server's headers ("Nats-…") are among them; outputs and dead letters leave them out, and a handler that
// publishes should too. The header _watermill_message_uuid, of Watermill's own NATS marshaler, becomes the delivery's
// UUID.
//
// A Nats-Msg-Id counts as unique within its stream, and in a stream with several sources among all of them. Clusters,
// domains or accounts that share a store and have streams of one name need a Group each, or IDs that are unique within
// a stream would collide.
//
// # Retries
//
// Each worker may have half of MaxAckPending and more waiting at the server for retries, so several together may have
// all of it. Without that limit it is about 1,000, or more when half of MaxInFlight waits in the worker. A consumer
// with BackOff gets no naks, because the server would deliver later than their delay. If a nak is lost, as with a
// connection that breaks right after it, its message comes after AckWait, which may be early.
type Worker struct {
	engine  *engine
	work    worker.Work
	running atomic.Bool
}

// NewWorker returns a Worker for a pull consumer of js. It asks for messages and settles them through js and its
// connection; cons only names the consumer. The error names the field of the config, or the argument, that is wrong.
// Nothing is sent to the server.
func NewWorker(once *consumer.Processor, js jetstream.JetStream, cons jetstream.Consumer, handle Handler,
	config Config) (*Worker, error) {
	if handle == nil {
		return nil, errors.New("natsjs: NewWorker needs a handler")
	}
	return newWorker(js, cons, config, worker.Work{
		Once: once, Handler: config.Handler,
		Each: func(ctx context.Context, m worker.Message) error {
			msg := m.(*message)
			return msg.result(handle(ctx, msg))
		},
	})
}

// NewBatchWorker is NewWorker for a handler of batches.
func NewBatchWorker(once *consumer.Processor, js jetstream.JetStream, cons jetstream.Consumer, handle BatchHandler,
	config BatchConfig) (*Worker, error) {
	batches := worker.Batches{Most: config.MaxBatch, Bytes: config.MaxBatchBytes, Linger: config.Linger}.WithDefaults()
	if problem := batches.Problem(); problem != "" {
		return nil, fmt.Errorf("natsjs: BatchConfig.%s", problem)
	}
	if handle == nil {
		return nil, errors.New("natsjs: NewBatchWorker needs a handler")
	}
	w, err := newWorker(js, cons, config.Config, worker.Work{
		Once: once, Handler: config.Handler, Batches: batches,
		Batch: func(ctx context.Context, messages []worker.Message) []error { return handleAll(ctx, messages, handle) },
	})
	if err == nil && !once.Batches() {
		w.engine.config.Logger.Warn("natsjs: under a policy that parks, an inbox takes one message a transaction: "+
			"each batch has one message; use NewWorker, or another policy", "handler", config.Handler)
	}
	return w, err
}

// handleAll calls a handler of batches.
func handleAll(ctx context.Context, messages []worker.Message, handle BatchHandler) []error {
	msgs := make([]jetstream.Msg, len(messages))
	for i, m := range messages {
		msgs[i] = m.(*message)
		_ = m.(*message).result(nil) // what was said of it in a batch that panicked
	}
	errs := handle(ctx, msgs)
	for i, m := range messages {
		err := m.(*message).result(nil)
		if err != nil && errs == nil {
			errs = make([]error, len(messages))
		}
		if i < len(errs) {
			errs[i] = cmp.Or(errs[i], err)
		}
	}
	return errs
}

func newWorker(js jetstream.JetStream, cons jetstream.Consumer, config Config, work worker.Work) (*Worker, error) {
	e, err := newEngine("NewWorker", work.Once, js, config)
	if err != nil {
		return nil, err
	}
	if problem := consumer.HandlerProblem(config.Handler); problem != "" {
		return nil, fmt.Errorf("natsjs: Config.Handler %s", problem)
	}
	if isnil.Nil(cons) {
		return nil, errors.New("natsjs: NewWorker needs a consumer")
	}
	e.consumer = func(context.Context, string) (jetstream.Consumer, error) { return cons, nil }
	return &Worker{engine: e, work: work}, nil
}

// Check looks at the consumer, its stream and where dead letters go. It returns a *dedupstore.SetupError that says what
// to set if the worker's guarantees cannot be kept, and logs a warning for what is unwise. It changes nothing.
//
// It refuses a work-queue stream in which the consumer gets its own dead letters, because the stream would delete them.
// It refuses a dead-letter topic of a Publisher of this package on which no stream listens. It logs which messages are
// gone at the beginning of the stream, where it can be sure that they were this consumer's.
//
// The connection needs the right to publish to $JS.API.CONSUMER.INFO, $JS.API.CONSUMER.MSG.NEXT and $JS.ACK, each of
// the stream and consumer. It also needs the right to subscribe to its inboxes. With the server's feature flag
// js_ack_fc_v2 (2.14 and later, off by default) acks go to $JS.ACK.*.*, with domain and account before the stream. An
// account that imports the JetStream of another one must import $JS.ACK.> beside its API. TermWithReason needs
// nats-server 2.10.4. These rights are optional:
//
//   - $JS.API.STREAM.INFO: without it there is a warning;
//   - $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES, to subscribe: without it MaxDeliveries stays zero;
//   - $JS.API.STREAM.NAMES: without it Check does not look for the stream of dead letters;
//   - STREAM.INFO and CONSUMER.LIST of that stream: without them Check does not see whether it keeps dead letters.
func (w *Worker) Check(ctx context.Context) error {
	_, _, err := w.engine.check(ctx, "")
	return err
}

// Run calls Check, which does not ask the store (consumer.Processor.Check does), and then works until ctx ends, which
// begins the drain. Nothing new is started, handlers go on, and acks reach the server. Everything else is given back
// when no request for messages is outstanding, after about a second at most. A message on its last delivery is run
// instead of given back.
//
// Run returns nil after a clean drain, or if ctx was cancelled during Check. It returns ErrCutShort if handlers took
// longer than Config.Grace. Otherwise it drains too and returns an error that says why it cannot go on. The consumer is
// deleted or changed, the connection is closed, a right is missing, or acks reach nobody. You may call it again when it
// has returned.
//
// The drain waits for a handler that ignores its context, except in a Router, which waits itself. While the server is
// away it tries acks for 10 s more. A connection that is there but silent delays it by half a minute, unless its pings
// (nats.PingInterval) find that out before.
func (w *Worker) Run(ctx context.Context) error {
	if !w.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer w.running.Store(false)
	w.engine.once.Announce(w.engine.config.Handler)
	return w.engine.consume(ctx, "", w.work)
}

// MaxDeliveries is how many messages the server has given up, while the worker ran, because they had the consumer's
// MaxDeliver deliveries. They are still in the stream, but nobody gets them.
func (w *Worker) MaxDeliveries() uint64 { return w.engine.maxDeliveries.Load() }
