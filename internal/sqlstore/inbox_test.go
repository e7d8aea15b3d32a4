package sqlstore_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

var (
	errConflict = errors.New("refused because of others")
	errLost     = &sqlstore.Unanswered{Err: errors.New("the connection is lost")}
)

func TestInTx_EndsAsTheDatabaseSays(t *testing.T) {
	t.Parallel()
	other, failed := held("1"), settled("1")
	other.Owner, other.Fence = "another", 8
	failed.Outcome.Kind = dedupstore.Failed

	ended, elsewhere := &sqlstore.Ended{Err: dedupstore.ErrEnded}, errors.Join(errConflict, dedupstore.ErrEnded)
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	taken := is(dedupstore.ErrClaimLost)
	undecided := func(err error) bool { _, is := errors.AsType[*dedupstore.UndecidedError](err); return is }
	conflict := func(err error) bool { _, is := errors.AsType[*dedupstore.ConflictError](err); return is }
	for name, tc := range map[string]struct {
		commits []error
		record  *sqlstore.Row
		unread  error
		want    func(error) bool
		begun   int
	}{
		"committed":                          {[]error{nil}, nil, nil, is(nil), 1},
		"lost, and there":                    {[]error{errLost}, settled("1"), nil, is(nil), 1},
		"lost, and not there":                {[]error{errLost}, held("1"), nil, is(errLost.Err), 1},
		"lost, and another's":                {[]error{errLost}, other, nil, taken, 1},
		"lost, and settled otherwise":        {[]error{errLost}, failed, nil, taken, 1},
		"lost, with a record that is gone":   {[]error{errLost}, nil, nil, undecided, 1},
		"lost, with a look that is refused":  {[]error{errLost}, nil, errConflict, undecided, 1},
		"refused, although the claim holds":  {[]error{sqlstore.ErrRefused, nil}, held("1"), nil, is(nil), 2},
		"refused, as a copy has settled":     {[]error{sqlstore.ErrRefused}, settled("1"), nil, is(nil), 1},
		"refused, as another has the key":    {[]error{sqlstore.ErrRefused}, other, nil, taken, 1},
		"refused, and the record is gone":    {[]error{sqlstore.ErrRefused}, nil, nil, taken, 1},
		"refused because of others":          {[]error{errConflict, errConflict, nil}, nil, nil, is(nil), 3},
		"refused because of others for ever": {[]error{errConflict}, nil, nil, conflict, sqlstore.Tries},
		"ended before its run":               {[]error{ended}, nil, nil, is(dedupstore.ErrEnded), 1},
		"refused, as another store's ended":  {[]error{elsewhere, nil}, nil, nil, is(nil), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := &batch{t: t}
				db.commit = func() error { return tc.commits[min(db.begun, len(tc.commits))-1] }
				db.load = func(bool) (map[string]*sqlstore.Row, error) {
					if tc.record == nil {
						return nil, tc.unread
					}
					return records(map[string]*sqlstore.Row{"1": tc.record}), tc.unread
				}
				_, err := sqlstore.InTx(t.Context(), db, discard(), []dedupstore.TxRun{claimed("1")}, succeed)
				if !tc.want(err) || db.begun != tc.begun {
					t.Errorf("%v after %d transactions, want %d", err, db.begun, tc.begun)
				}
			})
		})
	}
}

// The end of a transaction has as long as the lease, or a second; a rollback has five. None of it ends with the work.
func TestInTx_EndsAreBounded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		lease, want time.Duration
		work        error
		settlements int
	}{
		{lease: 10 * time.Second, want: 10 * time.Second, settlements: 1},
		{lease: 10 * time.Millisecond, want: sqlstore.LeastCommit, settlements: 1},
		{lease: time.Minute, want: sqlstore.EndTimeout, work: errRefusal},
		{lease: time.Millisecond, want: sqlstore.EndTimeout, work: errRefusal},
		{lease: time.Minute, want: sqlstore.EndTimeout, settlements: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			db := &batch{t: t}
			run := first("1")
			run.First.Lease = tc.lease
			_, err := sqlstore.InTx(ctx, db, discard(), []dedupstore.TxRun{run},
				func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
					cancel()
					s, _ := succeed(ctx, claims)
					return slices.Repeat(s, tc.settlements), tc.work
				})
			_, invalid := errors.AsType[*dedupstore.InvalidError](err)
			fails := tc.want == sqlstore.EndTimeout
			if tc.work != nil && !errors.Is(err, tc.work) || invalid != (tc.settlements > 1) || (err != nil) != fails {
				t.Errorf("%+v: the error is %v", tc, err)
			}
			if len(db.bounds) != 1 || db.bounds[0] != tc.want {
				t.Errorf("%+v: the end has %v", tc, db.bounds)
			}
		})
	}
}

