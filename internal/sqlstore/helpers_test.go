package sqlstore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A batch is a database that makes the records of some first runs.
type batch struct {
	t        *testing.T
	apart    map[string]bool // IDs of first runs that do not take part
	looks    bool            // at claims, before it begins
	refusals int             // transactions that are refused before one is not
	commit   func() error
	undo     func(failure error) error
	load     func(unanswered bool) (map[string]*sqlstore.Row, error)
	claim    error // of all that Claim is asked for

	begun, loads int
	asked        []string // of Claim
	finishes     []string // results of those who took part, at the commit
	bounds       []time.Duration
}

func (b *batch) Within(
	ctx context.Context, t *sqlstore.Transaction, run func(context.Context, sqlstore.Tx) error,
) error {
	b.begun++
	if want := slices.Concat(t.Claimed, t.Firsts)[0]; t.Stands != want {
		b.t.Errorf("transaction %d: %s stands for all, want %s", b.begun, t.Stands.Key, want.Key)
	}
	for _, m := range t.Members {
		if m.Finish.Outcome.Kind != "" || m.Row != nil || m.First != nil && m.Claim.Fence != 0 {
			b.t.Errorf("transaction %d: %s is as the one before has left it: %+v", b.begun, m.Key, m)
		}
	}
	for n, m := range t.Firsts {
		if !b.apart[m.First.Key.ID] {
			m.Claim.Fence = uint64(100*b.begun + n)
		}
		m.Row = &sqlstore.Row{}
	}
	if b.looks {
		if err := t.Look(ctx, b); err != nil {
			return err
		}
	}
	tx := &batchTx{b, t, false}
	err := run(ctx, tx)
	if err == nil && !tx.committed {
		b.t.Error("nothing is committed, and there is no error")
	}
	return err
}

func (b *batch) Load(_ context.Context, _ []*sqlstore.Member, unanswered bool) (
	map[string]*sqlstore.Row, time.Time, error,
) {
	if b.loads++; b.load == nil {
		b.t.Error("a record is read")
		return nil, time.Now(), nil
	}
	found, err := b.load(unanswered)
	return found, time.Now(), err
}

func (b *batch) Claim(_ context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	for n, r := range requests {
		b.asked = append(b.asked, r.Key.ID)
		results[n].Answer = dedupstore.Answer{Status: dedupstore.Done, Trace: r.Key.ID}
		if b.claim != nil {
			results[n] = dedupstore.ClaimResult{Err: b.claim}
		}
	}
	return results
}

func (*batch) Refused(err error) bool { return errors.Is(err, errConflict) }

var errFull = errors.New("no room")

func (*batch) Full(err error) error {
	if errors.Is(err, errFull) {
		return errors.Join(dedupstore.ErrFull, err)
	}
	return err
}

type batchTx struct {
	*batch
	*sqlstore.Transaction
	committed bool
}

func (b *batchTx) bound(ctx context.Context) {
	end, _ := ctx.Deadline()
	b.bounds = append(b.bounds, time.Until(end))
	if ctx.Err() != nil {
		b.t.Error("the end of a transaction ends with the work's context")
	}
}

func (b *batchTx) Undo(ctx context.Context, failure error) error {
	b.bound(ctx)
	if b.undo != nil {
		return b.undo(failure)
	}
	return failure
}

func (b *batchTx) Commit(ctx context.Context) error {
	b.bound(ctx)
	if b.begun <= b.refusals {
		return errConflict
	}
	for _, m := range b.Taking() {
		b.finishes = append(b.finishes, m.Key[len(m.Key)-1:]+"="+string(m.Finish.Outcome.Result))
	}
	if b.commit != nil {
		if err := b.commit(); err != nil {
			return err
		}
	}
	b.committed = true
	return nil
}

const ownerOf = "the-owner-of-the-run-with-ID-"

func first(id string) dedupstore.TxRun {
	return dedupstore.TxRun{First: &dedupstore.Request{
		Key: keyOf(id), Owner: ownerOf + id, Lease: 10 * time.Second, Retention: time.Hour, MaxAttempts: 5, Holder: "host",
	}}
}

func claimed(id string) dedupstore.TxRun {
	return dedupstore.TxRun{Claim: dedupstore.Claim{
		Key: keyOf(id), Owner: ownerOf + id, Fence: 7, Attempt: 2, Lease: 10 * time.Second, Retention: time.Hour,
	}}
}

// held and settled are records of claimed.
func held(id string) *sqlstore.Row {
	return &sqlstore.Row{Stored: dedupstore.Stored{
		State: dedupstore.Running, Owner: ownerOf + id, Fence: 7, Expires: time.Now().AddDate(1000, 0, 0),
	}}
}

func settled(id string) *sqlstore.Row {
	r := held(id)
	r.State, r.Decided, r.Settled = dedupstore.Finished, 7, []string{ownerOf + id}
	r.Outcome.Kind = dedupstore.Succeeded
	return r
}

func records(rows map[string]*sqlstore.Row) map[string]*sqlstore.Row {
	found := map[string]*sqlstore.Row{}
	for id, r := range rows {
		found[sqlstore.IDOf(keyOf(id).String())] = r
	}
	return found
}

// succeed has each run succeed with its ID as the result.
func succeed(_ context.Context, claims []dedupstore.Claim) (all []dedupstore.Settlement, err error) {
	for _, c := range claims {
		all = append(all, dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(c.Key.ID)}, Retention: time.Hour,
		})
	}
	return all, nil
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
