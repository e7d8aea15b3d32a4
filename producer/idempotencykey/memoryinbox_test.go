package idempotencykey_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An inbox is an inbox in memory: writes of a run appear with its outcome, or not at all.
type inbox struct {
	*dedupstore.Memory
	mu        sync.Mutex
	rows      []string
	again     int   // how many transactions the database refuses because of others
	conflict  bool  // it refuses all of them, whatever work returns
	undecided error // what becomes of commits
	broken    error // why commits fail
	settle    error // why failures cannot be recorded
}

var _ dedupstore.Transactor = (*inbox)(nil)

type memoryTx struct{ rows []string }

// write adds a row in the transaction that a context carries.
func write(ctx context.Context, row string) {
	tx, ok := txctx.From[*memoryTx](ctx)
	if !ok {
		panic("no transaction")
	}
	tx.rows = append(tx.rows, row)
}

func (b *inbox) InTx(
	ctx context.Context, c dedupstore.Claim, work func(context.Context) (dedupstore.Settlement, error),
) error {
	for {
		tx := &memoryTx{}
		s, err := work(txctx.With(ctx, tx))
		if b.conflict {
			return &dedupstore.ConflictError{Err: errors.Join(errors.New("refused"), err)}
		}
		if err != nil {
			return err
		}
		b.mu.Lock()
		if b.again > 0 {
			b.again--
			b.mu.Unlock()
			continue
		}
		defer b.mu.Unlock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if b.undecided != nil {
			return &dedupstore.UndecidedError{Err: b.undecided}
		}
		if b.broken != nil {
			return b.broken
		}
		if err := dedupstore.SettleOne(context.WithoutCancel(ctx), b.Memory, c, s); err != nil {
			return err
		}
		b.rows = append(b.rows, tx.rows...)
		return nil
	}
}

func (b *inbox) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, b.settleOne)
}

func (b *inbox) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if b.settle != nil {
		return b.settle
	}
	return dedupstore.SettleOne(ctx, b.Memory, c, s)
}

func (b *inbox) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.rows)
}

func newInbox(t testing.TB) *inbox { return &inbox{Memory: keytest.NewMemory(t)} }
