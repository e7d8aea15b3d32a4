package pgstore

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A lateTx opens a transaction that begins with the handler's first statement, and in the same round trip if that is an Exec with
// arguments: a round trip costs more than the statement in it.
type lateTx struct {
	session *pgxSession
	conn    *pgx.Conn // of the session, also when that has given it back
	tx      pgx.Tx    // nil until it has begun
	err     error     // why it could not begin, which is final
	away    bool      // that is the database's doing, not the handler's or the end of a context
	doubt   bool      // or the doing of the handler's first statement, which was sent with it

	// A first statement is under way: what it uses is its own, also after the run.
	beginning atomic.Bool

	bounded func() (context.Context, context.CancelFunc) // see now
}

// maxDoubts is how many runs of a message count as no attempt although it may have been their first statement that ended the
// connection, and took the server with it: a message that does so each time has to come to an end.
const maxDoubts = 3

func newLateTx(ctx context.Context, s *pgxSession) *lateTx {
	return &lateTx{session: s, conn: s.conn.Conn(), bounded: func() (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(context.WithoutCancel(ctx), endTimeout, errNotBegun)
	}}
}

// combines reports whether the pool's connections may get BEGIN and a statement together: their statements are prepared, so that
// each is one, and whoever traces them sees the statements of a batch.
func combines(pool *pgxpool.Pool) bool {
	cfg := pool.Config().ConnConfig
	_, sees := cfg.Tracer.(pgx.BatchTracer)
	if several, ok := cfg.Tracer.(*multitracer.Tracer); ok {
		sees = len(several.BatchTracers) >= len(several.QueryTracers)
	}
	return cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && (sees || cfg.Tracer == nil)
}

// begin begins the transaction, unless it has begun. A connection that is lost in it was dead before, as those of a pool are when
// the server was restarted: that is nothing that a handler should learn of, and it takes another one.
func (l *lateTx) begin(ctx context.Context) (pgx.Tx, error) {
	if !l.beginning.CompareAndSwap(false, true) {
		return nil, errBusy
	}
	defer l.done()
	return l.alone(ctx)
}

// done lets others begin, or settle. When the run has ended meanwhile, it gives the connection back in its place.
func (l *lateTx) done() {
	l.beginning.Store(false)
	if l.session.ended.Load() && l.beginning.CompareAndSwap(false, true) {
		l.session.giveBack()
	}
}

// alone begins the transaction without a statement.
func (l *lateTx) alone(ctx context.Context) (pgx.Tx, error) {
	if l.tx != nil || l.err != nil {
		return l.tx, l.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err // a context of this statement alone, perhaps: the next one may begin
	}
	for left := l.session.run.store.pool.Stat().MaxConns(); ; left-- {
		tx, err := l.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: l.session.run.store.sql.open})
		if err == nil {
			l.tx, l.session.begun = tx, true
			return tx, nil
		}
		if !l.lost(ctx) || left == 0 {
			return nil, l.fail(ctx, err)
		}
		if err := l.renew(ctx); err != nil {
			return nil, l.fail(ctx, err)
		}
	}
}

// fail keeps why the transaction could not begin. A connection that is busy with something else is the handler's doing.
func (l *lateTx) fail(ctx context.Context, err error) error {
	late := context.Cause(ctx) == errNotBegun //nolint:errorlint // the bound of now, which is not the handler's
	l.err, l.away = err, (ctx.Err() == nil || late) && (l.conn.IsClosed() || codeOf(err) != "")
	return err
}

// lost reports whether the connection was lost, and not closed because the caller gave up.
func (l *lateTx) lost(ctx context.Context) bool { return l.conn.IsClosed() && ctx.Err() == nil }

