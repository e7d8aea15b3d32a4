package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An inbox is a Store whose runs settle in a transaction.
type inbox struct{ *Store }

var _ interface {
	dedupstore.Transactor
	dedupstore.Inspector
	dedupstore.Checker
} = inbox{}

// Inbox returns the form of the store that settles in the handler's transaction. The handler finds it by [Tx]. Claims
// are those of the store: both forms share the record of a key. Others wait for a handler's commit only: before it
// nothing writes the record of a claim, and nobody waits for that of a first run.
//
// The transaction is READ COMMITTED, whatever the server's default is: it locks no gaps, and sees what others commit.
// Where a handler decides by what it reads, it reads with FOR UPDATE.
func (s *Store) Inbox() dedupstore.Transactor { return inbox{s} }

// running is what the context of a run in an inbox carries.
type running struct{ tx *sql.Tx }

// A holder is the key of a context's value: the extra place of runs inside a handler over a pool.
type holder struct{ db *sql.DB }

// Tx returns the transaction that the inbox began before it called the handler. The inbox commits it when the handler
// returns nil, and rolls back when it returns an error. It panics outside a run of [Store.Inbox]. Prepare statements
// with it: those that were prepared on the pool are of another *sql.DB.
//
// Return the errors of its statements. After a deadlock, which ends the transaction, or a lock timeout the inbox rolls
// back what the handler has written before and after it, and calls the handler again. In MariaDB it does so after a
// deadlock whatever the handler returns; in MySQL such a run is parked as unknown. A lock timeout has to be returned,
// or panicked with.
//
// A handler that makes no statement for as long as a lease, or a minute if that is longer, loses its transaction: the
// server must not keep the locks of a host that has vanished. The run fails then, and may run again.
//
// Do not call Commit or Rollback, and use no statement that commits by itself, such as CREATE TABLE. The server refuses
// what the handler writes after it (error 1792), and the store notices when the handler has returned ([ErrTxEnded]) and
// parks the run as unknown, but what was committed stays. It does not notice if the process or the connection ends
// before that, or if the handler uses COMMIT AND CHAIN, COMMIT RELEASE, START TRANSACTION READ WRITE or SET autocommit:
// the message then runs again. Leave the session's variables and its database as they are.
func Tx(ctx context.Context) *sql.Tx {
	r, found := txctx.From[*running](ctx)
	if !found {
		panic(txctx.NoTx("mysqlstore: Tx outside a run of an inbox: give Store.Inbox() to the guard or consumer, and " +
			"pass the context that the handler got"))
	}
	return r.tx
}

const (
	// savepoint exists as long as the transaction of a claimed run does.
	savepoint = "oncemill_run"

	// leastSilence is how long a handler may make no statement at least, however short the lease is.
	leastSilence = time.Minute

	// mostSilence is the longest wait_timeout that a server takes.
	mostSilence = 365 * 24 * time.Hour
)

// A calling is one call of InTx.
type calling struct {
	*Store
	apart map[*sqlstore.Member]bool // first runs that cannot take part
	sift  bool                      // there are more of these
	at    func() time.Time          // the server's, since records were read or made
}

// A run is one transaction of an inbox.
type run struct {
	*calling
	*sqlstore.Transaction
	tx        *sql.Tx
	committed bool
}

// InTx implements [dedupstore.Transactor].
func (s inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	err := s.ready(ctx)
	if err == nil && !s.TakesFirst() {
		_, err = dedupstore.ClaimsOf(runs)
	}
	if err != nil {
		return nil, err
	}
	c := &calling{Store: s.Store, apart: map[*sqlstore.Member]bool{}}
	return sqlstore.InTx(ctx, c, s.config.Logger, runs, work)
}

