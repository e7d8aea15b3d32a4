package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// An engine is what Worker and Source have in common.
type engine struct {
	once          *consumer.Processor
	js            jetstream.JetStream
	consumer      func(ctx context.Context, topic string) (jetstream.Consumer, error)
	config        Config
	lookEvery     time.Duration // how often a run looks at its consumer again
	maxDeliveries atomic.Uint64
}

// newEngine returns an engine without its consumer. The name is that of the function that needs it, for errors.
func newEngine(name string, once *consumer.Processor, js jetstream.JetStream, config Config) (*engine, error) {
	config = config.withDefaults()
	switch err := config.validate(); {
	case err != nil:
		return nil, err
	case once == nil:
		return nil, fmt.Errorf("natsjs: %s needs a Processor", name)
	case isnil.Nil(js) || js.Conn() == nil:
		return nil, fmt.Errorf("natsjs: %s needs a JetStream with a connection", name)
	}
	return &engine{once: once, js: js, config: config, lookEvery: lookEvery}, nil
}

// process begins to process a message, and tells done what to do with it, once. Neither waits for anything: work that
// waits runs in a goroutine of the session's pool.
type process func(ctx context.Context, m *message, done func(consumer.Decision))

// A session is what everybody in one run of an engine knows. It does not change.
type session struct {
	nc       *nats.Conn
	config   Config
	limits   limits
	log      *slog.Logger
	waits    *oncemill.WaitLimit
	stop     func(error)   // makes the run drain, and end with an error
	draining chan struct{} // closed: the drain has begun
	pulled   chan struct{} // closed: it has, and no request is outstanding
}

// flushTimeout bounds the wait for acks to reach the server at the end of a run, and for the confirmation of an ack.
const flushTimeout = 10 * time.Second

// run works on the messages of a consumer until ctx ends or it cannot go on, and then drains. The fetcher asks for
// messages, inFlight has them processed in their order, and the settler carries out decisions. The watcher keeps the
// server informed and looks whether the consumer is still the same.
func (e *engine) run(ctx context.Context, topic string, with func(context.Context, *inFlight) process) error {
	cons, l, err := e.check(ctx, topic)
	if errors.Is(ctx.Err(), context.Canceled) && err != nil {
		return nil // stopped before anything was begun
	}
	if err != nil {
		return err
	}
	log := l.log.With("handler", cmp.Or(e.config.Handler, "a Router's"), "group", e.once.Group())
	log.InfoContext(ctx, "natsjs: consuming begins")
	defer log.InfoContext(ctx, "natsjs: consuming has ended")
	stopWatching := e.watchMaxDeliveries(ctx, l)
	defer stopWatching()
	detached := telemetry.Spanless(context.WithoutCancel(ctx)) // the end of ctx is not that of the handlers
	work, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	pulling, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	s := &session{
		nc: e.js.Conn(), config: e.config, limits: l, log: l.log, stop: stop,
		waits:    oncemill.NewWaitLimit(max(1, l.maxInFlight/2)),
		draining: make(chan struct{}), pulled: make(chan struct{}),
	}
	messages := &inFlight{
		session: s, settler: &settler{session: s}, messages: map[*message]struct{}{}, created: l.created,
		hurry: func() {},
	}
	messages.process = with(work, messages)
	w := &watcher{session: s, cons: cons, inFlight: messages, every: e.lookEvery, finished: make(chan struct{})}
	f := &fetcher{
		session: s, inFlight: messages, watcher: w, wake: make(chan struct{}, 1), ended: make(chan fetched, maxFetches),
	}
	messages.came, messages.went = w.probe, f.released

	w.background.Go(w.keepAlive)
	w.background.Go(func() { w.watch(work) })
	f.pull(pulling, work)
	if ctx.Err() == nil {
		err = context.Cause(pulling)
	}
	close(s.draining)
	messages.hurry()
	var cut atomic.Int64 // handlers whose contexts were cancelled because the drain takes too long
	grace := time.AfterFunc(e.config.Grace, func() {
		cut.Store(messages.running.Load())
		cancel(errGrace)
	})
	f.fetches.Wait()
	close(s.pulled)
	messages.handling.Wait()
	messages.pool.Wait()
	grace.Stop()
	close(w.finished)
	w.background.Wait()

	if n := cut.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d handlers, after %v", ErrCutShort, n, e.config.Grace))
	}
	flush, done := context.WithTimeout(detached, flushTimeout)
	defer done()
	if ferr := s.nc.FlushWithContext(flush); ferr != nil && err == nil {
		err = fmt.Errorf("natsjs: stopped, but the last acks may not have reached the server: %w", ferr)
	}
	return err
}

func (s *session) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}
