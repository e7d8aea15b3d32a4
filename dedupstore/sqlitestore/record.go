package sqlitestore

import (
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A record is a row of the table.
type record struct {
	number int64 // 0: there is no row
	key    string
	dedupstore.Stored
}

// forget makes a record that has expired like one that never was, but for the fence, which has to grow.
func (rec *record) forget(now time.Time) {
	if !now.Before(rec.Expires) {
		rec.Stored = dedupstore.Stored{Fence: rec.Fence}
	}
}

// claim answers a claim. A run whose handler has committed the transaction by itself ends as unknown: see markSQL.
func (rec *record) claim(r dedupstore.Request, now time.Time) (next *dedupstore.Stored, a dedupstore.Answer) {
	if rec.State != dedupstore.Running || rec.Decided != rec.Fence {
		return rec.Claim(r, now)
	}
	parked := rec.Stored
	parked.Started, r.ParkExpired = true, true
	if next, a = parked.Claim(r, now); next != nil {
		next.Outcome.Reason = "the handler committed the transaction of its run by itself, without an outcome"
		a.Outcome.Reason = next.Outcome.Reason
	}
	return next, a
}

func (rec *record) ownedBy(c dedupstore.Claim) bool {
	return rec.Owner == c.Owner && rec.Fence == c.Fence
}

// settledBy reports whether an owner has ended its run.
func (rec *record) settledBy(owner string) bool { return slices.Contains(rec.Settled, owner) }

// clock is the store's: this machine's, in microseconds.
func clock() time.Time { return time.UnixMicro(time.Now().UnixMicro()) }
