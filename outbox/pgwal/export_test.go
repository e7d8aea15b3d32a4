package pgwal

import "time"

// WaitForServer says how long the server may say nothing at first.
func (r *Relay) WaitForServer(d time.Duration) { r.silence = d }
