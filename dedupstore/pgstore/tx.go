package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Tx returns the transaction that the inbox began before it called the handler. Begin makes a savepoint in it. Commit
// and Rollback return ErrInboxCommits: the inbox does that when the handler has returned. It panics outside a run of
// [Store.Inbox].
//
// One goroutine at a time may use it. A call that is under way when the handler returns makes the run fail; later calls
// get pgx.ErrTxClosed. Do not keep its Conn or its LargeObjects: nothing guards them, and after the run they write into
// other transactions. PostgreSQL ends a session that stands still for a lease, or 5 s if that is longer and it is no
// first delivery: a host may have vanished. The inbox keeps a live handler's session, but not while rows are open or
// once LargeObjects were asked for.
//
// A handler must not end the transaction by raw SQL, RESET ALL included. The store notices before it settles
// (ErrTxEnded) and parks the run as unknown, or finds that a first delivery is committed as a success. What was
// committed stays. It may not notice if the handler commits and begins another transaction (COMMIT AND CHAIN). The
// message may run again if a statement fails there, the connection is lost, or rows of a query are open.
//
// A handler that changes the search path or the role has to change them back. Otherwise set Config.Schema and grant the
// other role what Migrate says, or the settlement is refused and everything is rolled back.
func Tx(ctx context.Context) pgx.Tx {
	s, ok := txctx.From[*pgxSession](ctx)
	if !ok {
		panic(txctx.NoTx("pgstore: Tx outside a run of Store.Inbox: pass the context that the handler got, " +
			"and make the guard over Store.Inbox()"))
	}
	return s.tx
}

// A pgxSession is a transaction of pgx on a connection of its own.
type pgxSession struct {
	run    *run
	conn   *pgxpool.Conn
	tx     guarded
	closed bool // to calls of the handler
	over   bool // the commit was sent
}

// beginPgx begins a transaction and marks it, in one round trip, in which it also makes the records of first runs.
func (s *Store) beginPgx(ctx context.Context, r *run) (session, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var batch pgx.Batch
	batch.Queue(s.sql.open)
	if len(r.Claimed) > 0 { // else the statements of first runs do, which do nothing else where others have the keys
		batch.Queue(mark, milliseconds(r.silence()))
	}
	for _, one := range r.firsts() {
		batch.Queue(one.query, one.args...).Query(func(rows pgx.Rows) error { return r.read(rows) })
	}
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		rollback(ctx, conn)
		conn.Release()
		return nil, err
	}
	return &pgxSession{run: r, conn: conn, tx: guarded{&begun{connection: conn.Conn()}, r}}, nil
}

func (p *pgxSession) beat(ctx context.Context) error {
	if !p.run.wire.TryLock() {
		return nil
	}
	defer p.run.wire.Unlock()
	if p.run.open.Load() > 0 {
		return nil
	}
	return p.conn.Ping(ctx)
}

// Status of a connection.
const (
	idle    = 'I'
	inTx    = 'T'
	aborted = 'E'
)

func (p *pgxSession) context(ctx context.Context) context.Context {
	ctx = txctx.With[pgx.Tx](ctx, p.tx) // which others join, such as outboxes
	ctx = txctx.With(ctx, p.run)
	return txctx.With(ctx, p)
}

func (p *pgxSession) commit(ctx context.Context) error {
	if !p.close() {
		return errBusy
	}
	conn := p.conn.Conn()
	if conn.IsClosed() {
		return errLost
	}
	if conn.PgConn().IsBusy() {
		return errBusy
	}
	switch conn.PgConn().TxStatus() {
	case inTx:
	case aborted:
		return ErrTxAborted
	default:
		return ErrTxEnded
	}
	// One round trip: the server leaves out the commit if it refuses the settlement.
	var batch pgx.Batch
	made := 0
	for _, one := range p.run.settlements() {
		batch.Queue(one.query, one.args...).Exec(func(pgconn.CommandTag) error {
			made++
			return nil
		})
	}
	before := batch.Len()
	var tag pgconn.CommandTag
	batch.Queue("commit").Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	p.over = true
	err := conn.SendBatch(ctx, &batch).Close()
	switch {
	case err != nil && made < before:
		return stopped(made, err)
	case err == nil && tag.String() != "COMMIT":
		return ErrTxAborted
	}
	return err
}

