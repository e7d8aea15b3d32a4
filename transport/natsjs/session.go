package natsjs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
)

// A session is one run of an engine.
type session struct {
	nc      *nats.Conn
	cons    jetstream.Consumer
	process process
	config  Config
	limits  limits
	log     *slog.Logger
	waits   *oncemill.WaitLimit
	look    time.Duration // how often the consumer is looked at again

	order      worker.Order
	handling   sync.WaitGroup // messages in flight
	fetches    sync.WaitGroup
	background sync.WaitGroup

	wake     chan struct{} // there may be room for a fetch
	ended    chan fetched  // as many as there are fetches at once, so that nobody waits for a reader
	fatal    chan error    // a reason to stop that was found outside of the fetches
	draining chan struct{} // closed: the drain has begun
	pulled   chan struct{} // closed: it has, and no fetch is outstanding
	probe    probe
	running  atomic.Int64 // calls of process
	cut      int64        // of them, when their contexts were cancelled

	mu          sync.Mutex
	flights     map[*held]struct{}
	created     time.Time // when the consumer was
	delivered   uint64    // the consumer's count of deliveries, as far as it was seen
	credit      int       // what outstanding fetches may still bring
	outstanding int       // fetches
	size        int       // of large messages, in bytes; zero: not known yet
	nextSmall   time.Time
	kept        int // flights that wait for their next try
	delayed     delays
}

func newSession(e *engine, cons jetstream.Consumer, l limits, p process) *session {
	return &session{
		nc: e.js.Conn(), cons: cons, process: p, config: e.config, limits: l,
		log:      e.config.Logger.With("stream", l.stream, "consumer", l.consumer),
		waits:    oncemill.NewWaitLimit(max(1, l.maxInFlight/2)),
		look:     e.lookEvery,
		wake:     make(chan struct{}, 1),
		ended:    make(chan fetched, maxFetches),
		fatal:    make(chan error, 1),
		draining: make(chan struct{}),
		pulled:   make(chan struct{}),
		flights:  map[*held]struct{}{},
		created:  l.created,
	}
}

// flushTimeout bounds the wait for acks to reach the server at the end of a run, and for the confirmation of an ack.
const flushTimeout = 10 * time.Second

func (s *session) run(ctx context.Context) error {
	detached := telemetry.Spanless(context.WithoutCancel(ctx)) // the end of ctx is not that of the handlers
	work, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	finished := make(chan struct{})
	s.background.Go(func() { s.keepAlive(finished) })
	s.background.Go(func() { s.watch(work, finished) })

	err := s.pull(ctx, work)
	close(s.draining)
	s.background.Go(func() { s.grace(finished, cancel) })
	s.fetches.Wait()
	close(s.pulled)
	s.handling.Wait()

	close(finished)
	s.background.Wait()
	if s.cut > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d handlers, after %v", ErrCutShort, s.cut, s.config.Grace))
	}
	flush, done := context.WithTimeout(detached, flushTimeout)
	defer done()
	if ferr := s.nc.FlushWithContext(flush); ferr != nil && err == nil {
		err = fmt.Errorf("natsjs: stopped, but the last acks may not have reached the server: %w", ferr)
	}
	return err
}

// grace cancels the handlers' contexts when the drain takes too long.
func (s *session) grace(finished <-chan struct{}, cancel context.CancelCauseFunc) {
	t := time.NewTimer(s.config.Grace)
	defer t.Stop()
	select {
	case <-finished:
	case <-t.C:
		s.cut = s.running.Load()
		cancel(errGrace)
	}
}

func (s *session) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// stop makes the run end with an error.
func (s *session) stop(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

func (s *session) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
