package cassandrastore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// compareAfter is how long a comparison of clocks counts. The next claim makes another one. While that waits for an
// answer, which can take long from a node that hangs, others use one that is up to spare times as old.
const (
	compareAfter = time.Second
	spare        = 10
)

// A clock compares this host's clock with that of a node of Cassandra, each time with the node that answers.
type clock struct {
	bound  time.Duration
	lasts  time.Duration          // compareAfter, or longer in tests
	last   atomic.Pointer[offset] // nil: there was no comparison
	asking chan struct{}          // has room for one who asks
}

// An offset is how far the node's clock was ahead of this host's, at least and at most, when its answer came.
type offset struct {
	least, most time.Duration
	came        time.Time
}

// unit is what the node's time counts in.
const unit = time.Millisecond

// compare takes what a node's clock showed between two times of this host's wall clock.
func compare(shown, sent, came time.Time) *offset {
	return &offset{shown.Sub(came.Round(0)), shown.Add(unit).Sub(sent.Round(0)), came}
}

// fresh reports whether the offset still counts, also by the wall clock, which somebody may have set since.
func (o *offset) fresh(now time.Time, lasts time.Duration) bool {
	if o == nil {
		return false
	}
	age, shown := now.Sub(o.came), now.Round(0).Sub(o.came.Round(0))
	return age < lasts && shown >= 0 && shown < lasts
}

// within reports that nothing shows that the clocks are further apart than the bound.
func (o *offset) within(bound time.Duration) bool { return o.least <= bound && o.most >= -bound }

// inTime returns an error if this host's clock is too far from the node's, or if that cannot be found out.
func (s *Store) inTime(ctx context.Context) error {
	o := s.clock.last.Load()
	if !o.fresh(time.Now(), s.clock.lasts) {
		var err error
		if o, err = s.compared(ctx, o); err != nil {
			return err
		}
	}
	if o.within(s.clock.bound) {
		return nil
	}
	how, by := "ahead of", -o.most
	if by < 0 {
		how, by = "behind", o.least
	}
	return &dedupstore.SetupError{
		Package: "cassandrastore", Subject: "the clock of this host",
		Problem: fmt.Sprintf("is %v or more %s that of a node of Cassandra, and Config.MaxSkew is %v: no claim or "+
			"change is made, because it would end leases of others early, or too late; set the clocks (NTP)",
			by.Round(unit), how, s.clock.bound),
	}
}

// compared compares the clocks, one claim at a time.
func (s *Store) compared(ctx context.Context, before *offset) (*offset, error) {
	select {
	case s.clock.asking <- struct{}{}:
	default:
		if before.fresh(time.Now(), spare*s.clock.lasts) {
			return before, nil
		}
		select {
		case s.clock.asking <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer func() { <-s.clock.asking }()
	if o := s.clock.last.Load(); o.fresh(time.Now(), s.clock.lasts) { // somebody has asked meanwhile
		return o, nil
	}
	o, err := s.ask(ctx)
	if err != nil {
		return nil, err
	}
	s.clock.last.Store(o)
	return o, nil
}

func (s *Store) ask(ctx context.Context) (*offset, error) {
	var shown, sent, came time.Time
	err := s.do(ctx, func(ctx context.Context) error {
		sent = time.Now()
		err := s.session.Query("SELECT currentTimestamp() FROM system.local").ScanContext(ctx, &shown)
		came = time.Now()
		return err
	})
	return compare(shown, sent, came), err
}
