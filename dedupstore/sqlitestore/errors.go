package sqlitestore

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/oncemill/oncemill/dedupstore"
)

// SchemaError says that the table is missing, or is of another version than this program's. Nothing was written. If it
// is missing or older call [Store.Migrate]; if it is newer, this program is too old for the database.
type SchemaError struct {
	Table     string
	Has, Want int // versions; 0: there is no table
}

func (e *SchemaError) Error() string {
	switch {
	case e.Has == 0:
		return fmt.Sprintf("sqlitestore: there is no table %q of version %d: call Migrate", e.Table, e.Want)
	case e.Has < e.Want:
		return fmt.Sprintf("sqlitestore: table %q has version %d, want %d: call Migrate", e.Table, e.Has, e.Want)
	}
	return fmt.Sprintf("sqlitestore: table %q has version %d, this program knows version %d: update the program", e.Table, e.Has, e.Want)
}

// EndedError says that the transaction of a run was over when its handler returned without an error, or that the handler committed
// it and then returned an error, or its context ended. No outcome was written. What the handler wrote is there if it committed; the
// guard parks the run as unknown. Handlers must leave the transaction that [Tx] gives them to the store. It is [dedupstore.ErrEnded].
type EndedError struct {
	Err error // what the database said
}

func (e *EndedError) Error() string {
	return "sqlitestore: the run's transaction was over before its outcome could be written in it: the handler must not commit or " +
		"roll back the transaction that Tx gives it, and must return the errors of its statements; if it committed, what it wrote " +
		"has no outcome: " + e.Err.Error()
}

// Unwrap returns dedupstore.ErrEnded and what the database said.
func (e *EndedError) Unwrap() []error { return []error{dedupstore.ErrEnded, e.Err} }

// ErrNested says that a store was used in the context of a run in an inbox of its database. It would wait for the write lock
// which that run's transaction has.
var ErrNested = errors.New("sqlitestore: the store was called with the context of a run in an inbox of its database, whose transaction has the " +
	"write lock: it would wait for itself")

// What Join cannot do.
var (
	// ErrNoRun says that the context is not that of a handler's run.
	ErrNoRun = errors.New("sqlitestore: Join outside a run: pass the context that the handler got")

	// ErrUnguarded says that the run has no claim, because the store was bypassed or in shadow mode.
	ErrUnguarded = errors.New("sqlitestore: Join in a run that is not guarded: there is no claim to settle")

	// ErrSettled says that the run has been settled already: by a transaction that joined before and has committed, perhaps
	// although the handler got an error from it, or by an earlier call with the same transaction.
	ErrSettled = errors.New("sqlitestore: Join in a run that has joined before: roll back, and return this error; if the earlier transaction " +
		"has committed, a redelivery is answered with its outcome")

	// ErrInboxRun says that the run is one of an inbox, which settles it by itself.
	ErrInboxRun = errors.New("sqlitestore: Join in a run of an inbox, which settles the run in the transaction of Tx by itself")
)

// isBusy reports whether the database refused because of others (SQLITE_BUSY, SQLITE_LOCKED and what belongs to them).
func isBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == codes.SQLITE_BUSY || e.Code()&0xff == codes.SQLITE_LOCKED)
}

func isFull(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == codes.SQLITE_FULL
}

// noRoom marks an error that says that there is no room for what was to be written.
func noRoom(err error) error {
	if !isFull(err) {
		return err
	}
	return fmt.Errorf("%w: %w", dedupstore.ErrFull, err)
}
