package pgstore

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Tx returns the inbox's transaction for the handler. It begins with the handler's first statement, in the same round trip if that
// is an Exec with arguments and the pool prepares statements; should the connection be lost in it, the statement is made once more on
// another one. It begins before the handler under a policy that parks, and where the handler is called again because PostgreSQL refused
// its transaction.
//
// Begin makes a savepoint in it. Commit and Rollback return ErrInboxCommits: the inbox does that when the handler has returned. It is
// not to be used by several goroutines at once, nor afterwards: calls get pgx.ErrTxClosed then, and one that is under way when the
// handler returns makes the run fail. Its Conn is the pool's connection itself, and its LargeObjects work on that, which nothing guards:
// what is kept of them after the run writes into transactions of others.
//
// It panics outside a run of [Store.Inbox].
func Tx(ctx context.Context) pgx.Tx {
	s, ok := txctx.From[*pgxSession](ctx)
	if !ok {
		panic("pgstore: Tx outside a run of Store.Inbox: pass the context that the handler got, and make the guard over Store.Inbox()")
	}
	return s.tx
}

// A pgxSession is a transaction of pgx on a connection of its own.
type pgxSession struct {
	run   *run
	conn  *pgxpool.Conn // nil: one was lost, and none could be had in its place
	tx    inboxTx
	late  *lateTx // nil: it has begun before the handler
	begun bool    // the server has told so
	over  bool    // the commit was sent
	cut   bool    // the handler has left a first statement under way, or called Conn during it

	ended  atomic.Bool // a first statement that is still under way gives the connection back
	giving sync.Mutex  // conn back to the pool
}

// taken returns the connection, if there is one, for the caller to give back.
func (p *pgxSession) taken() *pgxpool.Conn {
	p.giving.Lock()
	defer p.giving.Unlock()
	conn := p.conn
	p.conn = nil
	if conn != nil && p.cut { // pgx may not know yet: the next user would find it dead
		_ = conn.Conn().Close(context.Background())
	}
	return conn
}

// sever breaks the connection that a first statement is using, which only that may give back. Unless the run is as ended as the
// caller takes it to be: it may be another's by then.
func (p *pgxSession) sever(ended bool) {
	p.giving.Lock()
	defer p.giving.Unlock()
	if p.ended.Load() != ended {
		return
	}
	if p.cut = true; p.conn != nil {
		_ = p.conn.Conn().PgConn().Conn().Close()
	}
}

// giveBack gives the connection back, if there is one.
func (p *pgxSession) giveBack() {
	if conn := p.taken(); conn != nil {
		conn.Release()
	}
}

// beginPgx begins a transaction and marks it, in one round trip, and looks whether there is something to do for it. Where this
// program has just been granted the claim there is, and the transaction begins with the handler's first statement.
func (s *Store) beginPgx(ctx context.Context, r *run) (session, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if r.ours {
		p := &pgxSession{run: r, conn: conn}
		p.late = newLateTx(ctx, p)
		p.tx = inboxTx{guarded{p.late, new(uses)}}
		return p, nil
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: s.sql.open})
	if err == nil {
		err = r.look(ctx, func(ctx context.Context, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		})
	}
	if err != nil {
		rollback(ctx, conn)
		conn.Release()
		return nil, err
	}
	return &pgxSession{run: r, conn: conn, tx: inboxTx{guarded{opened{tx}, new(uses)}}, begun: true}, nil
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

func (p *pgxSession) commit(ctx context.Context, s *settling) error {
	if !p.tx.uses.close() {
		return errBusy
	}
	if p.late != nil {
		_, err := p.late.begin(ctx) // unless the handler has sent something
		if err != nil && !p.late.conn.IsClosed() {
			return fmt.Errorf("%w: %w", errNotBegun, err)
		}
	}
	if p.conn == nil || p.conn.Conn().IsClosed() {
		return errLost
	}
	conn := p.conn.Conn()
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
	if sql := &p.run.store.sql; s.plain() && s.foreseen(p.run.claim) {
		batch.Queue(callIndexes)
		batch.Queue(sql.finish, p.run.token, s.id, s.owner, s.fence, s.retention, s.result)
	} else {
		batch.Queue(sql.settleIn, s.args(p.run.token)...)
	}
	var tag pgconn.CommandTag
	batch.Queue("commit").Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	p.over = true
	err := conn.SendBatch(ctx, &batch).Close()
	if err == nil && tag.String() != "COMMIT" {
		err = ErrTxAborted
	}
	return err
}

func (p *pgxSession) unbegun() error {
	if p.late == nil || p.cut || !p.late.away || p.late.doubt && p.run.claim.Returned >= maxDoubts {
		return nil
	}
	return p.late.err
}

func (p *pgxSession) end(ctx context.Context) (open bool) {
	alone := p.tx.uses.close()
	p.ended.Store(true)
	if p.late != nil && !p.late.beginning.CompareAndSwap(false, true) { // it gives the connection back
		p.sever(true)
		return true
	}
	conn := p.taken()
	if conn == nil {
		return true
	}
	if !alone { // a call is under way, which fails now: pgx may panic where a pool closes the connection under it
		cut := conn.Hijack().PgConn()
		_ = cut.Conn().Close()
		return !p.tx.uses.await(ctx) || p.over || !p.begun || cut.TxStatus() != idle // which the call would change under us
	}
	open = p.over || !p.begun || !left(conn.Conn())
	rollback(ctx, conn)
	conn.Release()
	return open
}

