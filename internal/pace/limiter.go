package pace

import (
	"sync/atomic"
	"time"
)

// A Limiter lets one line of the log through in a while. The zero value is ready. It is safe for concurrent use.
type Limiter struct{ last atomic.Int64 } // Unix nanoseconds

// Due reports whether to say it now: nothing was said for that long.
func (l *Limiter) Due(every time.Duration) bool {
	now, last := time.Now().UnixNano(), l.last.Load()
	return now-last >= int64(every) && l.last.CompareAndSwap(last, now)
}
