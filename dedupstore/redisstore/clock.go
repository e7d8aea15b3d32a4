package redisstore

import (
	"sync/atomic"
	"time"
)

// How a lane knows the time of its server: from the replies of claim scripts, which tell it.
const (
	// sampleEvery is how often a claim is made by script for that alone.
	sampleEvery = 50 * time.Millisecond

	// maxSampleAge is how old the last sample may be for claims that are stamped here.
	maxSampleAge = time.Second

	// maxSampleError is how long the round trip of a sample may have been: so far apart are the bounds.
	maxSampleError = 20 * time.Millisecond

	// maxUncertainty is how far apart the bounds of the time are at most, unless a command is written again much later.
	maxUncertainty = maxSampleError + 5*maxSampleAge/maxDrift

	// maxDrift is how much two clocks part: a clock that is kept by NTP runs at most 500 ppm fast or slow (RFC 5905).
	maxDrift = 1000
)

// A clock bounds the time of a server, in µs since 1970. The zero clock knows nothing.
type clock struct {
	last  atomic.Pointer[sample]
	next  atomic.Int64  // when the next sample is due, in ns after start
	fence atomic.Uint64 // the last that was given
}

// A sample is what a reply told: when it came, the time was at least that, and at most wide later.
type sample struct {
	time uint64
	came time.Time
	wide time.Duration
}

var start = time.Now()

// learn takes the time from a reply.
func (c *clock) learn(time uint64, sent, came time.Time) {
	if wide := came.Sub(sent); wide <= maxSampleError {
		c.last.Store(&sample{time, came, wide})
	}
}

// known tells whether claims can be stamped now. From time to time it says no to one caller, who is to take a sample.
func (c *clock) known(now time.Time) bool {
	s := c.last.Load()
	if s == nil || now.Sub(s.came) > maxSampleAge {
		return false
	}
	due := c.next.Load()
	return int64(now.Sub(start)) < due || !c.next.CompareAndSwap(due, int64(now.Sub(start)+sampleEvery))
}

// bounds are what the server's time is at least and at most.
func (c *clock) bounds(now time.Time) (least, most uint64) {
	s := c.last.Load()
	age := max(0, now.Sub(s.came))
	least = s.time + uint64((age - age/maxDrift).Microseconds())
	most = s.time + uint64((age + age/maxDrift + s.wide + time.Microsecond).Microseconds())
	return least, most
}

// stamp returns a fence that is not later than the server's time, and above all that this clock gave before, and a time
// that is not sooner than the server's.
func (c *clock) stamp(now time.Time) (fence, most uint64) {
	least, most := c.bounds(now)
	for {
		last := c.fence.Load()
		fence = max(least, last+1)
		if c.fence.CompareAndSwap(last, fence) {
			return fence, max(most, fence)
		}
	}
}