// Within implements [sqlstore.Database].
func (c *calling) Within(
	ctx context.Context, t *sqlstore.Transaction, work func(context.Context, sqlstore.Tx) error,
) error {
	taken, more, err := c.place(ctx)
	if err != nil {
		return err
	}
	defer func() { <-taken }()
	beginning, cancel := t.Beginning(ctx)
	defer cancel()
	if len(t.Claimed) > 0 {
		if err := t.Look(beginning, c); err != nil {
			return err
		}
	}
	if err := c.siftFirsts(beginning, t); err != nil {
		return err
	}
	conn, err := c.db.Conn(beginning)
	if err != nil {
		return c.failed("begin", cmp.Or(context.Cause(beginning), err))
	}
	defer conn.Close()
	r := &run{calling: c, Transaction: t}
	defer func() {
		if !r.committed {
			restore(ctx, conn)
		}
	}()
	return conn.Raw(func(raw any) (err error) {
		return r.on(context.WithValue(ctx, holder{c.db}, more), beginning, raw, work)
	})
}

// on runs work in the transaction, on a connection. Beginning is ctx until the work begins.
func (r *run) on(ctx, beginning context.Context, raw any, work func(context.Context, sqlstore.Tx) error) error {
	tx, over, err := transactionOn(raw)
	if err != nil {
		return r.failed("begin", err)
	}
	r.tx = tx
	defer over()
	defer func() {
		if !r.committed && rollBack(ctx, tx) != nil { // as when the handler has left rows open: the server does it then
			_ = raw.(driver.Conn).Close()
		}
	}()
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // the end of the transaction is the inbox's
	defer end()
	begins := context.AfterFunc(beginning, end) // but a server that stands still must not hold up its beginning
	silence := min(max(r.Stands.Claim.Lease+time.Second-1, leastSilence), mostSilence)
	_, err = tx.ExecContext(life, fmt.Sprintf(setUp, silence/time.Second))
	if err == nil {
		err = r.mark(life)
	}
	switch {
	case !begins():
		return r.failed("begin", context.Cause(beginning))
	case errors.Is(err, sqlstore.ErrTaken):
		return err
	case err != nil:
		return r.failed("begin", err)
	}
	return work(txctx.With(txctx.With(ctx, tx), &running{tx}), r)
}

// Undo implements [sqlstore.Tx].
func (r *run) Undo(ctx context.Context, failure error) error {
	return r.undone(ctx, failure, r.stands(ctx))
}

// Commit implements [sqlstore.Tx].
func (r *run) Commit(ctx context.Context) error {
	err := r.settle(ctx)
	switch {
	case errors.Is(err, dedupstore.ErrClaimLost):
		return sqlstore.ErrRefused
	case err != nil:
		return r.undone(ctx, nil, err)
	}
	err = r.commit(ctx, r.tx)
	r.committed = err == nil
	if r.committed || conflicts(err) {
		return err
	}
	return &sqlstore.Unanswered{Err: err}
}

// Load implements [sqlstore.Database]. A transaction has the record locked as long as it may still commit.
func (c *calling) Load(
	ctx context.Context, claimed []*sqlstore.Member, unanswered bool,
) (found map[string]*sqlstore.Row, now time.Time, err error) {
	return c.read(ctx, c.db, claimed, unanswered)
}

// Refused implements [sqlstore.Database].
func (*calling) Refused(err error) bool { return conflicts(err) }

// Full implements [sqlstore.Database].
func (*calling) Full(err error) error { return noRoom(err) }

// read reads the records of runs, and locks them.
func (c *calling) read(ctx context.Context, q sqlstore.Querier, members []*sqlstore.Member, locks bool) (
	found map[string]*sqlstore.Row, now time.Time, err error,
) {
	start, ids, end := time.Now(), make([]string, len(members)), ""
	for i, m := range members {
		ids[i] = m.ID
	}
	if locks {
		end = " FOR UPDATE"
	}
	found, now, err = c.load(ctx, q, ids, end)
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = c.failed("look at the record", err)
	case len(found) > 0:
		c.at = func() time.Time { return now.Add(time.Since(start)) }
	}
	return found, now, err
}

