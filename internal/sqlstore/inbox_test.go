package sqlstore_test

import (
	"context"
	"errors"
	"log/slog"
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

// A scripted database has the transactions of a test end one after the other as it says.
type scripted struct {
	commits []error
	record  *sqlstore.Row // nil: there is none
	unread  error
	begun   int
}

func (s *scripted) Within(
	ctx context.Context, _ *sqlstore.Transaction, run func(context.Context, sqlstore.Tx) error,
) error {
	s.begun++
	return run(ctx, s)
}

func (s *scripted) Load(
	_ context.Context, claimed []*sqlstore.Member, _ bool,
) (found map[string]*sqlstore.Row, now time.Time, err error) {
	if s.record != nil {
		found = map[string]*sqlstore.Row{claimed[0].ID: s.record}
	}
	return found, time.Now(), s.unread
}

func (*scripted) Claim(context.Context, []dedupstore.Request) []dedupstore.ClaimResult { return nil }

func (*scripted) Refused(err error) bool { return errors.Is(err, errConflict) }

func (*scripted) Full(err error) error { return err }

func (*scripted) Undo(_ context.Context, failure error) error { return failure }

func (s *scripted) Commit(context.Context) error {
	return s.commits[min(s.begun, len(s.commits))-1]
}

func TestInTx_EndsAsTheDatabaseSays(t *testing.T) {
	t.Parallel()
	claim := dedupstore.Claim{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "1"},
		Owner: "the-owner-of-this-claim", Fence: 7, Attempt: 1, Lease: 10 * time.Second, Retention: time.Hour,
	}
	held := dedupstore.Stored{
		State: dedupstore.Running, Owner: claim.Owner, Fence: 7, Expires: time.Now().AddDate(1000, 0, 0),
	}
	settled, other, failed := held, held, held
	settled.State, settled.Decided, settled.Settled = dedupstore.Finished, 7, []string{claim.Owner}
	settled.Outcome.Kind = dedupstore.Succeeded
	failed.State, failed.Decided, failed.Settled = dedupstore.Finished, 7, []string{claim.Owner}
	failed.Outcome.Kind = dedupstore.Failed
	other.Owner, other.Fence = "another", 8

	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	taken := is(dedupstore.ErrClaimLost)
	undecided := func(err error) bool { _, is := errors.AsType[*dedupstore.UndecidedError](err); return is }
	conflict := func(err error) bool { _, is := errors.AsType[*dedupstore.ConflictError](err); return is }
	for name, tc := range map[string]struct {
		commits []error
		record  *dedupstore.Stored
		unread  error
		want    func(error) bool
		begun   int
	}{
		"committed":                          {[]error{nil}, nil, nil, is(nil), 1},
		"lost, and there":                    {[]error{errLost}, &settled, nil, is(nil), 1},
		"lost, and not there":                {[]error{errLost}, &held, nil, is(errLost.Err), 1},
		"lost, and another's":                {[]error{errLost}, &other, nil, taken, 1},
		"lost, and settled otherwise":        {[]error{errLost}, &failed, nil, taken, 1},
		"lost, with a record that is gone":   {[]error{errLost}, nil, nil, undecided, 1},
		"lost, with a look that is refused":  {[]error{errLost}, nil, errConflict, undecided, 1},
		"refused, although the claim holds":  {[]error{sqlstore.ErrRefused, nil}, &held, nil, is(nil), 2},
		"refused, as a copy has settled":     {[]error{sqlstore.ErrRefused}, &settled, nil, is(nil), 1},
		"refused, as another has the key":    {[]error{sqlstore.ErrRefused}, &other, nil, taken, 1},
		"refused, and the record is gone":    {[]error{sqlstore.ErrRefused}, nil, nil, taken, 1},
		"refused because of others":          {[]error{errConflict, errConflict, nil}, nil, nil, is(nil), 3},
		"refused because of others for ever": {[]error{errConflict}, nil, nil, conflict, sqlstore.Tries},
		"ended before its run":               {[]error{&sqlstore.Ended{Err: dedupstore.ErrEnded}}, nil, nil, is(dedupstore.ErrEnded), 1},
		"refused, as another store's ended":  {[]error{errors.Join(errConflict, dedupstore.ErrEnded), nil}, nil, nil, is(nil), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := &scripted{commits: tc.commits, unread: tc.unread}
				if tc.record != nil {
					db.record = &sqlstore.Row{Stored: *tc.record}
				}
				work := func(context.Context, []dedupstore.Claim) ([]dedupstore.Settlement, error) {
					return []dedupstore.Settlement{dedupstore.Finish{
						Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour,
					}}, nil
				}
				log := slog.New(slog.DiscardHandler)
				_, err := sqlstore.InTx(t.Context(), db, log, []dedupstore.TxRun{{Claim: claim}}, work)
				if !tc.want(err) || db.begun != tc.begun {
					t.Errorf("%v after %d transactions, want %d", err, db.begun, tc.begun)
				}
			})
		})
	}
}