// close lets no more calls of the handler begin. It reports false if one is under way.
func (p *pgxSession) close() bool {
	p.closed = p.closed || p.run.calls.TryLock()
	return p.closed
}

func (p *pgxSession) end(ctx context.Context) (open bool) {
	if !p.close() {
		return p.cut()
	}
	open = p.over || !left(p.conn.Conn())
	rollback(ctx, p.conn)
	p.conn.Release()
	return open
}

// cut is end while a call is under way, which fails then. The connection must not become another run's, and pgx may
// panic if a pool closes it under the call. A call that does not return, as one that waits for data to copy from the
// handler, is left alone after EndTimeout.
func (p *pgxSession) cut() (open bool) {
	conn := p.conn.Hijack().PgConn()
	_ = conn.Conn().Close()
	bounded, cancel := context.WithTimeout(context.Background(), sqlstore.EndTimeout)
	defer cancel()
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 50 * time.Millisecond}
	for !p.close() { // until the call has failed it may change what is looked at
		if !pace.Sleep(bounded, pauses.Next()) {
			return true
		}
	}
	return conn.TxStatus() != idle
}

// left reports whether a connection has left the transaction that the inbox began, also if it is in another one. After
// a failed statement it cannot be asked.
func left(conn *pgx.Conn) bool {
	status := conn.PgConn().TxStatus() // of a connection that is lost: the last that it had
	if status != inTx || conn.IsClosed() {
		return status == idle
	}
	bounded, cancel := context.WithTimeout(context.Background(), sqlstore.EndTimeout)
	defer cancel()
	results, err := conn.PgConn().Exec(bounded, `SELECT current_setting('oncemill.tx', true)`).ReadAll()
	return err == nil && string(results[0].Rows[0][0]) != "inbox"
}

// rollback rolls back if there is something to, also when ctx has ended. If that fails, the pool closes the connection.
func rollback(ctx context.Context, pooled *pgxpool.Conn) {
	conn := pooled.Conn()
	if conn.IsClosed() || conn.PgConn().TxStatus() == idle {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlstore.EndTimeout)
	defer cancel()
	_, _ = conn.Exec(bounded, "rollback")
}

// A begun transaction is one that the inbox began together with other statements. It makes pgx's own bookkeeping only
// when it is needed.
type begun struct {
	*connection
	known pgx.Tx
}

type connection = pgx.Conn

// own lets pgx believe that it begins.
func (b *begun) own(ctx context.Context) (tx pgx.Tx, err error) {
	if b.known == nil {
		b.known, err = b.BeginTx(ctx, pgx.TxOptions{BeginQuery: "-- it has begun"})
	}
	return b.known, err
}

// Begin implements [pgx.Tx]: it makes a savepoint.
func (b *begun) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := b.own(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Begin(ctx)
}

// LargeObjects implements [pgx.Tx]. Where the connection is lost, its methods panic.
func (b *begun) LargeObjects() (objects pgx.LargeObjects) {
	if tx, err := b.own(context.Background()); err == nil {
		objects = tx.LargeObjects()
	}
	return objects
}

// The inbox does this, by statements of its own.
func (*begun) Commit(context.Context) error   { return ErrInboxCommits }
func (*begun) Rollback(context.Context) error { return ErrInboxCommits }
func (b *begun) Conn() *pgx.Conn              { return b.connection }

// A guarded transaction, or a savepoint in it, refuses calls once the inbox settles. A write after the commit would
// commit alone, and later the connection belongs to another run. A pgx.Tx that has ended refuses calls too, but not one
// that began just before.
type guarded struct {
	pgx.Tx
	run *run
}

// enter reports whether a call may begin, which then ends with leave.
func (g guarded) enter() bool {
	g.run.used.Store(true)
	if !g.run.calls.TryRLock() {
		return false
	}
	g.run.wire.RLock()
	return true
}

func (g guarded) leave() {
	g.run.wire.RUnlock()
	g.run.calls.RUnlock()
}