func TestInTx_RepeatsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the worker stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		db := &batch{t: t, refusals: 99}
		_, err := sqlstore.InTx(ctx, db, discard(), []dedupstore.TxRun{first("1")},
			func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
				cancel(cause)
				return succeed(ctx, claims)
			})
		if _, is := errors.AsType[*dedupstore.ConflictError](err); !is || db.begun != 1 {
			t.Errorf("%v after %d transactions, want a conflict after one", err, db.begun)
		}
		_, err = sqlstore.InTx(ctx, db, discard(), []dedupstore.TxRun{first("1")}, succeed)
		if !errors.Is(err, cause) || db.begun != 1 {
			t.Errorf("%v after %d transactions, want none", err, db.begun-1)
		}
	})
}

func TestInTx_WaitsBetweenRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, began := &batch{t: t, refusals: 99}, time.Now()
		_, _ = sqlstore.InTx(t.Context(), db, discard(), []dedupstore.TxRun{first("1")}, succeed)
		if took := time.Since(began); took < 50*time.Millisecond || took > 2*time.Second {
			t.Errorf("%d transactions took %v", db.begun, took)
		}
	})
}

// Whether a commit happened is asked until there is an answer, at most for a lease or a second.
func TestInTx_AsksUntilItKnows(t *testing.T) {
	t.Parallel()
	none := func(int) (*sqlstore.Row, error) { return nil, nil }
	unread := func(int) (*sqlstore.Row, error) { return nil, errRefusal }
	broken := &dedupstore.RecordError{Key: keyOf("1").String(), Problem: "cannot be read"}
	for name, tc := range map[string]struct {
		lease     time.Duration
		load      func(n int) (*sqlstore.Row, error)
		least     int
		took      time.Duration // at most
		undecided bool
	}{
		"at once": {10 * time.Second, func(int) (*sqlstore.Row, error) { return settled("1"), nil }, 1, 0, false},
		"later": {10 * time.Second, func(n int) (*sqlstore.Row, error) {
			if n < 4 {
				return nil, errRefusal
			}
			return settled("1"), nil
		}, 4, time.Second, false},
		"never":                     {10 * time.Second, unread, 8, 10 * time.Second, true},
		"never, with a short lease": {time.Millisecond, none, 5, time.Second, true},
		"a record that cannot be read": {10 * time.Second, func(int) (*sqlstore.Row, error) {
			r := held("1")
			r.Err = broken
			return r, nil
		}, 1, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			db, began := &batch{t: t, commit: func() error { return errLost }}, time.Now()
			db.load = func(bool) (map[string]*sqlstore.Row, error) {
				r, err := tc.load(db.loads)
				if r == nil {
					return nil, err
				}
				return records(map[string]*sqlstore.Row{"1": r}), err
			}
			run := claimed("1")
			run.Claim.Lease = tc.lease
			_, err := sqlstore.InTx(t.Context(), db, discard(), []dedupstore.TxRun{run}, succeed)
			_, undecided := errors.AsType[*dedupstore.UndecidedError](err)
			if undecided != tc.undecided || err != nil != tc.undecided || undecided && !errors.Is(err, errLost.Err) {
				t.Errorf("%s: the error is %v", name, err)
			}
			if took := time.Since(began); db.loads < tc.least || db.loads > 3*tc.least+10 || took > tc.took {
				t.Errorf("%s: %d looks in %v, want %d in %v", name, db.loads, took, tc.least, tc.took)
			}
		})
	}
}

func TestEnds_SayWhy(t *testing.T) {
	t.Parallel()
	for _, err := range []error{&sqlstore.Unanswered{Err: errServer}, &sqlstore.Ended{Err: errServer}} {
		if err.Error() != errServer.Error() {
			t.Errorf("%T says %q, want %q", err, err, errServer)
		}
	}
}

func TestNewTransaction_RefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	if _, err := sqlstore.InTx(t.Context(), &batch{t: t}, discard(), nil, succeed); err == nil {
		t.Error("a transaction without runs began")
	}
	run := claimed("1")
	run.Claim.Fence = math.MaxInt64 + 1 // which no store of SQL has granted
	if _, err := sqlstore.NewTransaction([]dedupstore.TxRun{run}); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("a fence that no record can have: %v", err)
	}
	run.Claim.Fence = math.MaxInt64
	tx, err := sqlstore.NewTransaction([]dedupstore.TxRun{first("2"), run})
	if err != nil {
		t.Fatal(err)
	}
	if len(tx.Members) != 2 || len(tx.Claimed) != 1 || len(tx.Firsts) != 1 || len(tx.Taking()) != 1 ||
		tx.Stands != tx.Claimed[0] || tx.Members[0] != tx.Firsts[0] || tx.Members[1] != tx.Claimed[0] {
		t.Errorf("the transaction is %+v", tx)
	}
	for _, m := range tx.Members {
		if m.Key != m.Claim.Key.String() || m.ID != sqlstore.IDOf(m.Key) {
			t.Errorf("a member is %+v", m)
		}
	}
}

