package pgoutbox

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/rowsecurity"
)

// The database's default isolation may be another one.
var (
	begin  = statement{query: "BEGIN ISOLATION LEVEL READ COMMITTED"}
	commit = statement{query: "COMMIT"}
)

// pipeline sends statements together and waits once. It calls each function for the rows of one statement, beginning at
// the index. The server does not wait for the client between statements, so a slow client keeps no locks. After an
// error inside a transaction the pool closes the connection, which rolls back.
func (o *Outbox) pipeline(ctx context.Context, index int, fns []eachRowFunc, statements ...statement) error {
	conn, err := o.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if !o.whole.Load() {
		if err := o.checkOn(ctx, conn.Conn()); err != nil {
			return err
		}
	}
	var batch pgx.Batch
	for _, s := range statements {
		batch.Queue(s.query, s.args...)
	}
	return o.explain(eachOfBatch(conn.SendBatch(ctx, &batch), index, fns...))
}

// checkOn checks the schema in its own transaction, and that a relay sees all rows: a row that it does not see waits
// for ever.
func (o *Outbox) checkOn(ctx context.Context, conn *pgx.Conn) error {
	names := namesOf(o.cfg)
	hidden, err := rowsecurity.Hidden(ctx, conn, names.Replace("{table}"), names.Replace("{lease}"),
		names.Replace("{settings}"))
	switch {
	case err != nil:
		return o.explain(err)
	case hidden != "":
		return unfit(strings.ReplaceAll(hidden, `"`, ""), rowsecurity.Advice, nil)
	}
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return o.check(ctx, pgxSession{tx}) }); err != nil {
		return err
	}
	o.whole.Store(true)
	return nil
}
