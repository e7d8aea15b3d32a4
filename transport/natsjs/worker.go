package natsjs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
)

// A Handler does the work for one message. It steers by the error that it returns: see oncemill.RunFunc. The worker
// settles the message: its acks return ErrWorkerSettles, except InProgress, which the worker sends by itself. The
// message must not be changed.
type Handler func(ctx context.Context, msg jetstream.Msg) error

// A Worker guards the messages of one pull consumer to a handler.
type Worker struct {
	engine  *engine
	process func(context.Context, *inFlight) process
	running atomic.Bool
}

// NewWorker returns a Worker for a pull consumer, which must be one of js: its messages are asked for and settled by js
// and its connection, not by methods of cons, which only says what it is. The error names the field of the config, or
// the argument, that is wrong. Nothing is sent to the server.
func NewWorker(once *consumer.Processor, js jetstream.JetStream, cons jetstream.Consumer, handle Handler,
	config Config) (*Worker, error) {
	if handle == nil {
		return nil, errors.New("natsjs: NewWorker needs a handler")
	}
	w, err := newWorker(once, js, cons, config)
	if err != nil {
		return nil, err
	}
	w.process = func(_ context.Context, f *inFlight) process {
		return func(ctx context.Context, m *message, done func(consumer.Decision)) {
			d := m.delivery
			d.Handler = f.config.Handler
			call := func(ctx context.Context) error { return handle(ctx, m) }
			once.Claim(ctx, d, func(ctx context.Context, t *consumer.Ticket) {
				f.pool.Go(func() { t.Process(ctx, call, done) })
			})
		}
	}
	return w, nil
}

func newWorker(
	once *consumer.Processor, js jetstream.JetStream, cons jetstream.Consumer, config Config,
) (*Worker, error) {
	e, err := newEngine("NewWorker", once, js, config)
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
	return &Worker{engine: e}, nil
}

// Check looks at the consumer, its stream and where dead letters go, and returns a *dedupstore.SetupError that says
// what to set if the worker's guarantees cannot be kept. It logs a warning for what is unwise. It changes nothing.
func (w *Worker) Check(ctx context.Context) error {
	_, _, err := w.engine.check(ctx, "")
	return err
}

// Run calls Check and then works until ctx ends, which begins the drain: nothing new is started, handlers go on, acks
// reach the server, and everything else is given back, once no request for messages is outstanding, which takes up to
// about a second. It returns nil after a clean drain, or if ctx was cancelled while it still checked, ErrCutShort
// if handlers took longer than Config.Grace, and otherwise an error that says why it cannot go on, after a drain too.
// It may be called again when it has returned.
func (w *Worker) Run(ctx context.Context) error {
	if !w.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer w.running.Store(false)
	return w.engine.run(ctx, "", w.process)
}

// MaxDeliveries is how many messages the server has given up, while the worker ran, because they had the consumer's
// MaxDeliver deliveries. They are in the stream, and nobody gets them.
func (w *Worker) MaxDeliveries() uint64 { return w.engine.maxDeliveries.Load() }
