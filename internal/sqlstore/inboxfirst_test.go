package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestInTx_BatchesOfFirstRuns(t *testing.T) {
	t.Parallel()
	lost := func() error { return errLost }
	broken := errors.New("the claim failed")
	for name, tc := range map[string]struct {
		db       batch
		runs     []dedupstore.TxRun
		finishes string
		answers  string // of each run the trace, "-" for none, "busy" for Contended
		want     error
		begun    int
	}{
		"all take part": {
			runs: []dedupstore.TxRun{first("1"), claimed("2"), first("3")}, finishes: "1=1 2=2 3=3", begun: 1,
		},
		"one does not": {
			db: batch{apart: map[string]bool{"1": true}}, runs: []dedupstore.TxRun{first("1"), first("2"), claimed("3")},
			finishes: "2=2 3=3", answers: "1 - -", begun: 1,
		},
		"one does not, and nobody knows why": {
			db:   batch{apart: map[string]bool{"2": true}, claim: broken},
			runs: []dedupstore.TxRun{first("1"), first("2")}, finishes: "1=1", answers: "- busy", begun: 1,
		},
		"none does": {
			db:   batch{apart: map[string]bool{"1": true, "2": true}},
			runs: []dedupstore.TxRun{first("1"), first("2")}, answers: "1 2", begun: 1,
		},
		"none does, and nobody knows why": {
			db:   batch{apart: map[string]bool{"1": true, "2": true}, claim: broken},
			runs: []dedupstore.TxRun{first("1"), first("2")}, answers: "busy busy", want: broken, begun: 1,
		},
		"the commit got no answer": {
			db: batch{commit: lost}, runs: []dedupstore.TxRun{first("1"), first("2")},
			finishes: "1=1 2=2", answers: "1 2", begun: 1,
		},
		"the commit got no answer, and nobody knows more": {
			db: batch{commit: lost, claim: broken}, runs: []dedupstore.TxRun{first("1"), first("2")},
			finishes: "1=1 2=2", answers: "busy busy", begun: 1,
		},
		"one does not, and the commit got no answer": {
			db:   batch{commit: lost, apart: map[string]bool{"1": true}},
			runs: []dedupstore.TxRun{first("1"), first("2")}, finishes: "2=2", answers: "1 2", begun: 1,
		},
		"refused twice because of others": {
			db: batch{refusals: 2}, runs: []dedupstore.TxRun{first("1"), claimed("2")}, finishes: "1=1 2=2", begun: 3,
		},
		"refused for ever": {
			db: batch{refusals: 99}, runs: []dedupstore.TxRun{first("1")}, want: errConflict, begun: sqlstore.Tries,
		},
		"without room": {
			db:   batch{commit: func() error { return errFull }},
			runs: []dedupstore.TxRun{first("1")}, finishes: "1=1", want: dedupstore.ErrFull, begun: 1,
		},
		"refused without claims": {
			db:   batch{commit: func() error { return sqlstore.ErrRefused }},
			runs: []dedupstore.TxRun{first("1")}, finishes: "1=1", want: dedupstore.ErrClaimLost, begun: 1,
		},
		"refused, as a copy has settled the claim, but not the others": {
			db: batch{
				commit: func() error { return sqlstore.ErrRefused },
				load: func(unanswered bool) (map[string]*sqlstore.Row, error) {
					if unanswered {
						return nil, errors.New("this is not about a commit without an answer")
					}
					return records(map[string]*sqlstore.Row{"1": settled("1")}), nil
				},
			},
			runs: []dedupstore.TxRun{claimed("1"), first("2")}, finishes: "1=1 2=2", want: dedupstore.ErrClaimLost, begun: 1,
		},
		"refused, and the look fails": {
			db: batch{
				commit: func() error { return sqlstore.ErrRefused },
				load:   func(bool) (map[string]*sqlstore.Row, error) { return nil, errFull },
			},
			runs: []dedupstore.TxRun{claimed("1")}, finishes: "1=1", want: errFull, begun: 1,
		},
		"settled before": {
			db: batch{looks: true, load: func(bool) (map[string]*sqlstore.Row, error) {
				return records(map[string]*sqlstore.Row{"1": settled("1")}), nil
			}},
			runs: []dedupstore.TxRun{claimed("1")}, begun: 1,
		},
		"the commit with a claim got no answer, and is there": {
			db: batch{
				commit: lost,
				load: func(unanswered bool) (map[string]*sqlstore.Row, error) {
					if !unanswered {
						return nil, errors.New("the transaction may not be over")
					}
					return records(map[string]*sqlstore.Row{"2": settled("2")}), nil
				},
			},
			runs: []dedupstore.TxRun{first("1"), claimed("2")}, finishes: "1=1 2=2", begun: 1,
		},
		"the commit with a claim got no answer, and is not there": {
			db: batch{
				commit: lost,
				load: func(bool) (map[string]*sqlstore.Row, error) {
					return records(map[string]*sqlstore.Row{"2": held("2")}), nil
				},
			},
			runs: []dedupstore.TxRun{first("1"), claimed("2")}, finishes: "1=1 2=2", want: errLost.Err, begun: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := tc.db
				db.t = t
				var told []dedupstore.Claim
				answers, err := sqlstore.InTx(t.Context(), &db, discard(), tc.runs,
					func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
						told = claims
						return succeed(ctx, claims)
					})
				if tc.want == nil && err != nil || !errors.Is(err, tc.want) {
					t.Errorf("the error is %v, want %v", err, tc.want)
				}
				if undecided, is := errors.AsType[*dedupstore.UndecidedError](err); is {
					t.Errorf("the records say what happened, and the error is %v", undecided)
				}
				var got []string
				for _, a := range answers {
					switch {
					case a.Status == sqlstore.Contended.Status && a.Wait > 0:
						got = append(got, "busy")
					case a.Status == dedupstore.Done:
						got = append(got, a.Trace)
					default:
						got = append(got, "-")
					}
				}
				if text := strings.Join(got, " "); text != tc.answers {
					t.Errorf("the answers are %q, want %q", text, tc.answers)
				}
				if text := strings.Join(db.finishes, " "); text != tc.finishes || db.begun != tc.begun {
					t.Errorf("%d transactions settled %q, want %d and %q", db.begun, text, tc.begun, tc.finishes)
				}
				for _, c := range told {
					want := claimed(c.Key.ID).Claim
					if c.Fence != want.Fence { // a first run
						want.Attempt, want.Fence, want.Holder = 1, c.Fence, "host"
					}
					if c != want || c.Fence == 0 {
						t.Errorf("the work was told of %+v, want %+v", c, want)
					}
				}
			})
		})
	}
}

func TestInTx_TheFirstThatTakesPartStandsForAll(t *testing.T) {
	t.Parallel()
	for apart, want := range map[string]string{"1": "2", "": "1"} {
		db := &batch{t: t, apart: map[string]bool{apart: true}}
		var text bytes.Buffer
		db.undo = func(error) error { return &sqlstore.Ended{Err: dedupstore.ErrEnded} }
		fail := func(context.Context, []dedupstore.Claim) ([]dedupstore.Settlement, error) { return nil, errRefusal }
		log := slog.New(slog.NewTextHandler(&text, nil))
		_, err := sqlstore.InTx(t.Context(), db, log, []dedupstore.TxRun{first("1"), first("2")}, fail)
		if !errors.Is(err, dedupstore.ErrEnded) || !strings.Contains(text.String(), "key="+keyOf(want).String()) {
			t.Errorf("without %q: %v, logged %s, want the key of %s", apart, err, &text, want)
		}
	}
}
