package dedupstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Front puts a cheap store before an inbox: what the cheap one knows to be done or in progress is refused without a
// statement in the inbox's database, which is the truth for all the rest. It is NewFront with the defaults, and panics where
// that returns an error.
func Front(cheap Store, inbox Transactor) *FrontStore {
	f, err := NewFront(cheap, inbox, FrontConfig{})
	if err != nil {
		panic(err)
	}
	return f
}

// FrontConfig configures a [FrontStore]. The zero value is ready to use.
type FrontConfig struct {
	// Patience bounds how long an operation of the cheap store is waited for. A claim never waits for it for more than a
	// quarter of what is left until the deadline of its context. Zero: 50 ms.
	Patience time.Duration

	// Required makes a claim fail while the cheap store does not answer it, where the inbox alone would be asked: also when it
	// is full, or has a record that cannot be read. It waits for the answer for a quarter of what is left until the deadline of
	// its context, whatever Patience is. Check fails if the cheap store's does. It is for a cheap store that was in use alone,
	// until the window of what it holds has ended (see [NewFront]). False: the inbox alone answers.
	Required bool

	// Logger is told when the cheap store begins to fail, when it answers again, and of messages that wait because of what
	// the cheap store holds from before (see NewFront). Nil: slog.Default().
	Logger *slog.Logger
}

