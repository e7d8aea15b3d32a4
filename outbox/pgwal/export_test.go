package pgwal

import "time"

// WaitForServer says how long the server may say nothing at first.
func (r *Relay) WaitForServer(d time.Duration) { r.silence = d }

// CleanEvery is how often a relay of a test cleans.
func (r *Relay) CleanEvery(d time.Duration) { r.clearing = d }
