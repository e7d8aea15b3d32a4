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
	return "dedupstore: the transaction was refused again and again because of others: " + e.Err.Error()
}

// Unwrap returns what the database said last.
func (e *ConflictError) Unwrap() error { return e.Err }

// Uncounted says that the run was interrupted rather than failed. Engines believe it for as many runs as a key has
// attempts.
func (e *ConflictError) Uncounted() bool { return true }
