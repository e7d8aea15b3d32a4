package pgoutbox

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// ErrNoTx says that the context of Publish carries no transaction. Use In or InSQL, or pass the context that the
// handler of an inbox got.
var ErrNoTx error = txctx.NoTx("pgoutbox: the context carries no transaction: write with In(tx), or pass the context " +
	"that the handler of a pgstore inbox got")

// unfit says that the tables are missing, too old, made for another config, or hide rows. Err is PostgreSQL's error.
func unfit(table, problem string, err error) error {
	subject := fmt.Sprintf("outbox table %q", table)
	return &dedupstore.SetupError{Package: "pgoutbox", Subject: subject, Problem: problem, Err: err}
}

// Codes of PostgreSQL, Appendix A of its manual.
const (
	codeUndefinedTable   = "42P01"
	codeUndefinedColumn  = "42703"
	codeUndefinedSchema  = "3F000"
	codeNoPrivilege      = "42501"
	codeLockNotAvailable = "55P03"
)

// explain names the cause of a PostgreSQL error in our words.
func (o *Outbox) explain(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch e.Code {
	case codeUndefinedTable, codeUndefinedSchema:
		return unfit(o.cfg.Table, "is missing where the connection looks for it: call Migrate, or grant the user "+
			"USAGE on its schema", err)
	case codeUndefinedColumn:
		return unfit(o.cfg.Table, "lacks a column: call Migrate", err)
	case codeNoPrivilege:
		return fmt.Errorf("pgoutbox: the database user lacks a privilege on outbox table %q, see Migrate: %w",
			o.cfg.Table, err)
	case codeLockNotAvailable:
		return fmt.Errorf("pgoutbox: somebody else holds a lock on outbox table %q for too long: %w", o.cfg.Table, err)
	}
	return err
}
