package pgwal

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// A SetupError says what of the server, the slot, the publication or the table does not fit. Run and Setup return it:
// repeating the call is useless until somebody acts as it says.
type SetupError struct {
	What    string // such as `replication slot "oncemill_outbox"`
	Problem string // what is wrong, and what to do
	Err     error  // what PostgreSQL said; nil if it had no part in it
}

func (e *SetupError) Error() string {
	s := "pgwal: " + e.What + " " + e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns what PostgreSQL said.
func (e *SetupError) Unwrap() error { return e.Err }

// Codes of PostgreSQL, Appendix A of its manual.
const (
	codeNoPrivilege      = "42501"
	codeUndefinedTable   = "42P01"
	codeUndefinedColumn  = "42703"
	codeUndefinedObject  = "42704"
	codeDuplicateObject  = "42710"
	codeInUse            = "55006"
	codeCannotConnectNow = "57P03"
)

func hasCode(err error, code string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == code
}

func isSetup(err error) bool {
	_, ok := errors.AsType[*SetupError](err)
	return ok
}

// explain names the cause of an error that PostgreSQL knows only by its own words.
func (r *Relay) explain(doing string, err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("pgwal: %s: %w", doing, err)
	}
	switch e.Code {
	case codeNoPrivilege:
		user := fmt.Sprintf("user %q", r.cfg.Pool.Config().ConnConfig.User)
		return &SetupError{user, "lacks a right for this (" + doing + "): the outbox's tables need USAGE on their " +
			"schema and SELECT, INSERT, UPDATE, DELETE, reading the log needs ALTER ROLE … REPLICATION, " +
			"Setup needs CREATE on the database and the table's ownership too", err}
	case codeUndefinedTable, codeUndefinedColumn:
		return &SetupError{fmt.Sprintf("outbox table %q", r.cfg.Table), "is missing, or older than this package: " +
			"call pgoutbox's Migrate, or grant the user USAGE on its schema", err}
	case codeUndefinedObject:
		return &SetupError{fmt.Sprintf("publication %q", r.cfg.Slot),
			"was missing while something was written that the slot has still to read: call Drop and Setup; " +
				"pending rows are published all the same", err}
	}
	return fmt.Errorf("pgwal: %s: %w", doing, err)
}
