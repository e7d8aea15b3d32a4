package keytest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An Inbox is an inbox in memory: writes of a run appear with its outcome, or not at all.
type Inbox struct {
	*dedupstore.Memory
	Again     int   // how many transactions the database refuses because of others
	Conflict  bool  // it refuses all of them, whatever work returns
	Undecided error // what becomes of commits
	Broken    error // why commits fail
	Unsettled error // why failures cannot be recorded

	mu   sync.Mutex
	rows []string
}

var _ dedupstore.Transactor = (*Inbox)(nil)

type memoryTx struct{ rows []string }

// Write adds a row in the transaction that a context carries.
func Write(ctx context.Context, row string) {
	tx, ok := txctx.From[*memoryTx](ctx)
	if !ok {
		panic("no transaction")
	}
	tx.rows = append(tx.rows, row)
}

// InTx implements dedupstore.Transactor.
func (b *Inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	claims, err := dedupstore.ClaimsOf(runs)
	if err != nil {
		return nil, err
	}
	return nil, b.inTx(ctx, claims, work)
}

// TakesFirst implements dedupstore.Transactor.
func (*Inbox) TakesFirst() bool { return false }

func (b *Inbox) inTx(ctx context.Context, claims []dedupstore.Claim, work dedupstore.TxWork) error {
	for {
		tx := &memoryTx{}
		settlements, err := work(txctx.With(ctx, tx), claims)
		if b.Conflict {
			return &dedupstore.ConflictError{Err: errors.Join(errors.New("refused"), err)}
		}
		if err != nil {
			return err
		}
		b.mu.Lock()
		if b.Again > 0 {
			b.Again--
			b.mu.Unlock()
			continue
		}
		defer b.mu.Unlock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if b.Undecided != nil {
			return &dedupstore.UndecidedError{Err: b.Undecided}
		}
		if b.Broken != nil {
			return b.Broken
		}
		for i, c := range claims {
			if err := dedupstore.SettleOne(context.WithoutCancel(ctx), b.Memory, c, settlements[i]); err != nil {
				return err // a test that settles several must not let one be lost: the others stay settled
			}
		}
		b.rows = append(b.rows, tx.rows...)
		return nil
	}
}

// Settle implements dedupstore.Store.
func (b *Inbox) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, b.settleOne)
}

func (b *Inbox) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if b.Unsettled != nil {
		return b.Unsettled
	}
	return dedupstore.SettleOne(ctx, b.Memory, c, s)
}

// Rows are the rows that were committed.
func (b *Inbox) Rows() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.rows)
}

// NewInbox returns an empty inbox.
func NewInbox(t testing.TB) *Inbox { return &Inbox{Memory: NewMemory(t)} }
