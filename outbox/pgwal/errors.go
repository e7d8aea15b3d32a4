package pgwal

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedupstore"
)

// unfit says what is wrong with the server, the slot, the publication or the table. Err is PostgreSQL's error.
func unfit(subject, problem string, err error) error {
	return &dedupstore.SetupError{Package: "pgwal", Subject: subject, Problem: problem, Err: err}
}

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
	_, ok := errors.AsType[*dedupstore.SetupError](err)
	return ok
}

// explain names the cause of a PostgreSQL error in our words.
func (r *Relay) explain(doing string, err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("pgwal: %s: %w", doing, err)
	}
	switch e.Code {
	case codeNoPrivilege:
		user := fmt.Sprintf("user %q", r.cfg.Pool.Config().ConnConfig.User)
		return unfit(user, "lacks a right for this ("+doing+"): the outbox's tables need USAGE on their "+
			"schema and SELECT, INSERT, UPDATE, DELETE, reading the log needs ALTER ROLE … REPLICATION, "+
			"Setup needs CREATE on the database and the table's ownership too", err)
	case codeUndefinedTable, codeUndefinedColumn:
		return unfit(fmt.Sprintf("outbox table %q", r.cfg.Table), "is missing, or older than this package: "+
			"call pgoutbox's Migrate, or grant the user USAGE on its schema", err)
	case codeUndefinedObject:
		return unfit(fmt.Sprintf("publication %q", r.cfg.Slot),
			"was missing while something was written that the slot has still to read: call Drop and Setup; "+
				"pending rows are published all the same", err)
	}
	return fmt.Errorf("pgwal: %s: %w", doing, err)
}