// A claimed run's heartbeat ends its context; first runs have none.
func TestTransaction_BeginningIsBoundedForFirstRuns(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		runs    []dedupstore.TxRun
		bounded bool
	}{
		"claimed":        {[]dedupstore.TxRun{claimed("1")}, false},
		"first":          {[]dedupstore.TxRun{first("1"), first("2")}, true},
		"first, claimed": {[]dedupstore.TxRun{first("1"), claimed("2")}, false},
	} {
		tx, err := sqlstore.NewTransaction(tc.runs)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := tx.Beginning(t.Context())
		if _, bounded := ctx.Deadline(); bounded != tc.bounded || ctx.Err() != nil {
			t.Errorf("%s: bounded is %v, %v", name, bounded, ctx.Err())
		}
		cancel()
	}
}

func TestJudge_SaysWhatRecordsSayOfClaims(t *testing.T) {
	t.Parallel()
	now := time.Now()
	with := func(r *sqlstore.Row, change func(*sqlstore.Row)) *sqlstore.Row { change(r); return r }
	broken := errors.New("cannot be read")
	for name, tc := range map[string]struct {
		rows map[string]*sqlstore.Row
		ends dedupstore.Kind // of the settlements, if the work has returned
		want sqlstore.Verdict
		err  error
	}{
		"both hold":     {rows: map[string]*sqlstore.Row{"1": held("1"), "2": held("2")}, want: sqlstore.Open},
		"none is there": {want: sqlstore.Gone},
		"both settled":  {rows: map[string]*sqlstore.Row{"1": settled("1"), "2": settled("2")}, want: sqlstore.Settled},
		"both settled so": {
			rows: map[string]*sqlstore.Row{"1": settled("1"), "2": settled("2")}, ends: dedupstore.Succeeded,
			want: sqlstore.Settled,
		},
		"settled otherwise": {
			rows: map[string]*sqlstore.Row{"1": settled("1"), "2": settled("2")}, ends: dedupstore.Failed,
			want: sqlstore.Lost,
		},
		"one settled": {rows: map[string]*sqlstore.Row{"1": settled("1"), "2": held("2")}, want: sqlstore.Lost},
		"one is gone": {rows: map[string]*sqlstore.Row{"2": held("2")}, want: sqlstore.Lost},
		"settled under another fence": {rows: map[string]*sqlstore.Row{
			"1": with(settled("1"), func(r *sqlstore.Row) { r.Decided, r.Fence = 8, 8 }), "2": settled("2"),
		}, want: sqlstore.Lost},
		"settled by another": {rows: map[string]*sqlstore.Row{
			"1": settled("1"), "2": with(settled("2"), func(r *sqlstore.Row) { r.Settled = []string{"another"} }),
		}, want: sqlstore.Lost},
		"released": {rows: map[string]*sqlstore.Row{
			"1": with(settled("1"), func(r *sqlstore.Row) { r.State = dedupstore.Retryable }),
			"2": with(settled("2"), func(r *sqlstore.Row) { r.State = dedupstore.Retryable }),
		}, want: sqlstore.Lost},
		"another owner's": {rows: map[string]*sqlstore.Row{
			"1": held("1"), "2": with(held("2"), func(r *sqlstore.Row) { r.Owner = "another" }),
		}, want: sqlstore.Lost},
		"publishing": {rows: map[string]*sqlstore.Row{
			"1": with(held("1"), func(r *sqlstore.Row) { r.State = dedupstore.Publishing }),
			"2": with(held("2"), func(r *sqlstore.Row) { r.State = dedupstore.Publishing }),
		}, want: sqlstore.Lost},
		"expired just now": {rows: map[string]*sqlstore.Row{
			"1": with(held("1"), func(r *sqlstore.Row) { r.Expires = now }),
			"2": with(held("2"), func(r *sqlstore.Row) { r.Expires = now }),
		}, want: sqlstore.Gone},
		"expires soon": {rows: map[string]*sqlstore.Row{
			"1": with(held("1"), func(r *sqlstore.Row) { r.Expires = now.Add(1) }),
			"2": with(held("2"), func(r *sqlstore.Row) { r.Expires = now.Add(1) }),
		}, want: sqlstore.Open},
		"unreadable": {rows: map[string]*sqlstore.Row{
			"1": held("1"), "2": with(held("2"), func(r *sqlstore.Row) { r.Err = broken }),
		}, want: sqlstore.Lost, err: broken},
	} {
		tx, err := sqlstore.NewTransaction([]dedupstore.TxRun{claimed("1"), claimed("2")})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range tx.Members {
			m.Finish.Outcome.Kind = tc.ends
		}
		found := records(tc.rows)
		got, err := sqlstore.Judge(tx.Claimed, found, now)
		if got != tc.want || !errors.Is(err, tc.err) || err != nil && tc.err == nil {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
		}
		for _, m := range tx.Claimed {
			if m.Row != found[m.ID] && tc.err == nil {
				t.Errorf("%s: the row of %s is not what was found", name, m.Key)
			}
		}
		err = tx.Judge(found, now)
		if open := tc.want == sqlstore.Open; (err == nil) != open {
			t.Errorf("%s: the transaction's judgement is %v", name, err)
		}
		lost := tc.want == sqlstore.Lost || tc.want == sqlstore.Gone
		if tc.err == nil && lost != errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("%s: the transaction's judgement is %v", name, err)
		}
	}
}
