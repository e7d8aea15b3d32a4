package telemetry

import "time"

// A Moment is a time by the monotonic clock, for durations. [time.Now] reads the clock of the calendar, too, which
// costs as much again.
type Moment time.Duration

// origin is that of all moments.
var origin = time.Now()

// Now returns the current moment.
func Now() Moment { return Moment(time.Since(origin)) }

// Elapsed returns how long ago a moment was.
func (m Moment) Elapsed() time.Duration { return time.Since(origin) - time.Duration(m) }
