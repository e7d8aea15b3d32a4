package dedupstore

import (
	"context"
	"time"
)

// An Inspector is a Store whose records people can look at.
type Inspector interface {
	Store

	// Look returns the records of keys, in their order. For a key without a record the State is Absent. It changes
	// nothing and may be a little behind, so decide nothing by it.
	Look(ctx context.Context, keys []Key) ([]Record, error)

	// NoteDuplicates counts duplicates beside the records of their keys. It is best effort: a lost reply or a crash may
	// leave some out or count them twice. For a key without a record a store may keep nothing.
	NoteDuplicates(ctx context.Context, duplicates []Duplicates) error
}

// MaxHistory is how many attempts before the last one a record keeps.
const MaxHistory = 4

// A Record is a store's knowledge of a key. Times are by the store's clock, as far as it is known; zero: not known.
type Record struct {
	Key      Key
	State    State
	Started  bool   // Running: the handler has been called, or is about to be
	Fence    uint64 // of the last owner
	Decided  uint64 // the fence under which the outcome was decided; 0: there is none
	Attempts int    // that count, so far
	Returned int    // runs that gave their attempt back

	First   time.Time // when the first claim came
	Claimed time.Time // when the last owner got the key
	Ended   time.Time // when its run ended, in an outcome or a release
	Until   time.Time // Running and Publishing: when the lease ends; Retryable: when it is due
	Expires time.Time // when the record is forgotten
	Holder  string    // host and process of the last owner
	Trace   string    // traceparent of the last run

	// History has the attempts before the last one, oldest first, at most MaxHistory.
	History []Attempt

	// Outcome is the result of the processing. A Retryable record has only the Reason of its release here. Messages
	// that are still to be published come without headers and payloads.
	Outcome Outcome

	Duplicates    int       // how many came for the outcome, as far as they were noted
	LastDuplicate time.Time // when the last of them did
}

// An Attempt is a run that another one followed.
type Attempt struct {
	Claimed time.Time
	Ended   time.Time // zero: it did not say; its lease expired
	Holder  string
	Reason  string // of its release or its failure; the beginning of a long one. Empty: its lease expired
}

// Duplicates are copies of a message that came when its outcome was known.
type Duplicates struct {
	Key       Key
	Count     int
	Last      time.Time     // when the last of them came, by the caller's clock
	Retention time.Duration // how long to remember them, at least
}
