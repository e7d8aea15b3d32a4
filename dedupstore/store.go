package dedupstore

import (
	"context"
	"time"
)

// A Store keeps one record per key. All methods are safe for concurrent use.
//
// Operations come in batches, because a round trip costs more than an operation. A batch is no transaction. Each
// operation changes one record in one atomic step, or returns an error that says nothing about the others. No operation
// reads in one step and writes in another. Operations on equal keys are made in the order of the slice. A method
// returns one result for each operation, in the same order.
//
// A method sends at once what it is given, in as few round trips as it can. It does not wait for more, keeps nothing
// back, and does not keep the slice. With one operation call [ClaimOne], [ExtendOne] or [SettleOne]. Build a store
// without batches from [ClaimEach], [ExtendEach] and [SettleEach].
//
// Every operation is idempotent per owner token. If the reply was lost, repeating it changes nothing more and gives the
// first answer. So a caller may repeat any operation that ended in an error.
//
// An error is [*InvalidError] for bad arguments, before anything is sent, or [*RecordError] for a record that the store
// cannot read. Otherwise it is the context's error, or one of the technology below. After any error the operation may
// or may not have happened. When the context ends, all results that are still unknown have its error.
type Store interface {
	// Claim asks for the exclusive right to process keys. It checks and claims in one step. For each request it looks,
	// in this order,
	//   1. whether there is a record of other content (Mismatch);
	//   2. whether the record is DONE: Done, or AcquiredRun for a Request.Rerun that names its fence, if the outcome is
	//      not Succeeded. Attempts then start anew;
	//   3. whether this owner holds the record: it asks again, and gets the same answer with the same fence;
	//   4. whether this owner has settled the record before: a late copy, which changes nothing (Busy);
	//   5. whether a lease is live, or a retry is not due (Busy);
	//   6. what an expired lease left behind;
	//   7. whether a run that it would be granted is refused, because too many before it crashed (Suspect).
	//
	// What an expired lease left behind may be a publish step (AcquiredPublish) or a run (AcquiredRun). A started run
	// that must not be retaken (Request.ParkExpired) becomes Unknown. A run whose attempts are spent becomes Failed and
	// exhausted. Both are then in PUBLISHING, and the claimer owns them (AcquiredPublish), so that one claimer
	// publishes the dead letter.
	Claim(ctx context.Context, requests []Request) []ClaimResult

	// Extend renews leases. Each then ends the given duration from now, by the store's clock, even if that is sooner
	// than before. It works after expiry as long as nobody took over. It is ErrClaimLost unless the record is RUNNING
	// or PUBLISHING under the claim's owner and fence.
	Extend(ctx context.Context, extensions []Extension) []error

	// Settle ends steps: it finishes or releases a run, or notes that the outcome was Published. It compares owner and
	// fence. It works after expiry as long as nobody took over. Repeating the settlement that ended the step is ok. It
	// is ErrClaimLost if another owner came, the record is gone, or the step ended in another way:
	//   - a Finish after a Release, or of an outcome that its owner only acquired to publish;
	//   - a Release after a Finish, or after the next run began;
	//   - a Published of a record without an outcome.
	Settle(ctx context.Context, settlings []Settling) []error
}

// A ClaimResult is how a claim was answered, or why it was not.
type ClaimResult struct {
	Answer Answer
	Err    error
}

// An Extension renews the lease of a claim.
type Extension struct {
	Claim Claim

	// Lease is how long the lease lives from now, at least a millisecond.
	Lease time.Duration

	// Started says that the handler has been called or is about to be. The record is then marked as started until the
	// next run (see Request.ParkExpired). False leaves the mark as it is.
	Started bool
}

// A Settling is a claim with how its step ended.
type Settling struct {
	Claim      Claim
	Settlement Settlement
}

// A Sharded store keeps its records on parts that fail separately.
type Sharded interface {
	// Shard names the part that has the record of a key now; "" if that is not known. There are few names. It is cheap.
	Shard(ctx context.Context, key Key) string
}

// A Waiter is a Store whose claims wait for others before they are answered, such as replicas.
type Waiter interface {
	// ClaimWait is how long claims wait for others at most. A caller that gives up sooner leaves granted claims behind,
	// and nobody gives them back.
	ClaimWait() time.Duration
}

// A LongLeased store waits long for an answer before it sends again. A lease must outlast several tries.
type LongLeased interface {
	// LeastLease is how long leases must be at least. Nothing breaks under a shorter one, but what is undecided when
	// its lease ends is told to nobody.
	LeastLease() time.Duration
}

// A Checker is a Store that can look at its server before work begins.
type Checker interface {
	// Check returns an error that says what to change if the server can drop claims by its settings. It reports what an
	// operator should know.
	Check(ctx context.Context) (Report, error)
}

// A Report is what a store found out about its server.
type Report struct {
	Store      string   // the technology, such as "redis"
	Version    string   // of the server
	Durability string   // what survives a crash of the server, in words
	Warnings   []string // what works but should be changed, a sentence each
	Losses     []string // those of the warnings that tell how records can be lost: what was done runs again
}