func (c FrontConfig) withDefaults() FrontConfig {
	if c.Patience == 0 {
		c.Patience = minFrontPatience
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c FrontConfig) validate() error {
	if c.Patience < time.Millisecond {
		return &InvalidError{"FrontConfig.Patience", fmt.Sprintf("is %v, want at least 1ms", c.Patience)}
	}
	return nil
}

// A FrontStore is an inbox behind a cheap store, such as PostgreSQL behind Redis.
//
// Of the cheap store two answers are believed: that a lease is live or a retry not due, and that a run has succeeded,
// which it is told only after the commit. Everything else is asked of the inbox, whose answer counts. So a cheap store
// that is down, slow, empty or restored from old data costs statements, and perhaps a lease's wait, but neither an effect
// nor a message. It keeps results and the IDs of outputs, and their bytes until they are published, if they are not more
// than 256 KiB; attempts are counted, reruns answered, runs parked and failures kept by the inbox alone.
//
// The other way round it does not hold: when the database of the inbox has lost commits, as by a restore or a failover
// without synchronous replication, the cheap store knows of effects that are gone. Empty it then. To forget a
// key, delete it in both.
//
// A Busy of the cheap store names the cheap store's fence. It is safe for concurrent use and holds nothing that must be
// closed.
type FrontStore struct {
	cheap  Store
	inbox  Transactor
	config FrontConfig
	gates  sync.Map     // of *frontGate, by the cheap store's shards
	told   atomic.Int64 // when somebody was last told of what is left there, in Unix nanoseconds
	owed   atomic.Bool  // the cheap store is required, and is why a claim failed last

	refused, passed, failed, skipped atomic.Uint64
}

var (
	_ Transactor = (*FrontStore)(nil)
	_ Sharded    = (*FrontStore)(nil)
	_ Checker    = (*FrontStore)(nil)
)

// FrontClaim is what a FrontStore needs to know to settle a claim in its cheap store, too. Zero: there is none.
type FrontClaim struct {
	Fence  uint64 // of the claim in the cheap store
	Scheme string // of the fingerprint that it was made with
}

// NewFront returns an inbox behind a cheap store. The error names what is wrong: a store that is nil, or a cheap one whose claims
// wait for replicas. The stores must not be used by others for the same keys at the same time.
//
// The cheap store may have been in use alone before. Only successes that are DONE carry over: they are believed. Where it
// holds another outcome, of which the inbox knows nothing (a failure, an unknown outcome, outputs that were not published),
// a claim that the inbox would grant is given back and refused with a *RecordError, which a log line tells of: the message
// waits, until that is settled by the guard over the cheap store alone, deleted there, or superseded by a rerun. All else
// begins anew in the inbox: attempts, delays, content to compare with, and runs that died, be they parked by a policy or
// not. So stop the guards over the cheap store alone first, let publish steps and runs end, and settle what is parked.
// Under oncemill.Irreversible do not go over before the window has ended: a run that died would be made again. Until then
// the old successes are known to the cheap store alone: set Required for that time, or a duplicate of one runs again when the
// cheap store is down or slower than Patience. One whose record the cheap store has lost runs again in any case.
//
// The way back, to the cheap store alone, is like it: successes carry over, and outputs that were not published (up to
// 256 KiB); all else runs again there.
func NewFront(cheap Store, inbox Transactor, c FrontConfig) (*FrontStore, error) {
	switch {
	case cheap == nil:
		return nil, &InvalidError{"cheap", "is nil"}
	case inbox == nil:
		return nil, &InvalidError{"inbox", "is nil"}
	}
	if w, ok := cheap.(Waiter); ok && w.ClaimWait() > 0 {
		return nil, &InvalidError{"cheap", fmt.Sprintf("waits up to %v for replicas, longer than it is worth: give it none to wait for, the inbox grants", w.ClaimWait())}
	}
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &FrontStore{cheap: cheap, inbox: inbox, config: c}, nil
}

// FrontStats count since the store was made.
type FrontStats struct {
	Refused uint64 // claims that the cheap store answered
	Passed  uint64 // claims that the inbox answered
	Failed  uint64 // operations of the cheap store that failed or were too slow
	Skipped uint64 // operations that were not sent to it because it fails
}

// Stats says how much the cheap store saves.
func (f *FrontStore) Stats() FrontStats {
	return FrontStats{Refused: f.refused.Load(), Passed: f.passed.Load(), Failed: f.failed.Load(), Skipped: f.skipped.Load()}
}

// Extend implements [Store]. The cheap store's lease is extended meanwhile, as far as that works.
func (f *FrontStore) Extend(ctx context.Context, c Claim, lease time.Duration) error {
	if c.Front.Fence == 0 || ctx.Err() != nil || c.Validate() != nil || validDuration("lease", lease) != nil {
		return f.inbox.Extend(ctx, c, lease)
	}
	var beside sync.WaitGroup
	beside.Go(func() { _ = f.extendCheap(ctx, c, lease) })
	err := f.inbox.Extend(ctx, c, lease)
	beside.Wait()
	f.giveUp(ctx, c, err)
	return err
}

// Shard implements [Sharded] by what the inbox says: the cheap store's failures fail nothing, unless it is required.
func (f *FrontStore) Shard(ctx context.Context, key Key) string {
	shard := shardOf(ctx, f.inbox, key)
	if !f.config.Required {
		return shard
	}
	switch cheap := shardOf(ctx, f.cheap, key); {
	case cheap == "":
		return shard
	case shard == "":
		return cheap
	default:
		return shard + " behind " + cheap
	}
}

func shardOf(ctx context.Context, s Store, key Key) string {
	if s, ok := s.(Sharded); ok {
		return s.Shard(ctx, key)
	}
	return ""
}

// Check implements [Checker]. What is wrong with the cheap store is a warning, as claims go to the inbox alone then, unless it
// is required.
func (f *FrontStore) Check(ctx context.Context) (Report, error) {
	report, err := checkOf(ctx, f.inbox)
	if err != nil {
		return Report{}, err
	}
	cheap, err := checkOf(ctx, f.cheap)
	switch {
	case err != nil && f.config.Required:
		return Report{}, err
	case err != nil:
		report.Warnings = append(report.Warnings, "The cheap store is not usable: "+err.Error())
	}
	for _, w := range cheap.Warnings {
		report.Warnings = append(report.Warnings, "Of the cheap store: "+w)
	}
	if cheap.Store != "" {
		report.Store += " behind " + cheap.Store
		report.Version += ", " + cheap.Version
	}
	return report, nil
}

func checkOf(ctx context.Context, s Store) (Report, error) {
	if c, ok := s.(Checker); ok {
		return c.Check(ctx)
	}
	return Report{}, nil
}