// left reports whether a connection is not in the transaction any more that the inbox began, also if it is in another one. One in
// which a statement failed cannot be asked.
func left(conn *pgx.Conn) bool {
	status := conn.PgConn().TxStatus() // of a connection that is lost: the last that it had
	if status != inTx || conn.IsClosed() {
		return status == idle
	}
	bounded, cancel := context.WithTimeout(context.Background(), endTimeout)
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
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, _ = conn.Exec(bounded, "rollback")
}

// An inboxTx is the transaction that a handler gets.
type inboxTx struct{ guarded }

// Commit implements [pgx.Tx].
func (inboxTx) Commit(context.Context) error { return ErrInboxCommits }

// Rollback implements [pgx.Tx].
func (inboxTx) Rollback(context.Context) error { return ErrInboxCommits }

// A guarded transaction, or savepoint in it, cannot be used any more when the inbox settles: what came after the commit would be
// committed by itself, and later the connection is another's.
type guarded struct {
	opener
	uses *uses
}

// Uses are the calls of a transaction that are under way, until it is closed to new ones.
type uses struct{ n atomic.Int32 }

// enter reports whether a call may begin, which is to leave.
func (u *uses) enter() bool {
	for {
		n := u.n.Load()
		if n < 0 {
			return false
		}
		if u.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (u *uses) leave() { u.n.Add(-1) }

// close lets no more calls begin, and reports whether none is under way.
func (u *uses) close() bool { return u.n.Or(math.MinInt32)&math.MaxInt32 == 0 }

// await waits until the calls that are under way have left, and reports whether they did. Those whose connection was closed leave
// soon, unless what the handler gave them does not return, such as the source of a CopyFrom.
func (u *uses) await(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 50 * time.Millisecond}
	for u.n.Load() != math.MinInt32 {
		if !pace.Sleep(bounded, pauses.Next()) {
			return false
		}
	}
	return true
}

const leaveTimeout = time.Second

// An opener has a transaction, or begins it.
type opener interface {
	begin(ctx context.Context) (pgx.Tx, error)
	now() (pgx.Tx, error)
	exec(ctx context.Context, query string, args []any) (pgconn.CommandTag, error)
	raw() *pgx.Conn
}

// An opened transaction, or savepoint, has begun before.
type opened struct{ tx pgx.Tx }

func (o opened) begin(context.Context) (pgx.Tx, error) { return o.tx, nil }

func (o opened) now() (pgx.Tx, error) { return o.tx, nil }

func (o opened) exec(ctx context.Context, query string, args []any) (pgconn.CommandTag, error) {
	return o.tx.Exec(ctx, query, args...)
}

func (o opened) raw() *pgx.Conn { return o.tx.Conn() }

// open is for a call that leaves when it returns, if there is no error.
func (g guarded) open(ctx context.Context) (pgx.Tx, error) {
	if !g.uses.enter() {
		return nil, pgx.ErrTxClosed
	}
	tx, err := g.begin(ctx)
	if err != nil {
		g.uses.leave()
	}
	return tx, err
}

// Begin implements [pgx.Tx]: it makes a savepoint.
func (g guarded) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := g.open(ctx)
	if err != nil {
		return nil, err
	}
	defer g.uses.leave()
	if tx, err = tx.Begin(ctx); err != nil {
		return nil, err
	}
	return guarded{opened{tx}, g.uses}, nil
}

// Commit implements [pgx.Tx] for savepoints.
func (g guarded) Commit(ctx context.Context) error {
	tx, err := g.open(ctx)
	if err != nil {
		return err
	}
	defer g.uses.leave()
	return tx.Commit(ctx)
}

// Rollback implements [pgx.Tx] for savepoints.
func (g guarded) Rollback(ctx context.Context) error {
	tx, err := g.open(ctx)
	if err != nil {
		return err
	}
	defer g.uses.leave()
	return tx.Rollback(ctx)
}

// Exec implements [pgx.Tx].
func (g guarded) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if !g.uses.enter() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	defer g.uses.leave()
	return g.exec(ctx, query, args)
}

// Query implements [pgx.Tx].
func (g guarded) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	tx, err := g.open(ctx)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query() //nolint:sqlclosecheck // the caller's
	}
	defer g.uses.leave()
	return tx.Query(ctx, query, args...) //nolint:sqlclosecheck // the caller's
}

// QueryRow implements [pgx.Tx].
func (g guarded) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	tx, err := g.open(ctx)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	defer g.uses.leave()
	return tx.QueryRow(ctx, query, args...)
}

// SendBatch implements [pgx.Tx].
func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	tx, err := g.open(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer g.uses.leave()
	return tx.SendBatch(ctx, b)
}

// CopyFrom implements [pgx.Tx].
func (g guarded) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	tx, err := g.open(ctx)
	if err != nil {
		return 0, err
	}
	defer g.uses.leave()
	return tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements [pgx.Tx].
func (g guarded) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	tx, err := g.open(ctx)
	if err != nil {
		return nil, err
	}
	defer g.uses.leave()
	return tx.Prepare(ctx, name, query)
}

// LargeObjects implements [pgx.Tx].
func (g guarded) LargeObjects() pgx.LargeObjects {
	err := pgx.ErrTxClosed
	if g.uses.enter() {
		defer g.uses.leave()
		var tx pgx.Tx
		if tx, err = g.now(); err == nil {
			return tx.LargeObjects()
		}
	}
	var none pgx.Batch
	none.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&none, err).Tx().LargeObjects() // of a transaction that is closed
}

// Conn implements [pgx.Tx]. What is done on it during the run is in the transaction, or fails.
func (g guarded) Conn() *pgx.Conn {
	if g.uses.enter() {
		defer g.uses.leave()
		_, _ = g.now()
	}
	return g.raw()
}
