package natskv

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/internal/recordstore"
)

const (
	sampleAfter  = 200 * time.Millisecond // one caller asks for the time, the others go on
	maxSampleAge = 400 * time.Millisecond // all callers wait for it

	// maxDrift says how fast two clocks part: by one part in so many. NTP usually corrects a clock by 500 ppm.
	maxDrift = 20
)

// A clock knows the time of the server that leads the stream.
type clock struct {
	last   atomic.Pointer[sample]
	asking chan struct{} // has room for one who asks
}

// A sample is the time in an answer: when the answer came, it was at least that time, and at most wide later.
type sample struct {
	time, came time.Time
	wide       time.Duration
}

// at bounds the server's time, and returns how long ago the sample came at most. That is measured by the monotonic
// clock and by the wall clock: in a machine that sleeps one of them stops.
func (s *sample) at(now time.Time) (t recordstore.Time, age time.Duration) {
	a, b := max(0, now.Sub(s.came)), max(0, now.Round(0).Sub(s.came.Round(0)))
	least, most := min(a, b), max(a, b)
	return recordstore.Time{
		Early: s.time.Add(least - least/maxDrift).Truncate(time.Microsecond),
		Late:  s.time.Add(most + most/maxDrift + s.wide),
	}, most
}

// learn takes the time from an answer. What was known before bounds it, too, unless the two exclude each other: then
// another server leads, or the server's clock was set.
func (c *clock) learn(theirs, sent, came time.Time) {
	early, late := theirs, theirs.Add(came.Sub(sent))
	if last := c.last.Load(); last != nil {
		known, _ := last.at(came)
		if known.Early.After(early) && !known.Early.After(late) {
			early = known.Early
		}
		if known.Late.Before(late) && !known.Late.Before(early) {
			late = known.Late
		}
	}
	c.last.Store(&sample{early, came, late.Sub(early)})
}

// now is the server's time. It asks for it if that was long ago.
func (s *Store) now(ctx context.Context) (recordstore.Time, error) {
	fresh := func(limit time.Duration) (recordstore.Time, bool) {
		last := s.clock.last.Load()
		if last == nil {
			return recordstore.Time{}, false
		}
		t, age := last.at(time.Now())
		return t, age < limit
	}
	if t, ok := fresh(sampleAfter); ok {
		return t, nil
	}
	if t, ok := fresh(maxSampleAge); ok {
		select {
		case s.clock.asking <- struct{}{}:
		default:
			return t, nil
		}
	} else {
		select {
		case s.clock.asking <- struct{}{}:
		case <-ctx.Done():
			return recordstore.Time{}, context.Cause(ctx)
		}
	}
	defer func() { <-s.clock.asking }()
	if t, ok := fresh(sampleAfter); ok { // somebody has asked meanwhile
		return t, nil
	}
	if _, err := s.look(ctx); err != nil {
		return recordstore.Time{}, err
	}
	t, _ := fresh(maxSampleAge)
	return t, nil
}
