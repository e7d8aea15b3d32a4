package sqlitestore

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// unfit names a setting of the database that does not suit dedup records, and what to do.
func unfit(setting, value, advice string) error {
	return &dedupstore.SetupError{
		Package: "sqlitestore", Subject: setting, Problem: fmt.Sprintf("is %q: %s", value, advice),
	}
}

// endedError is [dedupstore.ErrEnded]. The transaction was over when its handler returned without an error, or the
// handler committed it and then returned an error, or its context ended. No outcome was written, so the guard parks the
// run as unknown.
func endedError(err error) error {
	return &sqlstore.Ended{Err: fmt.Errorf("sqlitestore: %w: the handler must not commit or roll back the transaction "+
		"that Tx gives it, and must return the errors of its statements: %w", dedupstore.ErrEnded, err)}
}

// ErrNested says that a store was used in the context of a run in an inbox of its database. The store would wait for
// the write lock that this run's transaction has.
var ErrNested = errors.New("sqlitestore: the context is that of a run in an inbox of this database: the store would " +
	"wait for the write lock that the run's transaction has")

// Errors of Join.
var (
	// ErrNoRun says that the context is not that of a handler's run.
	ErrNoRun = errors.New("sqlitestore: Join outside a run: pass the context that the handler got")

	// ErrUnguarded says that the run has no claim, because the store was bypassed or in shadow mode.
	ErrUnguarded = errors.New("sqlitestore: Join in a run that is not guarded: there is no claim to settle")

	// ErrSettled says that the run has been settled already: by an earlier transaction that joined and committed, or by
	// an earlier call with this transaction. The handler may have got an error from that commit.
	ErrSettled = errors.New("sqlitestore: Join in a run that has joined before: roll back, and return this error")

	// ErrInboxRun says that the run is one of an inbox, which settles it.
	ErrInboxRun = errors.New("sqlitestore: Join in a run of an inbox, which settles it in the transaction of Tx")
)

var (
	errLocked = errors.New("the database's write lock was held by others for longer than the lease")

	// errOver keeps the outcome from being committed outside the handler's transaction.
	errOver = errors.New("the transaction is over: SQLite ends it by itself after some errors of statements; the " +
		"handler must return them")
)

// A conflictError says why the database refused a transaction because of others. Nothing of the transaction is there.
type conflictError struct{ error }

func (e *conflictError) Unwrap() error { return e.error }

// isBusy reports whether the database refused because of others (SQLITE_BUSY, SQLITE_LOCKED and their extended codes).
func isBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == codes.SQLITE_BUSY || e.Code()&0xff == codes.SQLITE_LOCKED)
}

func isRecordError(err error) bool {
	_, is := errors.AsType[*dedupstore.RecordError](err)
	return is
}

// noRoom marks an error that says that there is no room for what was to be written.
func noRoom(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); !ok || e.Code()&0xff != codes.SQLITE_FULL {
		return err
	}
	return fmt.Errorf("%w: %w", dedupstore.ErrFull, err)
}
