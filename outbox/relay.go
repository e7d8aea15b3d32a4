package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Relay publishes the rows of a Store. It is safe for concurrent use. Several relays on one store share the work.
type Relay struct {
	store     Store
	system    string // of messaging
	sender    *outgoing.Sender
	cfg       Config
	log       *slog.Logger
	telemetry *telemetry.Relay
	wake      chan struct{}
	more      chan struct{}   // a full batch was leased: there is probably more
	sending   chan struct{}   // one for each batch that is read or published, suspects excepted
	woken     <-chan struct{} // the store's own signal; nil if it has none
	running   atomic.Bool
	asked     atomic.Pointer[time.Time] // since when the first loop waits for the store; nil: it does not
	hung      pace.Hung                 // topics
	news      pace.News                 // of its log
}

// NewRelay returns a relay; Run makes it work. The publisher must be synchronous: if it does not report a message as
// failed, the broker has acknowledged it. The error names the field of the config that is wrong.
func NewRelay(store Store, publisher producer.Publisher, cfg Config) (*Relay, error) {
	switch {
	case isnil.Nil(store):
		return nil, invalid("store", "is nil")
	case isnil.Nil(publisher):
		return nil, invalid("publisher", "is nil")
	}
	if _, is := publisher.(Store); is {
		return nil, invalid("publisher", "is an outbox, and not a broker's: rows would be written where they came from")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	system := SystemOf(publisher)
	observer, err := telemetry.NewRelay(telemetry.Providers(cfg.Telemetry), name(store), system)
	if err != nil {
		return nil, fmt.Errorf("outbox: make instruments: %w", err)
	}
	r := &Relay{
		store: store, system: system, cfg: cfg, log: cfg.Logger, telemetry: observer,
		sender: &outgoing.Sender{Publisher: publisher, Telemetry: observer, Log: cfg.Logger},
		wake:   make(chan struct{}, 1), more: make(chan struct{}, 1), sending: make(chan struct{}, publishing),
	}
	if w, ok := store.(Waker); ok {
		r.woken = w.Woken()
	}
	return r, nil
}

// Wake makes the relay look at the store now instead of at the next poll. Call it after a commit. It never blocks.
// Several calls may cause one look; soon after a look that found several rows, the next one waits up to 5 ms.
func (r *Relay) Wake() {
	signal(r.wake)
}

// signal leaves a signal, unless one is waiting already, which will do.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends, and then stops cleanly. It waits for what is being published, at most 10 s or a shorter
// PublishTimeout. Then it records what was acknowledged, gives back the rest, and returns nil. A publisher that ignores
// its context makes it wait longer.
//
// Run logs errors of the store and the publisher, and tries again. It returns an error only if the relay is running
// already, or if the meter provider does not take its gauges.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: relay is running already")
	}
	defer r.running.Store(false)

	stop, err := r.watch(ctx)
	if err != nil {
		return fmt.Errorf("outbox: watch the rows: %w", err)
	}
	defer stop()
	log := r.log.With("table", name(r.store), "system", r.system)
	log.InfoContext(ctx, "outbox: relay begins")
	defer log.InfoContext(ctx, "outbox: relay has ended")
	var loops sync.WaitGroup
	for range suspectLoops {
		loops.Go(func() { r.work(ctx, r.suspects()) })
	}
	for range followers {
		loops.Go(func() { r.work(ctx, r.follower()) })
	}
	r.work(ctx, r.healthy())
	loops.Wait()
	return nil
}
