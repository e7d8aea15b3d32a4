package pgwal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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

// A Relay publishes what is committed, as the log shows it. It is safe for concurrent use. Of several relays with one
// slot one works, and the others wait to take over.
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
	news      pace.News // of its log
}

// New returns a relay; Setup makes what it needs, and Run makes it work. It does not talk to the database. The
// publisher must be synchronous: what it does not report as failed has been acknowledged by the broker. The error names
// the field of the config that is wrong.
func New(cfg Config, publisher producer.Publisher) (*Relay, error) {
	if isnil.Nil(publisher) {
		return nil, &dedupstore.InvalidError{Package: "pgwal", Field: "publisher", Problem: "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	box, err := pgoutbox.New(cfg.Pool, cfg.outbox())
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
	}
	r.cleaner = &outgoing.Cleaner{
		Remove: r.clean, Age: cfg.Retention, Every: outgoing.CleanEvery, Rows: cleanSize,
		Timeout: r.limits.storeTimeout, Fault: r.sayFault,
	}
	return r, nil
}

// clean removes published rows. The table says whether it is ordered.
func (r *Relay) clean(ctx context.Context, age time.Duration, limit int) (int, error) {
	box, err := pgoutbox.Find(ctx, r.cfg.Pool, r.cfg.outbox())
	if err != nil {
		return 0, err
	}
	return box.Clean(ctx, age, limit)
}

const (
	shortestFault = 100 * time.Millisecond
	longestFault  = 5 * time.Second
	turnEvery     = 400 * time.Millisecond
)

// warn says what lasts, at most once a minute.
func (r *Relay) warn(ctx context.Context, text string, args ...any) {
	if r.news.Is(text, "") {
		r.log.WarnContext(ctx, text, args...)
	}
}

// fault says an error, unless the relay's stop caused it, and the same one at most once a minute.
func (r *Relay) fault(ctx context.Context, text string, err error) {
	if ctx.Err() == nil && r.news.Is(text, err.Error()) {
		r.log.WarnContext(ctx, text, "slot", r.cfg.Slot, "error", err)
	}
}

// Run publishes until ctx ends, and then stops cleanly and returns nil. It waits for what is being published, for at
// most 10 s or a shorter PublishTimeout. Recording what was acknowledged takes at most as long again. A publisher that
// ignores its context makes Run wait longer.
//
// Run waits while another relay has the slot. It connects again whenever its connections fail, and logs that. It
// returns a *dedupstore.SetupError when trying again is useless: a slot, publication or table is missing or wrong, the
// server has thrown the slot's log away, or a right or a server setting is missing.
//
// The relay also looks at the table every second: for rows that have become due and for rows that were requeued or
// replayed. Every tenth look also finds rows that are older than the slot, or that a lost slot did not show. It removes
// rows whose retention is over.
//
// So run no outbox.Relay on the same table: it would publish everything a second time. To change from one kind of relay
// to the other, stop all of the first kind before; nothing is lost in between. To keep the order of keys too, call
// Setup first, let the old relay publish what was written before that, and then switch.
//
// A message without an answer keeps its place in memory and in the log, and those behind it in its key do too. Without
// a key it goes to the table after five attempts without an answer, if the broker acknowledged something else between
// the last two.
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
	log := r.log.With("table", r.box.Name(), "slot", r.cfg.Slot)
	log.InfoContext(ctx, "pgwal: relay begins")
	defer log.InfoContext(ctx, "pgwal: relay has ended")
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
			r.fault(ctx, "pgwal: reading the log failed, will try again", err)
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
	stream.decoder.table = facts.table
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
		return telemetry.Stats(s), err
	})
}
