package idempotencykey

import "time"

// SetLinger sets how long runs go on after their clients have gone.
func (m *Middleware) SetLinger(d time.Duration) { m.linger = d }

// StoredHeaders are the response headers that a replay has.
var StoredHeaders = storedHeaders