// renew takes another connection in place of one that was lost. It first gives that one's place back: if all others are held by
// handlers, which may wait for this one, there is no other place.
func (l *lateTx) renew(ctx context.Context) error {
	s := l.session
	if s.ended.Load() { // the connection was not lost, but closed because this statement had outlived the run
		return pgx.ErrTxClosed
	}
	s.giveBack()
	conn, err := s.run.store.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	s.giving.Lock()
	defer s.giving.Unlock()
	if s.ended.Load() { // nobody else would give it back
		conn.Release()
		return pgx.ErrTxClosed
	}
	s.conn, l.conn = conn, conn.Conn()
	return nil
}

func (l *lateTx) raw() *pgx.Conn {
	l.session.giving.Lock()
	defer l.session.giving.Unlock()
	return l.conn
}

// now is begin for a method that has no context and returns no error: if it cannot, the connection is closed, or what is done on it
// would be committed at once. Hooks of the pool may look for values of the run's context, such as whose data to show.
func (l *lateTx) now() (pgx.Tx, error) {
	if !l.beginning.CompareAndSwap(false, true) {
		l.session.sever(false)
		return nil, errBusy
	}
	defer l.done()
	bounded, cancel := l.bounded()
	defer cancel()
	tx, err := l.alone(bounded)
	if err != nil {
		_ = l.conn.Close(bounded)
	}
	return tx, err
}

// exec begins the transaction together with the statement if it may.
func (l *lateTx) exec(ctx context.Context, query string, args []any) (tag pgconn.CommandTag, err error) {
	if !l.beginning.CompareAndSwap(false, true) {
		return tag, errBusy
	}
	tx, tag, err := l.first(ctx, query, args)
	if tx == nil {
		return tag, err
	}
	return tx.Exec(ctx, query, args...)
}

// first begins the transaction with a statement. It returns the transaction if the statement is still to be made.
func (l *lateTx) first(ctx context.Context, query string, args []any) (pgx.Tx, pgconn.CommandTag, error) {
	defer l.done()
	if l.tx == nil && l.err == nil && ctx.Err() == nil && l.session.run.store.combines && plainArgs(args) {
		if tag, made, err := l.beginWith(ctx, query, args); made {
			return nil, tag, err
		}
	}
	tx, err := l.alone(ctx)
	return tx, pgconn.CommandTag{}, err
}

// plainArgs reports whether a batch takes the arguments of an Exec, and the statement is one: without arguments there may be several.
// A rewriter gets the connection before the batch is sent: what it does there would be committed at once. Those of pgx for names do
// nothing there, but behind them may be a mode, which a batch would not heed, or another rewriter.
func plainArgs(args []any) bool {
	if len(args) == 0 {
		return false
	}
	switch named := args[0].(type) {
	case pgx.NamedArgs:
		return len(named) > 0 && len(args) == 1
	case pgx.StrictNamedArgs:
		return len(named) > 0 && len(args) == 1
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
		return false
	}
	return true
}

// beginWith begins the transaction with a statement. It reports false if nothing has begun, so that both are to be made one after
// the other: a statement that cannot be prepared has to fail within the transaction. So are those that were lost with their
// connection: whatever the server did of them is rolled back, as their commit was never sent.
func (l *lateTx) beginWith(ctx context.Context, query string, args []any) (tag pgconn.CommandTag, made bool, err error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{BeginQuery: l.session.run.store.sql.start})
	batch.Queue(mark)
	batch.Queue(query, args...).Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	results := l.conn.SendBatch(ctx, &batch)
	err = results.Close()
	switch {
	case err == nil, !l.conn.IsClosed() && l.conn.PgConn().TxStatus() != idle:
		l.session.begun, l.tx = true, results.Tx()
	case l.lost(ctx):
		l.doubt = true
		if failed := l.renew(ctx); failed != nil {
			return tag, true, l.fail(ctx, errors.Join(err, failed))
		}
		return tag, false, nil
	case l.conn.IsClosed(), ctx.Err() != nil: // given up under way, perhaps with a cancel request that left the connection open
		l.err = err
	default:
		return tag, false, nil
	}
	return tag, true, err
}