// A Request asks for a claim.
type Request struct {
	Key Key

	// Owner is a random token. Make a new one for each attempt to get the key, not for each message or process. Never
	// send it along with messages. 16 to 64 bytes of ASCII letters, digits, "-" and "_".
	Owner string

	// Lease is how long the claim lives without being extended; at least a millisecond, the unit of stores. It may live
	// some milliseconds longer, because a store knows its server's time only so well, but never shorter.
	Lease time.Duration

	// Retention is how long the record is kept beyond the end of the lease: the dedup window. At least a millisecond.
	Retention time.Duration

	// Fingerprint identifies the content. Zero means that contents are not compared. A granted run stores it, unless
	// the record has one of the same scheme.
	Fingerprint Fingerprint

	// MaxAttempts is how many runs the key may have, at least 1. Crashed runs count.
	MaxAttempts int

	// SuspectAfter refuses the run of a key whose last runs crashed, so many in a row or more: the answer is Suspect. A
	// run crashed if a claim finds its lease expired. A run that ended by itself begins the count anew: by a Finish, or
	// by a Release that counts. An uncounted Release keeps the count, and a rerun begins with none. 1 to 9; zero: no
	// run is refused.
	SuspectAfter int

	// ParkExpired makes a started run whose lease expired end as Unknown, instead of running it again.
	ParkExpired bool

	// Rerun names the fence under which a stored outcome, Failed or Unknown, was decided. The claim supersedes that
	// outcome, once: the run that it starts has another fence. Zero: none.
	Rerun uint64

	// Trace is the W3C traceparent of the run, kept so that duplicates can link to it. At most 64 bytes; may be empty.
	Trace string

	// Holder names the host and the process of the claimer, for people. It decides nothing. Valid UTF-8 without control
	// characters, at most MaxHolder bytes; may be empty.
	Holder string
}

// Status is how a store answers a claim.
type Status string

// The answers to a claim.
const (
	AcquiredRun     Status = "acquired_run"     // run the handler; the only answer that allows it
	AcquiredPublish Status = "acquired_publish" // publish what the outcome holds, do not run
	Busy            Status = "busy"             // somebody holds a live lease, or a retry is not due
	Suspect         Status = "suspect"          // it may run, but not for this Request.SuspectAfter; it was not touched
	Done            Status = "done"             // there is an outcome: take it
	Mismatch        Status = "mismatch"         // the record is of other content; it was not touched
)

// State is the state of a record.
type State string

// The states of a record.
const (
	Absent     State = "absent"
	Running    State = "running"    // a run was granted, and has not been settled
	Retryable  State = "retryable"  // released; may run again when due
	Publishing State = "publishing" // the outcome is decided, what it produced is not known to be published
	Finished   State = "done"       // the outcome is final
)

// An Answer is the reply to a claim.
type Answer struct {
	Status Status

	// Found is the state that the claim found, before it changed it. AcquiredRun from Running is a takeover, or the
	// answer to an owner that asked again.
	Found State

	// Claim is what to extend and settle with, for AcquiredRun and AcquiredPublish.
	Claim Claim

	// Wait is, for Busy, how long the lease lasts or until the retry is due; never negative. The holder may be done
	// sooner. Zero: ask again.
	Wait time.Duration

	// Outcome is what the processing ended in, for Done and AcquiredPublish. When Done, its produced messages have
	// no headers and payloads any more. An outcome that the claim itself wrote has nothing produced yet: the dead
	// letter is made by the claimer.
	Outcome Outcome

	// Fence is, for Done and AcquiredPublish, the fence under which the outcome was decided: what Request.Rerun has to
	// name. It stays the same when others take over the publish step. For Busy it is the fence of the last owner.
	Fence uint64

	// Age is the time since the record's first claim by the store's clock; zero for a fresh one.
	Age time.Duration

	// Trace is the traceparent of the last run that was granted before this claim; may be empty.
	Trace string
}

// A Claim is the right to process a key, as granted. It is a value: it may be copied, and it says nothing about
// whether it still holds.
type Claim struct {
	Key       Key
	Owner     string
	Fence     uint64        // grows with every new owner: max(previous + 1, store's time in µs, as the store knows it)
	Attempt   int           // 1 for the first run
	Returned  int           // how many runs of the key gave their attempt back (Release.Uncounted)
	Lease     time.Duration // as requested; also the lease of a publish step that a Finish begins
	Retention time.Duration // as requested
	Holder    string        // as requested
}

// A Settlement ends a step: [Finish], [Release] or [Published].
type Settlement interface{ settlement() }

// Finish stores the outcome of a run. With produced messages, or withheld ones, the record becomes PUBLISHING, under
// the same claim with a lease from now, else DONE.
type Finish struct {
	Outcome Outcome

	// Retention is how long the outcome is remembered, from now: the dedup window. At least a millisecond.
	Retention time.Duration

	// Published says that what the outcome produced has been published already: it becomes DONE, and keeps IDs only.
	Published bool

	// Withheld says that the produced messages are too large for the record and are not in it. The record becomes
	// PUBLISHING, and whoever acquires it to publish makes the messages again, as for an outcome that a claim decided.
	Withheld bool

	// Took is how long the run took, by the caller's monotonic clock. It is evidence for people, of which stores keep
	// milliseconds. Zero: not known.
	Took time.Duration
}

// Publishes reports whether the record becomes PUBLISHING.
func (f Finish) Publishes() bool { return !f.Published && (f.Withheld || len(f.Outcome.Produced) > 0) }

// Release gives a key back after a run that may be tried again.
type Release struct {
	// Delay is how long the key is not due; zero: due at once.
	Delay time.Duration

	// Reason says why, for operators. Valid UTF-8, not longer than MaxReason; may be empty.
	Reason string

	// Uncounted gives the attempt back: the run was interrupted, it did not fail. The record counts how often that
	// happened (Claim.Returned), until a rerun.
	Uncounted bool

	// Took is how long the run took, as of Finish.
	Took time.Duration
}

// Published says that everything the outcome produced has been published. The record becomes DONE.
type Published struct {
	// Retention is how long the outcome is remembered, from now: the dedup window. At least a millisecond.
	Retention time.Duration

	// Produced are the messages that were published, of an outcome that held none because the claim decided it. IDs,
	// topics and keys of them are kept. Ignored if the outcome holds messages.
	Produced []Produced
}

func (Finish) settlement()    {}
func (Release) settlement()   {}
func (Published) settlement() {}
