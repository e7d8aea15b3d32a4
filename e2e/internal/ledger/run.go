package ledger

import (
	"cmp"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Run is what the store granted once. As JSON it is a line of a journal, which an earlier version may have written.
type Run struct {
	PID     int            `json:",omitzero"` // of the process that got it; in a journal only
	Key     dedupstore.Key `json:"-"`         // not in a journal
	ID      string         // of the message
	Fence   uint64
	Attempt int
	Found   dedupstore.State // "": no store granted it
	Asked   time.Time        `json:",omitzero"` // when the claim was first sent; zero: unknown
	Granted time.Time        // when the answer came
	Until   time.Time        // before this the lease cannot have ended
	Effect  time.Time        `json:",omitzero"` // the last; zero: there was none
	Effects int              `json:",omitzero"`
	Failed  bool             `json:",omitzero"` // after its effect
	End     End              `json:",omitempty"`

	Delivered uint64 `json:",omitzero"` // which delivery of the message it was, as the broker counts; 0: unknown
}

// An End is how the store answered when a run was to be settled.
type End string

// Ends of a run. Without one, the run was cut off.
const (
	Recorded   End = "recorded"   // the outcome was confirmed
	Refused    End = "refused"    // another owner had come
	Unrecorded End = "unrecorded" // no answer
	Released   End = "released"   // the run may be tried again
)

// Did says whether the run had an effect.
func (r Run) Did() bool { return !r.Effect.IsZero() }

// since is from when on the store may have lost or forgotten the record. It may have granted the run long before the
// answer came: a batch of claims waits for the last of them, such as one that is sent again after a crash.
func (r Run) since() time.Time {
	if r.Asked.IsZero() {
		return r.Granted
	}
	return r.Asked
}

// effects is how many. An earlier version does not count them.
func (r Run) effects() int {
	if r.Did() {
		return max(r.Effects, 1)
	}
	return 0
}

// explain says why a run had an effect after another one had; "" if nothing explains it. Only the run before matters:
// the store's record is of that one.
func explain(before, again Run, events *evidence) Why {
	switch {
	case again.Found == "":
		return ""
	case again.Found == dedupstore.Absent:
		return events.take(0, before.since(), again.Granted, LostRecord, Expired, Redriven)
	case before.Failed && before.End == Released: // and may have given its attempt back, as when its lease was lost
		return HandlerFailed
	case before.End == Recorded, again.Attempt <= before.Attempt:
		return events.take(0, before.since(), again.Granted, LostRecord, Redriven)
	case before.Failed && (before.End == Unrecorded || !again.Granted.Before(before.Until) || // or its release was lost
		before.End == "" && events.take(before.PID, before.Effect, again.Granted, HolderKilled) != ""):
		return HandlerFailed
	case again.Granted.Before(before.Until): // two owners at once
		return ""
	case before.End == Unrecorded:
		return cmp.Or(events.take(before.PID, before.Granted, again.Granted, HolderStopped, StoreAway), LostOutcome)
	case before.End == "" && events.take(before.PID, before.Granted, again.Granted, HolderKilled) != "":
		return HolderKilled
	}
	return cmp.Or(events.take(before.PID, before.Granted, again.Granted, HolderStopped, StoreAway), LostLease)
}
