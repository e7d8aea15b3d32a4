package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
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
// back what the handler has written before and after it, and calls the handler again. After a deadlock it does so
// whatever the handler returns; a lock timeout has to be returned, or panicked with.
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

	// leastCommit is how long a settlement and its commit may take at least, however short the lease is.
	leastCommit = time.Second

	// endTimeout bounds a rollback. A connection that does not answer is closed, which rolls back too.
	endTimeout = 5 * time.Second
)

// InTx implements [dedupstore.Transactor].
func (s inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	t, err := transactionOf(runs, s.TakesFirst())
	if err != nil {
		return nil, err
	}
	switch err := s.repeat(ctx, t, work); {
	case errors.Is(err, errTaken):
		lost := false // the answer to a commit
		for _, m := range t.firsts {
			lost = lost || m.claim.Fence != 0
			m.claim.Fence = 0
		}
		answers, err := s.answers(ctx, t.members)
		if lost {
			err = nil // of nothing that is known not to be committed
		}
		return answers, err
	case err != nil:
		return nil, err
	case slices.ContainsFunc(t.firsts, func(m *member) bool { return m.claim.Fence == 0 }):
		answers, _ := s.answers(ctx, t.members) // what is committed is: a claim finds out what could not be answered
		return answers, nil
	}
	return nil, nil
}

// repeat does work in transactions until the server does not refuse one because of others.
func (s *Store) repeat(ctx context.Context, t *transaction, work dedupstore.TxWork) error {
	pauses := pace.Pace{Shortest: 2 * time.Millisecond, Longest: 100 * time.Millisecond}
	var conflict *dedupstore.ConflictError
	for range sqlstore.Tries {
		if ctx.Err() != nil {
			break
		}
		err := s.once(ctx, t, work)
		if errors.Is(err, ErrTxEnded) {
			s.config.Logger.ErrorContext(ctx, "mysqlstore: the inbox's transaction ended before its run; what was "+
				"committed has no outcome", "key", t.members[0].claim.Key.String(), "error", err)
			return err
		}
		if !conflicts(err) {
			return noRoom(err)
		}
		conflict = &dedupstore.ConflictError{Err: err}
		pace.Sleep(ctx, pace.Jitter(pauses.Next()))
	}
	if conflict != nil {
		return conflict
	}
	return context.Cause(ctx)
}

// A transaction is what the inbox is asked to do in one.
type transaction struct {
	members []member
	claims  []dedupstore.Claim // that were made before
	claimed []*member          // of these
	firsts  []*member          // the others
	sift    bool               // some of them cannot take part
	at      func() time.Time   // the server's
}

// A member is a run of a transaction.
type member struct {
	claim  dedupstore.Claim // of a first run without fence until the transaction has made its record
	first  *claiming        // nil: the claim was made before
	apart  bool             // a first run that cannot take part
	record *row             // before its settlement
	finish dedupstore.Settlement
}

func transactionOf(runs []dedupstore.TxRun, takesFirst bool) (*transaction, error) {
	err := dedupstore.ValidateRuns(runs)
	if !takesFirst {
		_, err = dedupstore.ClaimsOf(runs)
	}
	if err != nil {
		return nil, err
	}
	t := &transaction{members: make([]member, len(runs))}
	for i := range runs {
		r, m := &runs[i], &t.members[i]
		if r.First == nil {
			m.claim = r.Claim
			t.claims, t.claimed = append(t.claims, r.Claim), append(t.claimed, m)
			continue
		}
		m.first = newClaiming(r.First, nil)
		m.claim = dedupstore.Claim{Key: r.First.Key, Lease: r.First.Lease}
		t.firsts = append(t.firsts, m)
	}
	return t, nil
}

// takes returns the claims of the runs that take part.
func (t *transaction) takes() []dedupstore.Claim {
	claims := make([]dedupstore.Claim, 0, len(t.members))
	for i := range t.members {
		if c := &t.members[i].claim; c.Fence != 0 {
			claims = append(claims, *c)
		}
	}
	return claims
}

// ends notes how the runs that take part end.
func (t *transaction) ends(settlements []dedupstore.Settlement) {
	for i := range t.members {
		if m := &t.members[i]; m.claim.Fence != 0 {
			m.finish, settlements = settlements[0], settlements[1:]
		}
	}
}

// once runs work in one transaction.
func (s *Store) once(ctx context.Context, t *transaction, work dedupstore.TxWork) error {
	if settled, err := s.prepare(ctx, t); settled || err != nil {
		return err
	}
	taken, more, err := s.place(ctx)
	if err != nil {
		return err
	}
	defer func() { <-taken }()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.failed("begin", err)
	}
	defer conn.Close()
	inside, restored := context.WithValue(ctx, holder{s.db}, more), false
	defer func() {
		if !restored {
			restore(ctx, conn)
		}
	}()
	return conn.Raw(func(raw any) (err error) {
		restored, err = s.on(inside, raw, t, work)
		return err
	})
}