// lend notes that the handler uses the connection after a call, until the returned function is called first, with the
// error of what was lent.
func (g guarded) lend() (returned func(error)) {
	g.run.open.Add(1)
	once := sync.OnceFunc(func() { g.run.open.Add(-1) })
	return func(err error) {
		g.run.note(err)
		once()
	}
}

// call makes a call of the transaction, unless it is closed to them.
func call[T any](g guarded, f func() (T, error)) (result T, err error) {
	if !g.enter() {
		return result, pgx.ErrTxClosed
	}
	defer g.leave()
	result, err = f()
	g.run.note(err)
	return result, err
}

// end ends a savepoint.
func (g guarded) end(ctx context.Context, how func(context.Context) error) error {
	_, err := call(g, func() (struct{}, error) { return struct{}{}, how(ctx) })
	return err
}

// Begin implements [pgx.Tx]: it makes a savepoint.
func (g guarded) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := call(g, func() (pgx.Tx, error) { return g.Tx.Begin(ctx) })
	if err != nil {
		return nil, err
	}
	return guarded{tx, g.run}, nil
}

// Commit implements [pgx.Tx] for savepoints.
func (g guarded) Commit(ctx context.Context) error { return g.end(ctx, g.Tx.Commit) }

// Rollback implements [pgx.Tx] for savepoints.
func (g guarded) Rollback(ctx context.Context) error { return g.end(ctx, g.Tx.Rollback) }

// Exec implements [pgx.Tx].
func (g guarded) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return call(g, func() (pgconn.CommandTag, error) { return g.Tx.Exec(ctx, query, args...) })
}

// Query implements [pgx.Tx].
func (g guarded) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if !g.enter() {
		return pgx.FailedBatchResults(&pgx.Batch{}, pgx.ErrTxClosed).Query() //nolint:sqlclosecheck // the caller's
	}
	defer g.leave()
	rows, err := g.Tx.Query(ctx, query, args...) //nolint:sqlclosecheck // the caller's
	if err != nil {
		g.run.note(err)
		return rows, err
	}
	return &lentRows{rows, g.lend()}, nil
}

// QueryRow implements [pgx.Tx].
func (g guarded) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if !g.enter() {
		return pgx.FailedBatchResults(&pgx.Batch{}, pgx.ErrTxClosed).QueryRow()
	}
	defer g.leave()
	return lentRow{g.Tx.QueryRow(ctx, query, args...), g.lend()}
}

// SendBatch implements [pgx.Tx].
func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !g.enter() {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	defer g.leave()
	return lentResults{g.Tx.SendBatch(ctx, b), g.lend()}
}

// CopyFrom implements [pgx.Tx].
func (g guarded) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource,
) (int64, error) {
	return call(g, func() (int64, error) { return g.Tx.CopyFrom(ctx, table, columns, rows) })
}

// LargeObjects implements [pgx.Tx]. Nobody tells when the handler is done with them: from now on no heartbeat uses the
// connection.
func (g guarded) LargeObjects() pgx.LargeObjects {
	if g.enter() {
		defer g.leave()
		g.lend()
	}
	return g.Tx.LargeObjects()
}

// Prepare implements [pgx.Tx].
func (g guarded) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	return call(g, func() (*pgconn.StatementDescription, error) { return g.Tx.Prepare(ctx, name, query) })
}

// The handler has the connection until it has read or closed what a call returned.
type (
	lentRows struct {
		pgx.Rows
		returned func(error)
	}
	lentRow struct {
		pgx.Row
		returned func(error)
	}
	lentResults struct {
		pgx.BatchResults
		returned func(error)
	}
)

// Next implements [pgx.Rows].
func (l *lentRows) Next() bool {
	more := l.Rows.Next()
	if !more {
		l.returned(l.Rows.Err())
	}
	return more
}

// Close implements [pgx.Rows].
func (l *lentRows) Close() {
	l.Rows.Close()
	l.returned(l.Rows.Err())
}

// Scan implements [pgx.Row].
func (l lentRow) Scan(dest ...any) (err error) {
	defer func() { l.returned(err) }()
	return l.Row.Scan(dest...)
}

// Close implements [pgx.BatchResults].
func (l lentResults) Close() (err error) {
	defer func() { l.returned(err) }()
	return l.BatchResults.Close()
}
