package mysqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore"
)

// ErrTxEnded says that the handler ended the inbox's transaction: by Commit or Rollback, or by a statement that commits
// by itself, such as CREATE TABLE. What it wrote until then may be committed, and has no outcome. The guard parks the
// run as unknown. Correct the handler. It is dedupstore.ErrEnded.
var ErrTxEnded = fmt.Errorf("mysqlstore: %w", dedupstore.ErrEnded)

// errDeadlocked says that the server rolled a transaction back before its run had ended: nothing was committed.
var errDeadlocked = errors.New("mysqlstore: the server rolled the transaction back before its run had ended, as by a " +
	"deadlock")

// Numbers of MySQL's and MariaDB's errors.
const (
	errDiskFull        = 1021
	errDBDenied        = 1044
	errNoDatabase      = 1046
	errUnknownDB       = 1049
	errUnknownColumn   = 1054
	errDuplicateColumn = 1060
	errTableFull       = 1114
	errTableDenied     = 1142
	errColumnDenied    = 1143
	errNoTable         = 1146
	errPacket          = 1153
	errChanged         = 1020 // MariaDB, innodb_snapshot_isolation
	errLockTimeout     = 1205
	errDeadlock        = 1213
	errOptionPrevents  = 1290
	errNoSavepoint     = 1305
	errStatementLog    = 1665
	errReadOnlyTx      = 1792
	errReadOnlyMode    = 1836
)

// number is that of an error that the server returned; 0: it did not.
func number(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// conflicts reports whether the server refused a transaction, or a statement of it, because of others.
func conflicts(err error) bool {
	return refuses(err) || number(err) == errLockTimeout || errors.Is(err, errDeadlocked) || errors.Is(err, errApart)
}

// refuses reports whether the server refused a statement at once, because of others.
func refuses(err error) bool { return number(err) == errDeadlock || number(err) == errChanged }

// noRoom marks an error that says that the server has no room. It may be that of a handler's statement.
func noRoom(err error) error {
	if n := number(err); n == errDiskFull || n == errTableFull {
		return full(err)
	}
	return err
}

// tooLarge marks an error that says that the server takes no record of this size.
func tooLarge(err error) error {
	if !errors.Is(err, dedupstore.ErrFull) && (number(err) == errPacket || errors.Is(err, mysql.ErrPktTooLarge)) {
		return fmt.Errorf("%w: %w", dedupstore.ErrTooLarge, err)
	}
	return err
}

func full(err error) error {
	if errors.Is(err, dedupstore.ErrFull) {
		return err
	}
	return fmt.Errorf("%w: %w", dedupstore.ErrFull, err)
}

// unfit says what is wrong with the server or the table, and what to do.
func unfit(subject, problem string, err error) error {
	return &dedupstore.SetupError{Package: "mysqlstore", Subject: subject, Problem: problem, Err: err}
}

func (s *Store) setup(err error, problem string, args ...any) error {
	return unfit(fmt.Sprintf("table %q", s.config.Table), fmt.Sprintf(problem, args...), err)
}

// explain names the cause of an error that the server knows only by its own words.
func (s *Store) explain(err error) error {
	switch number(err) {
	case errNoTable:
		return s.setup(err, "or the one beside it is missing in the connection's database: call Migrate")
	case errUnknownColumn:
		return s.setup(err, "is of another version: call Migrate")
	case errNoDatabase, errUnknownDB:
		return unfit("database", "is not named, or does not exist: name it in the DSN, and CREATE DATABASE", err)
	case errDBDenied, errTableDenied, errColumnDenied:
		return s.setup(err, "may not be used by the database user: GRANT SELECT, INSERT, UPDATE, DELETE on it, on "+
			"%s_scopes and on %[1]s_version; Migrate needs CREATE, too", s.config.Table)
	case errOptionPrevents, errReadOnlyTx, errReadOnlyMode:
		return s.setup(err, "is on a server, or in a session, that only reads: connect to the primary; without "+
			"an inbox, rejectReadOnly=true in the DSN makes the pool close other connections")
	case errStatementLog:
		return unfit("binlog_format", "is STATEMENT: set it to ROW, which READ COMMITTED needs", err)
	}
	return err
}

// failed adds what failed to an error. It leaves a *SetupError and the error of the caller's own context as they are.
func (s *Store) failed(what string, err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded { //nolint:errorlint // not wrapped: the caller's own
		return err
	}
	err = tooLarge(noRoom(s.explain(err)))
	if _, setup := errors.AsType[*dedupstore.SetupError](err); setup {
		return err
	}
	return fmt.Errorf("mysqlstore: %s: %w", what, err)
}
