package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedupstore"
)

var (
	// ErrInboxCommits is returned by Commit and Rollback of the transaction that an inbox gives to a handler. The inbox
	// commits when the handler returns nil, and rolls back when it returns an error.
	ErrInboxCommits = errors.New("pgstore: the inbox ends this transaction: " +
		"return nil to commit it, an error to roll it back")

	// ErrTxEnded says that the handler ended the inbox's transaction with a statement of its own. What it wrote is
	// committed or lost without an outcome. The guard parks the run as unknown, also if the handler returned an error,
	// which this one wraps. But a COMMIT in a first delivery, whose record is a part of the transaction, commits it as a
	// success, whatever the handler returns. Correct the handler. It is dedupstore.ErrEnded.
	ErrTxEnded = fmt.Errorf("pgstore: %w", dedupstore.ErrEnded)

	// ErrTxAborted says that a statement of the handler failed, which aborts the transaction, and that the handler
	// returned no error all the same. Nothing is committed. Return the error, or run what may fail in a savepoint
	// (Tx.Begin).
	ErrTxAborted = errors.New("pgstore: a statement of the handler failed, and the handler did not return the error; " +
		"nothing was committed")

	// ErrNoRun is returned by Join for a context that carries no guarded run: the handler was called with another
	// context, or not by a Guard.
	ErrNoRun = errors.New("pgstore: Join outside a guarded run: pass the context that the handler got")

	// ErrBypassed is returned by Join for a run without a claim: the store did not answer and the policy fails open, or
	// it is shadow mode. There is nothing to settle, and no protection against duplicates.
	ErrBypassed = errors.New("pgstore: Join in a run that is not guarded: it has no claim to settle")

	// ErrInInbox is returned by Join within the run of an inbox, which settles in its own transaction.
	ErrInInbox = errors.New("pgstore: Join in a run of an inbox, which settles by itself: write with Tx or SQLTx")

	// ErrSettled is returned by Join if the run has been settled before, by an earlier transaction that committed or by
	// an earlier Join in this one. The transaction has failed and can only be rolled back.
	ErrSettled = errors.New("pgstore: the run has been settled already: roll back, its effects are committed")
)

// errLost says that nothing was committed, because that was never asked for.
var errLost = errors.New("pgstore: the connection was lost before the commit; nothing was committed")

// errNotBarred says that a transaction may still commit.
var errNotBarred = errors.New("pgstore: a transaction without an answer can neither be barred nor has it settled")

// errBusy says that nothing was committed, because the connection has not done yet what the handler asked of it.
var errBusy = errors.New("pgstore: the handler has left rows of a query open, or a statement under way: " +
	"close them before it returns; nothing was committed")

// errAfterwards says what became of the connection of a transaction that the handler had ended.
var errAfterwards = errors.New("then its connection was lost, " +
	"or it left rows of a query open, or a statement under way")

// Codes of PostgreSQL, Appendix A of its manual.
const (
	codeSerialization     = "40001"
	codeDeadlock          = "40P01"
	codeUnknownCompletion = "40003"
	codeAborted           = "25P02"
	codeNoTransaction     = "25P01"
	codeReadOnly          = "25006"
	codeLocked            = "55P03"
	codeNoSuchText        = "22021"
	codeNoTranslation     = "22P05"
	codeUndefinedTable    = "42P01"
	codeUndefinedSchema   = "3F000"
	codeUndefinedColumn   = "42703"
	codeNoPrivilege       = "42501"
	codeDiskFull          = "53100"
	codeDivision          = "22012"
	codeNotANumber        = "22P02"
)

func codeOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// conflicts reports whether PostgreSQL refused a transaction because of others.
func conflicts(err error) bool {
	code := codeOf(err)
	return code == codeSerialization || code == codeDeadlock
}

// noRoom marks an error that says that the server's disk is full.
func noRoom(err error) error {
	if codeOf(err) != codeDiskFull {
		return err
	}
	return fmt.Errorf("%w: %w", dedupstore.ErrFull, err)
}

// explain names the cause of an error that PostgreSQL knows only by its own words.
func (s *Store) explain(err error) error {
	switch codeOf(err) {
	case codeUndefinedTable, codeUndefinedSchema, codeUndefinedColumn:
		return s.setup(err, "or a column of it is missing where the connection looks for it: call Migrate, "+
			"grant the user USAGE on its schema, or, if the search path was changed, name Config.Schema")
	case codeNoPrivilege:
		return s.setup(err, "may not be used by the database user: see Migrate for what it has to be granted; "+
			"after SET ROLE in a handler that is the other role")
	case codeReadOnly:
		return s.setup(err, "is on a server, or in a session, that only reads: connect to the primary; "+
			"with target_session_attrs=read-write in its URL the pool takes no other server")
	}
	return err
}

// setup is what is wrong with the tables.
func (s *Store) setup(err error, problem string, args ...any) error {
	return unfit("table "+s.cfg.located(""), fmt.Sprintf(problem, args...), err)
}

func unfit(subject, problem string, err error) error {
	return &dedupstore.SetupError{Package: "pgstore", Subject: subject, Problem: problem, Err: err}
}

// failed adds what failed to an error. It leaves a *SetupError and the error of the caller's own context as they are.
func (s *Store) failed(what string, err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded { //nolint:errorlint // not wrapped: the caller's own
		return err
	}
	err = noRoom(s.explain(err))
	if _, setup := errors.AsType[*dedupstore.SetupError](err); setup || errors.Is(err, dedupstore.ErrClaimLost) {
		return err
	}
	return fmt.Errorf("pgstore: %s: %w", what, err)
}
