package idempotencyconnect

import "time"

// SetLinger sets how long runs go on after their clients have gone.
func (i *Interceptor) SetLinger(d time.Duration) { i.server.SetLinger(d) }