// on runs work in a transaction on a connection. It reports whether that has its session back.
func (s *Store) on(
	ctx context.Context, raw any, t *transaction, work dedupstore.TxWork,
) (restored bool, err error) {
	tx, over, err := transactionOn(raw)
	if err != nil {
		return false, s.failed("begin", err)
	}
	defer over()
	defer func() {
		if !restored { // also when work panics
			if rollBack(ctx, tx) != nil { // as when the handler has left rows open: the server rolls back then
				_ = raw.(driver.Conn).Close()
			}
		}
	}()
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // the end of the transaction is the inbox's
	defer end()
	begins := context.AfterFunc(ctx, end) // but a server that stands still must not hold up its beginning
	lease := t.members[0].claim.Lease
	silence := min(max(lease+time.Second-1, leastSilence), mostSilence)
	_, err = tx.ExecContext(life, fmt.Sprintf(setUp, silence/time.Second))
	if err == nil {
		err = s.mark(life, tx, t)
	}
	switch {
	case !begins():
		return false, context.Cause(ctx)
	case errors.Is(err, errTaken):
		return false, err
	case err != nil:
		return false, s.failed("begin", err)
	}
	claims := t.takes()
	settlements, failure := work(txctx.With(txctx.With(ctx, tx), &running{tx}), claims)
	limit := max(lease, leastCommit)
	if failure != nil {
		limit = endTimeout
	} else {
		failure = dedupstore.ValidateFinishes(settlements, len(claims))
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if failure != nil {
		return false, s.undone(bounded, tx, failure, s.stands(bounded, tx, t))
	}
	t.ends(settlements)
	switch err = s.settleIn(bounded, tx, t); {
	case errors.Is(err, dedupstore.ErrClaimLost): // only a copy of this transaction may have settled
		rollBack(ctx, tx)
		if settled, err := s.prepare(bounded, t); settled || err != nil {
			return false, err
		}
		return false, dedupstore.ErrClaimLost
	case err != nil:
		return false, s.undone(bounded, tx, nil, err)
	}
	err = s.commit(bounded, tx)
	if err == nil || conflicts(err) {
		return err == nil, err
	}
	rollBack(ctx, tx)
	if len(t.claims) == 0 {
		return false, errTaken
	}
	return false, s.resolve(context.WithoutCancel(ctx), t.claims[0], err)
}

// prepare looks at what there is before a transaction. It reports whether all runs were settled before.
func (s *Store) prepare(ctx context.Context, t *transaction) (settled bool, err error) {
	if len(t.claims) > 0 {
		records, at, err := s.unsettled(ctx, s.db, t.claims, "")
		switch {
		case err != nil:
			return false, err
		case records == nil && len(t.firsts) > 0:
			return false, dedupstore.ErrClaimLost
		case records == nil:
			return true, nil
		}
		t.at = at
		for i, m := range t.claimed {
			m.record = records[i]
		}
	}
	return false, s.siftFirsts(ctx, t)
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
func (s *Store) mark(ctx context.Context, tx *sql.Tx, t *transaction) error {
	made, err := s.makeFirsts(ctx, tx, t)
	switch {
	case made || err != nil:
		return err
	case len(t.claims) == 0:
		return errTaken
	}
	// without this one the transaction begins with the handler's first statement, which may be another such
	if _, err := tx.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
	return err
}

// stands makes sure that a transaction is the one that was begun.
func (s *Store) stands(ctx context.Context, tx *sql.Tx, t *transaction) error {
	for _, m := range t.firsts {
		if m.claim.Fence != 0 {
			return s.isThere(ctx, tx, m)
		}
	}
	_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
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
func (s *Store) undone(ctx context.Context, tx *sql.Tx, failure, err error) error {
	switch gone := number(err) == errNoSavepoint || errors.Is(err, errGone); {
	case gone && (s.mariadb.Load() || conflicts(failure)) && s.deadlocked(ctx, tx): // nobody has tried it on MySQL
		return joined(errDeadlocked, failure)
	case gone, errors.Is(err, sql.ErrTxDone): // another run could make the effects once more
		return joined(ErrTxEnded, failure)
	case failure != nil:
		return failure
	}
	return s.failed("settle", err)
}

// deadlocked reports whether the server has rolled a transaction back that is gone, as by a deadlock, and nothing was
// committed since: the next one is READ WRITE as that was. After any statement that ends a transaction, the next one is
// READ ONLY as the session is, unless the statement says otherwise, as COMMIT AND CHAIN does.
func (s *Store) deadlocked(ctx context.Context, tx *sql.Tx) bool {
	var chains bool // the next one after a commit is as that was, too
	err := tx.QueryRowContext(ctx, "SELECT "+chained).Scan(&chains)
	if err != nil || chains {
		return false
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM `"+s.config.Table+"` WHERE id = ''") // no record
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
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if _, err := conn.ExecContext(bounded, tearDown); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// unsettled returns the records of claims whose runs have not been settled, and what tells the server's time from then
// on. Without records the error is nil if the outcomes of all these owners are there, and ErrClaimLost if a claim does
// not hold.
func (s *Store) unsettled(
	ctx context.Context, q sqlstore.Querier, claims []dedupstore.Claim, more string,
) (records []*row, at func() time.Time, err error) {
	start := time.Now()
	ids := make([]string, len(claims))
	for i, c := range claims {
		ids[i] = idOf(c.Key.String())
	}
	found, now, err := s.load(ctx, q, ids, more)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case err != nil:
		return nil, nil, s.failed("look at the record", err)
	}
	for i, c := range claims {
		rec := found[ids[i]]
		switch {
		case rec == nil:
			return nil, nil, dedupstore.ErrClaimLost
		case rec.err != nil:
			return nil, nil, rec.err
		}
		finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: c.Retention}
		next, err := rec.Settle(c, finish, now)
		if err != nil {
			return nil, nil, err
		}
		if next != nil {
			records = append(records, rec)
		}
	}
	if records != nil && len(records) < len(claims) {
		return nil, nil, dedupstore.ErrClaimLost
	}
	return records, func() time.Time { return now.Add(time.Since(start)) }, nil
}

// rollBack takes endTimeout at most. After an error the connection has to be closed: what restores the session would
// commit.
func rollBack(ctx context.Context, tx *sql.Tx) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err := tx.ExecContext(bounded, "ROLLBACK")
	return err
}

// settleIn writes the outcomes. Its first statement finds out whether the transaction is the one that was begun. It
// returns ErrClaimLost if a claim does not hold any more.
func (s *Store) settleIn(ctx context.Context, tx *sql.Tx, t *transaction) error {
	finished, err := s.finishFirsts(ctx, tx, t)
	if err == nil && !finished {
		err = s.stands(ctx, tx, t)
	}
	switch {
	case err != nil || len(t.claims) == 0:
		return err
	case len(t.claims) == 1: // one statement does
		return s.finish(ctx, tx, t.claimed[0], t.at())
	}
	records, at, err := s.unsettled(ctx, tx, t.claims, " FOR UPDATE")
	if err != nil {
		return err
	}
	if records == nil {
		return dedupstore.ErrClaimLost
	}
	for i, rec := range records {
		next, err := rec.Settle(t.claims[i], t.claimed[i].finish, at())
		if err != nil {
			return err
		}
		rec.Stored = *next
	}
	return s.save(ctx, tx, records)
}

// finish writes the outcome if the claim still holds, and else returns ErrClaimLost.
func (s *Store) finish(ctx context.Context, tx *sql.Tx, m *member, now time.Time) error {
	c, rec := &m.claim, m.record
	rec.Expires = now.Add(time.Hour) // the statement looks at what heartbeats have made of it
	next, err := rec.Settle(*c, m.finish, now)
	if err != nil {
		return err
	}
	o, id, blobs := &next.Outcome, idOf(c.Key.String()), blobsOf(next)
	b := fmt.Appendf(nil, "UPDATE `%s` SET ", s.config.Table)
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
	b = append(sqlstore.AppendRow(append(b[:len(b)-2], " WHERE id = "...), id), " AND (owner, fence, state) = "...)
	b = sqlstore.AppendRow(b, c.Owner, c.Fence, string(dedupstore.Running))
	b = append(b, " AND expires_at > "+sqlstore.MySQLNow...)
	if m.first != nil {
		b = append(append([]byte(noWait), b...), unchained...)
	}
	switch n, err := sqlstore.Change(ctx, tx, string(b)); {
	case err != nil:
		return err
	case n == 0:
		return dedupstore.ErrClaimLost
	}
	return s.saveLarge(ctx, tx, id, next)
}

// commit is a statement, because that has a context.
func commit(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, tearDown)
	return err
}

// resolve reads what became of a transaction whose commit ended in an error, until a record tells, at most for a lease.
// The transaction has the record locked as long as it may still commit, so the reading waits for its end.
func (s *Store) resolve(ctx context.Context, c dedupstore.Claim, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, c.Lease)
	defer cancel()
	pauses := pace.Pace{Shortest: 10 * time.Millisecond, Longest: time.Second}
	for {
		records, _, err := s.unsettled(ctx, s.db, []dedupstore.Claim{c}, " FOR UPDATE")
		switch {
		case records != nil:
			return fmt.Errorf("mysqlstore: the transaction was not committed: %w", cause)
		case err == nil, errors.Is(err, dedupstore.ErrClaimLost):
			return err
		case !pace.Sleep(ctx, pace.Jitter(pauses.Next())):
			return &dedupstore.UndecidedError{Err: errors.Join(cause, err)}
		}
	}
}