// place waits until one more handler may run, and returns the place that it takes, and the extra one of runs inside it.
// While handlers have all places, each may wait for a run inside itself, so there is one more for these. If each
// handler had one of its own, heartbeats would find no connection. The run that has the extra place has another for
// runs inside itself, or it would wait for itself.
func (s *Store) place(ctx context.Context) (taken, more chan struct{}, err error) {
	places := s.handlers()
	if places == nil {
		places = make(chan struct{}, 1)
	}
	extra, _ := ctx.Value(holder{s.db}).(chan struct{}) // nil outside of a handler
	select {
	case places <- struct{}{}:
		return places, s.extra, nil
	case extra <- struct{}{}:
		return extra, make(chan struct{}, 1), nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

// mark leaves in a transaction what is gone when it has ended: the records of first runs, or a savepoint.
func (r *run) mark(ctx context.Context) error {
	made, err := r.makeFirsts(ctx)
	switch {
	case made || err != nil:
		return err
	case len(r.Claimed) == 0:
		return sqlstore.ErrTaken
	}
	// without this one the transaction begins with the handler's first statement, which may be another such
	if _, err := r.tx.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	_, err = r.tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
	return err
}

// stands makes sure that a transaction is the one that was begun.
func (r *run) stands(ctx context.Context) error {
	for _, m := range r.Firsts {
		if m.Claim.Fence != 0 {
			return r.isThere(ctx, m)
		}
	}
	_, err := r.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
	return err
}

const (
	// setUp makes the session READ ONLY, all but its next transaction, which is READ COMMITTED: what a handler writes
	// after a COMMIT or CREATE TABLE is refused, and a deadlock can be told from these. Without autocommit what it
	// writes after a deadlock is in a transaction again. MariaDB passes over the comments of MySQL 5.7 and later, and
	// has the old names of the variables.
	setUp = "SET @oncemill_wait = @@SESSION.wait_timeout, @oncemill_completion = @@SESSION.completion_type, " +
		"SESSION wait_timeout = %d, SESSION completion_type = 'NO_CHAIN', SESSION " + accessMode + " = 1, " +
		"/*!80003 @@transaction_read_only */ /*M! @@tx_read_only */ = 0, " +
		"/*!80003 @@transaction_isolation */ /*M! @@tx_isolation */ = 'READ-COMMITTED', autocommit = 0"

	// tearDown gives the session back what setUp took, and commits the transaction if there still is one.
	tearDown = "SET autocommit = 1, SESSION " + accessMode + " = 0, SESSION wait_timeout = @oncemill_wait, " +
		"SESSION completion_type = @oncemill_completion"

	// chained is true if the session does not tell any more what has ended its transaction.
	chained = "(@@autocommit OR @@completion_type <> 'NO_CHAIN')"

	accessMode = "/*!80003 transaction_read_only */ /*M! tx_read_only */"
)

// undone returns why a run's transaction was rolled back: because of the handler's failure, or of err, with which the
// server answered the first statement after it. That its mark is gone proves nothing, whatever the handler returned:
// both a commit and a deadlock remove it, and there may have been a commit after the deadlock.
func (r *run) undone(ctx context.Context, failure, err error) error {
	switch gone := number(err) == errNoSavepoint || errors.Is(err, errGone); {
	case gone && (r.mariadb.Load() || conflicts(failure)) && r.deadlocked(ctx): // nobody has tried it on MySQL
		return joined(errDeadlocked, failure)
	case gone, errors.Is(err, sql.ErrTxDone): // another run could make the effects once more
		return &sqlstore.Ended{Err: joined(ErrTxEnded, failure)}
	case failure != nil:
		return failure
	}
	return r.failed("settle", err)
}

// deadlocked reports whether the server has rolled a transaction back that is gone, as by a deadlock, and nothing was
// committed since: the next one is READ WRITE as that was. After any statement that ends a transaction, the next one is
// READ ONLY as the session is, unless the statement says otherwise, as COMMIT AND CHAIN does.
func (r *run) deadlocked(ctx context.Context) bool {
	var chains bool // the next one after a commit is as that was, too
	err := r.tx.QueryRowContext(ctx, "SELECT "+chained).Scan(&chains)
	if err != nil || chains {
		return false
	}
	_, err = r.tx.ExecContext(ctx, "DELETE FROM `"+r.config.Table+"` WHERE id = ''") // no record
	return err == nil
}

// joined adds the failure of a handler, if there is one, to what became of its transaction.
func joined(err, failure error) error {
	if failure == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, failure)
}

// restore gives a connection without a transaction its session back, or else closes it.
func restore(ctx context.Context, conn *sql.Conn) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlstore.EndTimeout)
	defer cancel()
	if _, err := conn.ExecContext(bounded, tearDown); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// rollBack takes EndTimeout at most. After an error the connection has to be closed: what restores the session would
