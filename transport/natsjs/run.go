package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
)

// An engine is what Worker and Source have in common.
type engine struct {
	once          *consumer.Processor
	js            jetstream.JetStream
	consumer      func(ctx context.Context, topic string) (jetstream.Consumer, error)
	config        Config
	lookEvery     time.Duration // how often a run looks at its consumer again
	goneFor       time.Duration // how long a consumer must be missing to be believed deleted
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
	return &engine{once: once, js: js, config: config, lookEvery: lookEvery, goneFor: goneFor}, nil
}

// A session is what everybody in one run of an engine knows.
type session struct {
	nc      *nats.Conn
	config  Config
	info    consumerInfo
	stop    func(error)        // makes the run drain, and end with an error
	run     *worker.Assignment // of all messages
	pulled  chan struct{}      // closed: the drain has begun, and no request is outstanding
	keeper  keeper
	fetcher fetcher
	watcher watcher
}

// flushTimeout bounds the wait for acks to reach the server at the end of a run, and for the confirmation of an ack.
const flushTimeout = 10 * time.Second

// consume works on the messages of a consumer until ctx ends or it cannot go on, and then drains. The fetcher asks for
// messages, the loop has them handled, and the watcher keeps the server informed and looks whether the consumer is
// still the same.
func (e *engine) consume(ctx context.Context, topic string, work worker.Work) error {
	cons, info, err := e.check(ctx, topic)
	if errors.Is(ctx.Err(), context.Canceled) && err != nil {
		return nil // stopped before anything was begun
	}
	if err != nil {
		return err
	}
	log := info.log.With("handler", cmp.Or(e.config.Handler, "a Router's"), "group", e.once.Config().Group)
	log.InfoContext(ctx, "natsjs: consuming begins")
	defer log.InfoContext(ctx, "natsjs: consuming has ended")
	stopListening := e.listenForMaxDeliveries(ctx, info)
	defer stopListening()
	detached := telemetry.Spanless(context.WithoutCancel(ctx)) // the end of ctx is not that of the handlers
	pulling, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	loop := worker.New(work, info.maxInFlight)
	s := &session{
		nc: e.js.Conn(), config: e.config, info: info, stop: stop, pulled: make(chan struct{}),
		keeper: keeper{most: info.maxInFlight / 2, naks: info.delayed, limited: info.maxDeliver > 0},
	}
	s.watcher = watcher{
		s: s, cons: cons, every: e.lookEvery, goneFor: e.goneFor, created: info.created,
		finished: make(chan struct{}),
	}
	s.fetcher = newFetcher(s)
	s.run = loop.Assign(detached, nil, math.MaxInt, s.fetcher.released) // which asks for no more than there is room for
	var background sync.WaitGroup
	background.Go(s.watcher.keepAlive)
	background.Go(func() { s.watcher.watch(detached) })
	background.Go(func() { s.fetcher.receive(detached) })
	s.run.Hold()
	s.fetcher.pull(pulling)
	if ctx.Err() == nil {
		err = context.Cause(pulling)
	}
	s.run.Halt()
	background.Go(func() {
		s.fetcher.fetches.Wait()
		close(s.pulled)
		s.run.Release()
	})
	if late := worker.Late([]*worker.Assignment{s.run}, e.config.Grace); len(late) > 0 {
		if n := s.run.Cancel(errGrace); n > 0 {
			log.WarnContext(ctx, "natsjs: handlers take too long for the shutdown and are cancelled; those that ignore "+
				"their contexts keep the process from ending", "handlers", n, "after", e.config.Grace)
			err = errors.Join(err, fmt.Errorf("%w: %d handlers, after %v", ErrCutShort, n, e.config.Grace))
		}
		<-s.run.Ended()
	}
	loop.Wait()
	close(s.watcher.finished)
	background.Wait()
	s.watcher.probes.Wait()
	s.fetcher.unsubscribe()

	flush, done := context.WithTimeout(detached, flushTimeout)
	defer done()
	if ferr := s.nc.FlushWithContext(flush); ferr != nil && err == nil {
		err = fmt.Errorf("natsjs: stopped, but the last acks may not have reached the server: %w", ferr)
	}
	return err
}
