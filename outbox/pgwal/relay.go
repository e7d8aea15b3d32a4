package pgwal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A Relay publishes what is committed, as the log shows it. It is safe for concurrent use. If several relays share a
// slot, one works and the others wait to take over.
type Relay struct {
	cfg       Config
	limits    limits
	box       *pgoutbox.Outbox // its table
	tables    *strings.Replacer
	log       *slog.Logger
	telemetry *telemetry.Relay
	sender    *outgoing.Sender
	cleaner   *outgoing.Cleaner
	running   atomic.Bool

	mu   sync.Mutex
	said map[string]time.Time // warnings, and when they were given last
}

// New returns a relay; Setup makes what it needs, and Run makes it work. It does not talk to the database. The
// publisher must be synchronous: if it does not report a message as failed, the broker has acknowledged it. The error
// names the field of the config that is wrong.
func New(cfg Config, publisher producer.Publisher) (*Relay, error) {
	if isnil.Nil(publisher) {
		return nil, &dedupstore.InvalidError{Package: "pgwal", Field: "publisher", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	box, err := pgoutbox.New(cfg.Pool, pgoutbox.Config{Schema: cfg.Schema, Table: cfg.Table, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	observer, err := telemetry.NewRelay(telemetry.Providers(cfg.Telemetry), box.Name(), outbox.SystemOf(publisher))
	if err != nil {
		return nil, fmt.Errorf("pgwal: make instruments: %w", err)
	}
	r := &Relay{
		cfg: cfg, limits: cfg.limits(), box: box, log: cfg.Logger, telemetry: observer,
		tables: strings.NewReplacer("{table}", cfg.located(""), "{lease}", cfg.located("_lease")),
		sender: &outgoing.Sender{Publisher: publisher, Telemetry: observer, Log: cfg.Logger},
		said:   map[string]time.Time{},
	}
	r.cleaner = &outgoing.Cleaner{
		Remove: box.Clean, Age: cfg.Retention, Every: outgoing.CleanEvery, Rows: cleanSize,
		Timeout: r.limits.storeTimeout, Fault: r.sayFault,
	}
	return r, nil
}

const (
	shortestFault = 100 * time.Millisecond
	longestFault  = 5 * time.Second
	turnEvery     = 400 * time.Millisecond
	warnEvery     = time.Minute
)

// warn logs a lasting problem, at most once a minute.
func (r *Relay) warn(ctx context.Context, text string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.said[text]) >= warnEvery {
		r.said[text] = now
		r.log.WarnContext(ctx, text, args...)
	}
}

// Run publishes until ctx ends, and then stops cleanly. It waits for what is being published, at most 10 s or a shorter
// PublishTimeout. Then it records and confirms what was acknowledged, for at most as long, and returns nil. A publisher
// that ignores its context makes it wait longer.
//
// It waits while another relay has the slot, logs failed connections, and connects again as long as it runs. It returns
// a *dedupstore.SetupError when trying again is useless: a slot, publication, table, right or server setting is missing
// or wrong. So it does when the server has thrown the slot's log away.
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
	for ctx.Err() == nil {
		began := time.Now()
		err := r.once(ctx)
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
			pause := pace.Jitter(faults.Next())
			r.log.WarnContext(ctx, "pgwal: reading the log failed, will try again",
				"slot", r.cfg.Slot, "in", pause, "error", err)
			pace.Sleep(ctx, pause)
		}
	}
	return nil
}

// once reads the log until that fails or ctx ends. It returns nil if it is not this relay's turn.
func (r *Relay) once(ctx context.Context) error {
	facts, err := r.check(ctx)
	if err != nil {
		return err
	}
	r.warnOfLog(ctx, facts)
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
	defer closeConn(ctx, stream.conn)
	if facts, err = r.check(ctx); err != nil { // what it says about the slot is final now: the slot is ours
		return err
	}
	r.log.InfoContext(ctx, "pgwal: relay reads the log", "slot", r.cfg.Slot, "from", facts.confirmed.String())
	if facts.keepWAL < 0 {
		r.warn(ctx, "pgwal: max_slot_wal_keep_size is unlimited: if no relay runs or the broker is away for long, "+
			"the log fills the server's disk; set it to what the disk can spare")
	}
	return newSession(r, stream, facts).run(ctx)
}

// gauges shows in metrics how many rows the table has.
func (r *Relay) gauges(ctx context.Context) (stop func(), err error) {
	return r.telemetry.Watch(ctx, func(ctx context.Context) (telemetry.Stats, error) {
		ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
		defer cancel()
		s, err := r.box.Stats(ctx)
		return telemetry.Stats{Pending: s.Pending, Dead: s.Dead, Oldest: s.Oldest}, err
	})
}