// commit.
func rollBack(ctx context.Context, tx *sql.Tx) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlstore.EndTimeout)
	defer cancel()
	_, err := tx.ExecContext(bounded, "ROLLBACK")
	return err
}

// settle writes the outcomes. Its first statement finds out whether the transaction is the one that was begun. It
// returns ErrClaimLost if a claim does not hold any more.
func (r *run) settle(ctx context.Context) error {
	finished, err := r.finishFirsts(ctx)
	if err == nil && !finished {
		err = r.stands(ctx)
	}
	switch {
	case err != nil || len(r.Claimed) == 0:
		return err
	case len(r.Claimed) == 1: // one statement does
		return r.finish(ctx, r.Claimed[0])
	}
	found, now, err := r.read(ctx, r.tx, r.Claimed, true)
	if err != nil {
		return err
	}
	if v, err := sqlstore.Judge(r.Claimed, found, now); err != nil || v != sqlstore.Open {
		return cmp.Or(err, dedupstore.ErrClaimLost)
	}
	records := make([]*sqlstore.Row, len(r.Claimed))
	for i, m := range r.Claimed {
		next, err := m.Row.Settle(m.Claim, m.Finish, r.at())
		if err != nil {
			return err
		}
		records[i], m.Row.Stored = m.Row, *next
	}
	return r.save(ctx, r.tx, records)
}

// finish writes the outcome if the claim still holds, and else returns ErrClaimLost.
func (r *run) finish(ctx context.Context, m *sqlstore.Member) error {
	now := r.at()
	m.Row.Expires = now.Add(time.Hour) // the statement looks at what heartbeats have made of it
	next, err := m.Row.Settle(m.Claim, m.Finish, now)
	if err != nil {
		return err
	}
	c, o, blobs := &m.Claim, &next.Outcome, blobsOf(next)
	b := fmt.Appendf(nil, "UPDATE `%s` SET ", r.config.Table)
	for _, set := range [...]struct {
		column string
		value  any
	}{
		{"lease_until", sqlstore.MicrosAt(next.Lease)}, {"expires_at", sqlstore.MicrosAt(next.Expires)},
		{"ended_at", sqlstore.MicrosAt(next.Ended)},
		{"settled", strings.Join(next.Settled, ",")}, {"decided", next.Decided}, {"kind", string(o.Kind)},
		{"exhausted", o.Exhausted}, {"truncated", o.Truncated}, {"reason", o.Reason},
		{"result", blobs[0].inline()}, {"stubs", blobs[1].inline()}, {"contents", blobs[2].inline()},
		{"state", string(next.State)},
	} {
		b = append(b, set.column+" = "...)
		b = append(sqlstore.AppendRow(b, set.value), ", "...)
	}
	// The ID stands alone: MariaDB finds no row by a part of a row comparison.
	b = append(sqlstore.AppendRow(append(b[:len(b)-2], " WHERE id = "...), m.ID), " AND (owner, fence, state) = "...)
	b = sqlstore.AppendRow(b, c.Owner, c.Fence, string(dedupstore.Running))
	b = append(b, " AND expires_at > "+sqlstore.MySQLNow...)
	if m.First != nil {
		b = append(append([]byte(noWait), b...), unchained...)
	}
	switch n, err := sqlstore.Change(ctx, r.tx, string(b)); {
	case err != nil:
		return err
	case n == 0:
		return dedupstore.ErrClaimLost
	}
	return r.saveLarge(ctx, r.tx, m.ID, next)
}

// commit is a statement, because that has a context.
func commit(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, tearDown)
	return err
}
