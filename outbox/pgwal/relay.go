package pgwal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A Relay publishes what is committed, as the log shows it. It is safe for concurrent use. Of several relays with one
// slot one works, and the others wait to take over.
type Relay struct {
	cfg       Config
	publisher producer.Publisher
	sql       statements
	log       *slog.Logger
	telemetry *telemetry.Relay
	running   atomic.Bool
	silence   time.Duration // how long the server may say nothing
	clearing  time.Duration // between two times that rows are cleaned
	watching  time.Duration // between two looks at the slot
	wal       walWatch
}

// New returns a relay; Setup makes what it needs, and Run makes it work. It does not talk to the database. The publisher
// must be synchronous: what it does not report as failed has been acknowledged by the broker. The error names the field
// of the config that is wrong.
func New(cfg Config, publisher producer.Publisher) (*Relay, error) {
	if publisher == nil {
		return nil, &outbox.InvalidError{Field: "publisher", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	observer, err := telemetry.NewRelay(telemetry.Providers(cfg.Telemetry), cfg.name(), outbox.SystemOf(publisher))
	if err != nil {
		return nil, fmt.Errorf("pgwal: make instruments: %w", err)
	}
	return &Relay{cfg: cfg, publisher: publisher, sql: statementsFor(cfg, false), log: cfg.Logger, telemetry: observer, silence: shortestSilence, clearing: cleanEvery, watching: walEvery}, nil
}

const (
	shortestFault = 100 * time.Millisecond
	longestFault  = 5 * time.Second
	turnEvery     = 400 * time.Millisecond

	shortestSilence = time.Minute
	longestSilence  = 24 * time.Hour
)

// errSilent says that nothing came from the server, not even answers. It may be gone, or at a large transaction: with
// wal_sender_timeout = 0 it answers nobody while it decodes one, and begins again with each connection. So each one waits
// twice as long as the one before.
var errSilent = errors.New("pgwal: the server does not answer any more")

// Run publishes until ctx ends, and then stops cleanly: it waits at most StopTimeout for what is being published, records
// and confirms what was acknowledged, which takes at most StoreTimeout, and returns nil. A publisher that does not obey its context makes it wait longer.
//
// It waits while another relay has the slot, and connects again whenever its connections fail: that is logged, and tried
// for as long as Run runs. It returns a *SetupError when trying again is useless: a slot, publication or table that is
// missing or not what it should be, a slot whose log the server has thrown away, a right or a server setting that is
// missing.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("pgwal: relay is running already")
	}
	defer r.running.Store(false)

	stop, err := r.gauges(ctx)
	if err != nil {
		return fmt.Errorf("pgwal: watch the rows: %w", err)
	}
	defer stop()
	faults := pace.Pace{Shortest: shortestFault, Longest: longestFault}
	known := newMemory()
	for ctx.Err() == nil {
		began, silence := time.Now(), r.silence
		err := r.once(ctx, known)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			faults.Reset()
			pace.Sleep(ctx, pace.Jitter(turnEvery))
		case isSetup(err):
			r.log.ErrorContext(ctx, "pgwal: relay ends", "slot", r.cfg.Slot, "error", err)
			return err
		default:
			if time.Since(began) > longestFault {
				faults.Reset()
			}
			r.silence = shortestSilence
			if errors.Is(err, errSilent) {
				r.silence = min(2*silence, longestSilence)
			}
			pause := pace.Jitter(faults.Next())
			r.log.WarnContext(ctx, "pgwal: reading the log failed, will try again", "slot", r.cfg.Slot, "in", pause, "error", err)
			pace.Sleep(ctx, pause)
		}
	}
	return nil
}

// once reads the log until that fails or ctx ends. It returns nil if it is not this relay's turn.
func (r *Relay) once(ctx context.Context, known *memory) error {
	facts, err := r.check(ctx)
	if err != nil {
		return err
	}
	r.wal.look(ctx, r, facts)
	if facts.active {
		r.log.DebugContext(ctx, "pgwal: another relay reads the log", "slot", r.cfg.Slot)
		return nil
	}
	stream, err := r.open(ctx, facts)
	if hasCode(err, codeInUse) {
		return nil // another relay was faster
	}
	if err != nil {
		return err
	}
	defer stream.close(ctx)
	if facts, err = r.check(ctx); err != nil { // what it says about the slot is final now: the slot is ours
		return err
	}
	r.log.InfoContext(ctx, "pgwal: relay reads the log", "slot", r.cfg.Slot, "from", facts.confirmed.String())
	r.sql = statementsFor(r.cfg, facts.debezium)
	return newSession(r, stream, facts, known).run(ctx)
}
