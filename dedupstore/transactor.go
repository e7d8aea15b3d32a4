package dedupstore

import (
	"context"
	"errors"
	"fmt"
)

// A Transactor is a Store whose records lie in the database that the effects are written to: an inbox. A store has a
// method that returns its inbox, so that nobody gets transactions by accident.
type Transactor interface {
	Store

	// InTx runs work for all runs in one transaction, settles their claims in it, comparing owner and fence, and
	// commits. The effects and outcomes of all happen together, or not at all. The context of work carries the
	// transaction. Most claims were made before, by statements of their own, so others find these keys busy without
	// waiting. A first run's claim is made in the transaction: see TxRun.
	//
	// Work gets the claims of the runs that take part, in the order of the runs, and returns as many settlements. Each
	// must be a Finish: effects that commit without an outcome would be made again by the next run. Any other, or one
	// that ValidateSettlement refuses, rolls back and is an *InvalidError. Failures are settled by Settle, when their
	// effects are rolled back. A panic of work rolls back and goes on.
	//
	// If the error is nil, all runs that take part are committed, or were before: these owners' Finishes are in the
	// records already. The answer to a first run that does not take part is that of Claim; the others have no Status.
	// Answers may be nil if all take part.
	//
	// Any other error but *UndecidedError means that nothing is committed, and that the records are as they were:
	//   - the error of the last call of work, itself and not wrapped, or with ErrFull around it if the database's disk
	//     is full;
	//   - ErrClaimLost, as Settle returns it, if a claim is lost;
	//   - an error that is ErrEnded, if the transaction has ended before work, and was or may have been committed. Then
	//     effects may be committed without an outcome;
	//   - *ConflictError, if the database refused the transaction again and again because of others;
	//   - or the reason why it could not begin, settle or commit. If it could not begin, work is not called.
	//
	// Work is called again, in a new transaction, when the database refuses one because of others (serialization
	// failure, deadlock). It is never called when ctx has ended. If ctx ends while it runs, the transaction may be
	// rolled back, whatever work returns; settlement and commit are not interrupted. If the answer to a commit is lost,
	// the store reads a record until it tells, at most for a claim's lease. The runs must have different owners.
	InTx(ctx context.Context, runs []TxRun, work TxWork) ([]Answer, error)

	// TakesFirst reports whether InTx takes first runs. Without it, claim them. It may depend on the server, which a store
	// knows after its first operation.
	TakesFirst() bool
}

// A TxRun is one run of a transaction.
type TxRun struct {
	// Claim was made before. It is not looked at if there is a First.
	Claim Claim

	// First has the transaction make the first run's record, without a claim before it, and write it once. A run that
	// ends its process leaves no trace: use it for deliveries that somebody else counts, such as a broker.
	//
	// Meanwhile others find the key Busy, and so do others whose keys share a lock with it. They are told to wait for a
	// whole lease. If the caller or its connection stands still for a lease, or 5 s if that is longer and the
	// transaction has claimed runs, too, or in MariaDB a minute if that is longer, the database ends the transaction.
	// While the caller lives, that may take longer. The claim is of the first attempt, and nobody has to extend it. To
	// count a run that failed, claim the key and settle that claim.
	//
	// It does not take part if there is a record, or somebody else has the lock. If the answer to the commit of first
	// runs only is lost, none of them takes part either: a claim then finds what is true.
	//
	// The request must not park (ParkExpired) or be a Rerun: both are an *InvalidError. First runs of a transaction
	// have the same lease and retention.
	First *Request
}

// TxWork is what InTx runs.
type TxWork = func(ctx context.Context, claims []Claim) ([]Settlement, error)

// ValidateRuns reports runs that cannot share a transaction, as an [*InvalidError]. It does not compare owners.
func ValidateRuns(runs []TxRun) error {
	if len(runs) == 0 {
		return invalid("TxRun", "is missing: a transaction has one run at least")
	}
	var first *Request
	for i := range runs {
		r := runs[i].First
		err := error(nil)
		if r == nil {
			err = runs[i].Claim.Validate()
		} else {
			err = r.validateFirst()
		}
		switch {
		case err != nil:
			return err
		case r == nil:
		case first == nil:
			first = r
		case r.Lease != first.Lease || r.Retention != first.Retention:
			return invalid("TxRun.First", "has another lease or retention than others of the transaction")
		}
	}
	return nil
}

// ClaimsOf returns the claims of runs, for an inbox that takes no first runs. The error is an [*InvalidError].
func ClaimsOf(runs []TxRun) ([]Claim, error) {
	if err := ValidateRuns(runs); err != nil {
		return nil, err
	}
	claims := make([]Claim, len(runs))
	for i, r := range runs {
		if r.First != nil {
			return nil, invalid("TxRun.First", "is set, and this inbox takes no first runs: claim them")
		}
		claims[i] = r.Claim
	}
	return claims, nil
}

// ValidateFinishes reports settlements that cannot be committed with the effects of so many runs, as an
// [*InvalidError].
func ValidateFinishes(settlements []Settlement, runs int) error {
	if len(settlements) != runs {
		return invalid("Settlement", fmt.Sprintf("the work of %d runs returned %d settlements", runs, len(settlements)))
	}
	for _, s := range settlements {
		if _, ok := s.(Finish); !ok {
			problem := fmt.Sprintf("is %T, want Finish: nothing else may be committed with effects", s)
			return invalid("Settlement", problem)
		}
		if err := ValidateSettlement(s); err != nil {
			return err
		}
	}
	return nil
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
