package dedupstore

import (
	"context"
	"errors"
)

// A Transactor is a Store whose records lie in the database that the effects are written to: an inbox. A store has a
// method that returns its inbox, so that nobody gets transactions by accident.
type Transactor interface {
	Store

	// InTx runs work in a transaction, settles the claim in it, comparing owner and fence, and commits. Effects and
	// outcome happen together, or not at all. The context of work carries the transaction. The claim was made before,
	// by a statement of its own, so others find the key busy without waiting.
	//
	// Work returns the settlement, which must be a Finish: effects that commit without an outcome would be made again
	// by the next run. Any other, or one that ValidateSettlement refuses, rolls back and is an *InvalidError. Failures
	// are settled by Settle, when their effects are rolled back. A panic of work rolls back and goes on.
	//
	// Nil means that it is committed, or was before: this owner's Finish is in the record already. Any other error but
	// *UndecidedError means that nothing is, and that the record is as it was:
	//   - the error of the last call of work, itself and not wrapped, or with ErrFull around it if the database's disk
	//     is full;
	//   - ErrClaimLost, as of Settle;
	//   - an error that is ErrEnded, if the transaction has ended before work, and was or may have been committed. Then
	//     effects may be committed without an outcome;
	//   - *ConflictError, if the database refused the transaction again and again because of others;
	//   - or the reason why it could not begin, settle or commit. If it could not begin, work is not called.
	//
	// Work is called again, in a new transaction, when the database refuses one because of others (serialization
	// failure, deadlock). It is never called when ctx has ended. If ctx ends while it runs, the transaction may be
	// rolled back, whatever work returns; settlement and commit are not interrupted. If the answer to a commit is lost,
	// the store reads the record until it tells, at most for the claim's lease.
	InTx(ctx context.Context, c Claim, work func(ctx context.Context) (Settlement, error)) error
}

// A FirstTransactor is a Transactor that makes the first run of a key without a claim before it, and writes its record
// once. A run that ends its process leaves no trace: use it for deliveries that somebody else counts, such as a broker.
type FirstTransactor interface {
	Transactor

	// FirstInTx makes the record of a key in a transaction, runs work in it, and commits. Meanwhile others find the key
	// Busy, and so do others whose keys share a lock with it. They are told to wait for a whole lease. If the caller or
	// its connection stands still for a lease, the database ends the transaction. While the caller lives, that may take
	// longer.
	//
	// Work gets the claim, of the first attempt, and returns as for InTx. If the Answer has no status, the error is
	// that of InTx, but never *UndecidedError. Nil: it is committed. Any other error means that nothing is, and that
	// there is no record. To count the run, claim the key and settle that claim.
	//
	// If the Answer has a status, it is the Answer of Claim, and nothing is committed: there is a record, or somebody
	// else has the lock. The same happens when the answer to a commit was lost. A claim then finds what is true.
	//
	// The request must not park (ParkExpired) or be a Rerun: both are an *InvalidError.
	FirstInTx(
		ctx context.Context, r Request, work func(ctx context.Context, c Claim) (Settlement, error),
	) (Answer, error)

	// FirstsInTx is FirstInTx for several keys in one transaction, with the same lease and retention. Work gets the
	// claims of those keys that have no record and that nobody else has, in the order of the requests. Without such a
	// key it is not called. It is called once.
	//
	// If it returns nil, these keys have succeeded, without result and outputs, for the requests' retention. FirstsInTx
	// returns their claims when that is committed. After an error take nothing for committed: ask for each key by
	// FirstInTx.
	FirstsInTx(
		ctx context.Context, requests []Request, work func(ctx context.Context, claims []Claim) error,
	) ([]Claim, error)
}

// ErrEnded says that the inbox's transaction was, or may have been, committed before its run had ended. Only the work
// can do that, and must not. What was committed has no outcome, and another run would make it once more: engines park
// it as unknown.
var ErrEnded = errors.New("dedupstore: the inbox's transaction ended before its run; what was committed has no outcome")

// UndecidedError says that a transaction may or may not have committed: the answer was lost, and the record could not
// be read. Nobody may fail or release the key on the strength of it. The next claim finds what is true.
type UndecidedError struct{ Err error }

func (e *UndecidedError) Error() string {
	return "dedupstore: not known whether the transaction has committed: " + e.Err.Error()
}

// Unwrap returns why.
func (e *UndecidedError) Unwrap() error { return e.Err }

// ConflictError says that the database refused a transaction, several times, because of what others did at the same
// time. It is no failure of the work: the attempt does not count.
type ConflictError struct{ Err error }

func (e *ConflictError) Error() string {
	return "dedupstore: the database refused the transaction again and again because of concurrent ones: " +
		e.Err.Error()
}

// Unwrap returns the database's last error.
func (e *ConflictError) Unwrap() error { return e.Err }

// Uncounted says that the run was interrupted rather than failed. Engines believe it for as many runs as a key has
// attempts.
func (e *ConflictError) Uncounted() bool { return true }
