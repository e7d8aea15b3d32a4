package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A server keeps the records. Its clock can be moved, it can be full, and it can lose what it has.
type server struct {
	mu      sync.Mutex // where no world is between
	records map[dedupstore.Key]dedupstore.Stored
	changed map[dedupstore.Key]time.Time
	skew    time.Duration
	full    bool

	// Of a database.
	effects map[string]int
	making  map[dedupstore.Key]string   // keys of first runs whose transactions are open, and who has them
	locked  map[dedupstore.Key]struct{} // by commits that are under way for long
	hidden  map[dedupstore.Key]bool     // for tests of the contract: they cannot be read

	watch watcher // is told of each operation; nil: nobody is
}

// A watcher is told what a server did, when it has done it.
type watcher interface {
	claimed(by string, r dedupstore.Request, a dedupstore.Answer, now time.Time)
	extended(by string, x dedupstore.Extension, err error, now time.Time)
	settled(by string, s dedupstore.Settling, err error, now time.Time)

	begun(by string, r dedupstore.Request, a dedupstore.Answer, now time.Time) // a first run, in a transaction
	committed(id string, fence uint64)                                         // an effect was
	rolledBack(c dedupstore.Claim, again bool)                                 // effects were
}

func newServer() *server {
	return &server{
		records: map[dedupstore.Key]dedupstore.Stored{}, changed: map[dedupstore.Key]time.Time{},
		effects: map[string]int{}, making: map[dedupstore.Key]string{}, locked: map[dedupstore.Key]struct{}{},
		hidden: map[dedupstore.Key]bool{},
	}
}

func (s *server) now() time.Time { return time.Now().Add(s.skew) }

// find returns a record. One whose time has come is gone for good, whatever the clock does; but for its fence.
func (s *server) find(key dedupstore.Key, now time.Time) dedupstore.Stored {
	rec := s.records[key]
	if rec.State != "" && !now.Before(rec.Expires) {
		rec = dedupstore.Stored{Fence: rec.Fence}
		s.records[key] = rec
	}
	return rec
}

func (s *server) keep(key dedupstore.Key, next *dedupstore.Stored) {
	if next != nil {
		s.records[key], s.changed[key] = *next, time.Now()
	}
}

func (s *server) claim(by string, r dedupstore.Request) dedupstore.ClaimResult {
	if err := r.Validate(); err != nil {
		return dedupstore.ClaimResult{Err: err}
	}
	now := s.now()
	rec := s.find(r.Key, now)
	_, locked := s.locked[r.Key]
	if _, making := s.making[r.Key]; locked || making {
		return dedupstore.ClaimResult{Answer: dedupstore.Answer{
			Status: dedupstore.Busy, Found: dedupstore.Running, Fence: rec.Fence, Wait: r.Lease,
		}}
	}
	if s.full && rec.Look(r.Key, now).State == dedupstore.Absent {
		return dedupstore.ClaimResult{Err: dedupstore.ErrFull}
	}
	next, a := rec.Claim(r, now)
	a.Outcome = a.Outcome.Clone()
	s.keep(r.Key, next)
	if s.watch != nil {
		s.watch.claimed(by, r, a, now)
	}
	return dedupstore.ClaimResult{Answer: a}
}

func (s *server) extend(by string, x dedupstore.Extension) error {
	if err := x.Validate(); err != nil {
		return err
	}
	if _, locked := s.locked[x.Claim.Key]; locked {
		return errLocked
	}
	now := s.now()
	next, err := s.find(x.Claim.Key, now).Extend(x, now)
	s.keep(x.Claim.Key, next)
	if s.watch != nil {
		s.watch.extended(by, x, err, now)
	}
	return err
}

func (s *server) settle(by string, one dedupstore.Settling) error {
	if err := errors.Join(one.Claim.Validate(), dedupstore.ValidateSettlement(one.Settlement)); err != nil {
		return unjoined(err)
	}
	if _, locked := s.locked[one.Claim.Key]; locked {
		return errLocked
	}
	now := s.now()
	if f, ok := one.Settlement.(dedupstore.Finish); ok {
		if s.full && (len(f.Outcome.Produced) > 0 || len(f.Outcome.Result) > 0) {
			return dedupstore.ErrFull
		}
		f.Outcome = f.Outcome.Clone()
		one.Settlement = f
	}
	next, err := s.find(one.Claim.Key, now).Settle(one.Claim, one.Settlement, now)
	s.keep(one.Claim.Key, next)
	if s.watch != nil {
		s.watch.settled(by, one, err, now)
	}
	return err
}

var errLocked = errors.New("sim: the record is locked")

// unjoined returns the first error of errors.Join.
func unjoined(err error) error {
	return err.(interface{ Unwrap() []error }).Unwrap()[0]
}

// A conn is a Store: what a process sees of a server. Without a process nothing is between the two.
type conn struct {
	server  *server
	process *process
}

// Claim implements [dedupstore.Store].
func (c *conn) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return exchange(ctx, c, "claim", requests,
		func(r dedupstore.Request) string { return r.Key.ID }, c.server.claim,
		func(err error) dedupstore.ClaimResult { return dedupstore.ClaimResult{Err: err} },
		func(_ dedupstore.Request, r dedupstore.ClaimResult) string { return sayClaim(r) })
}

// Extend implements [dedupstore.Store].
func (c *conn) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return exchange(ctx, c, "extend", extensions,
		func(x dedupstore.Extension) string { return x.Claim.Key.ID }, c.server.extend, itself,
		func(_ dedupstore.Extension, err error) string { return sayError(err) })
}

// Settle implements [dedupstore.Store].
func (c *conn) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return exchange(ctx, c, "settle", settlings,
		func(s dedupstore.Settling) string { return s.Claim.Key.ID }, c.server.settle, itself,
		func(s dedupstore.Settling, err error) string {
			return saySettlement(s.Settlement) + ", " + sayError(err)
		})
}

func itself(err error) error { return err }

func sayError(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}
