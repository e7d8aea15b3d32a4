package dedupstore

import (
	"context"
	"errors"
)

// A Transactor is a Store whose records lie in the database that the effects are written to: an inbox. A store that has
// one hands it out on request, so that nobody gets transactions by accident.
type Transactor interface {
	Store

	// InTx runs work in a transaction, settles the claim in it as work says, comparing owner and fence, and commits:
	// the effects and the outcome happen together, or not at all. The context that work gets carries the transaction.
	// The claim itself was made outside, by a statement of its own, so that others find the key busy without waiting.
	//
	// The settlement has to be a Finish: effects that are committed without an outcome would be made again by the next
	// run. Any other, or one that ValidateSettlement refuses, rolls back and is an *InvalidError. Failures are settled
	// by Settle, when their effects are rolled back. A panic of work rolls back and goes on.
	//
	// Nil: it is committed, or had been before, if this owner's Finish is in the record already. Any other error but
	// *UndecidedError says that nothing is, and that the record is as it was:
	//   - what the last call of work returned, itself and not wrapped; or with ErrFull around it, if by it the
	//     database's disk is full;
	//   - ErrClaimLost, as of Settle;
	//   - an error that is ErrEnded, if work ended the transaction itself, and returned nil or may have committed: then
	//     effects may be committed without an outcome;
	//   - *ConflictError, if the database refused the transaction again and again because of others;
	//   - or why it could not begin, settle or commit. Work is not called where it could not begin.
	//
	// Work is called again, in a new transaction, when the database refuses one because of others (serialization
	// failure, deadlock). It is never called when ctx has ended. When ctx ends while it runs, the transaction may be
	// rolled back, whatever it returns; the settlement and the commit are not interrupted by that. When the answer to a
	// commit is lost, the record is read until it tells, at most for the claim's lease.
	InTx(ctx context.Context, c Claim, work func(ctx context.Context) (Settlement, error)) error
}

// A FirstTransactor is a Transactor that makes the first run of a key without a claim before it, and writes its record
// once. A run that ends its process leaves no trace: use it for deliveries that
// somebody else counts, such as a broker.
type FirstTransactor interface {
	Transactor

	// FirstInTx runs work in a transaction that has made the record of the key before, and commits. Meanwhile others
	// find the key Busy, for a whole lease as far as they are told, also if their keys only share a lock with it. When
	// its caller or its connection has stood still for a lease, the database ends the transaction; while the caller
	// lives, that may take longer.
	//
	// Work gets the claim, of the first attempt, and returns as for InTx. Without a status in the Answer, the error is
	// that of InTx, but never *UndecidedError. Nil: it is committed. Any other error says that nothing is, and that
	// there is no record: to count the run, claim the key, and settle that.
	//
	// An Answer with a status is that of Claim, in the same words, and nothing is committed: there is a record, or
	// somebody else has the lock. So it is answered, too, after the answer to a commit was lost: then the claim finds
	// what is true.
	//
	// The request neither parks (ParkExpired) nor is it a Rerun: both are an *InvalidError.
	FirstInTx(
		ctx context.Context, r Request, work func(ctx context.Context, c Claim) (Settlement, error),
	) (Answer, error)

	// FirstsInTx is FirstInTx for several keys in one transaction, with the same lease and retention. Work gets the
	// claims, in the order of the requests, of those that have no record and that nobody else makes, and is not called
	// without one. If it returns nil they have succeeded, without result and outputs, for the requests' retention, and
	// are returned when that is committed. An error says that nothing may be taken for committed: ask for each key by
	// FirstInTx. Work is called once.
	FirstsInTx(
		ctx context.Context, requests []Request, work func(ctx context.Context, claims []Claim) error,
	) ([]Claim, error)
}

// ErrEnded says that the work of InTx ended the transaction by itself, although the store does that. What it committed
// has no outcome, and would be made once more by another run: engines park it as unknown.
var ErrEnded = errors.New(
	"dedupstore: the work ended the inbox's transaction by itself; what it committed has no outcome")

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

// Unwrap returns what the database said last.
func (e *ConflictError) Unwrap() error { return e.Err }

// Uncounted says that the run was interrupted rather than failed. Engines believe it for as many runs as a key has
// attempts.
func (e *ConflictError) Uncounted() bool { return true }
