package redisstore

import (
	"sync/atomic"
	"time"
)

// How a store knows the time of its server: from the replies of claim scripts, which tell it.
const (
	// sampleEvery is how often a claim is made by script for that alone.
	sampleEvery = 50 * time.Millisecond

	// maxSampleAge is how old the last sample may be for claims that are stamped here.
	maxSampleAge = 200 * time.Millisecond

	// maxSampleError is how long the round trip of a sample may have been: so far apart are the bounds.
	maxSampleError = 20 * time.Millisecond

	// maxDrift says how fast two clocks part: by one part in so many. A clock that is being corrected may run a twelfth
	// fast or slow (chrony, maxslewrate); otherwise it is 500 ppm (RFC 5905).
	maxDrift = 10

	// maxUncertainty is how far apart the bounds of the time are at most, when a command is written at once.
	maxUncertainty = maxSampleError + 2*maxSampleAge/maxDrift
)

// A clock bounds the time of a server, in µs since 1970. The zero clock knows nothing.
type clock struct {
	last  atomic.Pointer[sample]
	next  atomic.Int64  // when the next sample is due, in ns after start
	fence atomic.Uint64 // the last that was given
}

// A sample is the time in a reply. When the reply came, it was at least that time, and at most wide later.
type sample struct {
	time uint64
	came time.Time
	wide time.Duration
}

var start = time.Now()

// learn takes the time from a reply.
func (c *clock) learn(time uint64, sent, came time.Time) {
	wide := came.Sub(sent)
	if wide > maxSampleError {
		return
	}
	c.last.Store(&sample{time, came, wide})
	if last := c.fence.Load(); last > time+uint64(maxUncertainty.Microseconds()) {
		c.fence.CompareAndSwap(last, 0) // the server's clock has gone back
	}
}

// known reports whether claims can be stamped now. From time to time it says no to one caller, which then takes a
// sample. It also says no when this machine's clocks disagree about the age of the last sample: in a machine that
// sleeps one of them stops.
func (c *clock) known(now time.Time) bool {
	s := c.last.Load()
	if s == nil {
		return false
	}
	if least, most := s.age(now); most > maxSampleAge || most-least > maxSampleError {
		return false
	}
	due := c.next.Load()
	return int64(now.Sub(start)) < due || !c.next.CompareAndSwap(due, int64(now.Sub(start)+sampleEvery))
}

// age is how long ago the sample came, by the monotonic clock and by the wall clock.
func (s *sample) age(now time.Time) (least, most time.Duration) {
	a, b := max(0, now.Sub(s.came)), max(0, now.Round(0).Sub(s.came.Round(0)))
	return min(a, b), max(a, b)
}

// bounds are what the server's time is at least and at most.
func (c *clock) bounds(now time.Time) (least, most uint64) {
	s := c.last.Load()
	a, b := s.age(now)
	least = s.time + uint64((a - a/maxDrift).Microseconds())
	most = s.time + uint64((b + b/maxDrift + s.wide + time.Microsecond).Microseconds())
	return least, most
}

// stamp returns a fence and a time. The fence is not later than the server's time, and above all fences that this clock
// gave, unless the server's clock went back. The time is not sooner than the server's.
func (c *clock) stamp(now time.Time) (fence, most uint64) {
	least, most := c.bounds(now)
	for {
		last := c.fence.Load()
		fence = max(least, last+1)
		if c.fence.CompareAndSwap(last, fence) {
			return fence, most
		}
	}
}
