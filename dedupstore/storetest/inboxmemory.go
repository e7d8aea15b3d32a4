package storetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// A MemoryInbox is an inbox without a database, for tests of what is built on one: records in another store, and a
// table of effects that has nothing but names. It keeps the contract as long as nobody else uses the store. Its
// transactions are committed one at a time, and are open for as long as their work takes. It is safe for concurrent
// use.
type MemoryInbox struct {
	records dedupstore.Store

	mu       sync.Mutex // what is committed is seen at once
	effects  map[string]int
	finished map[finished]bool
}

var _ dedupstore.Transactor = (*MemoryInbox)(nil)

// finished names a run that has stored its outcome.
type finished struct {
	key   dedupstore.Key
	owner string
	fence uint64
}

// NewMemoryInbox returns an inbox with its records in a store, whose operations must not wait for the inbox.
func NewMemoryInbox(records dedupstore.Store) *MemoryInbox {
	return &MemoryInbox{records: records, effects: map[string]int{}, finished: map[finished]bool{}}
}

type memoryTx struct {
	mu      sync.Mutex
	effects map[string]int
	over    bool
}

type memoryTxKey struct{}

// ErrNoTx says that a write was not in a transaction, or came when it was over.
var ErrNoTx = errors.New("storetest: the transaction is over, or there is none")

// Write adds an effect of a name in the transaction of ctx.
func (m *MemoryInbox) Write(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx, ok := ctx.Value(memoryTxKey{}).(*memoryTx)
	if !ok {
		return ErrNoTx
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over {
		return ErrNoTx
	}
	tx.effects[name]++
	return nil
}

// Count counts the committed effects of a name.
func (m *MemoryInbox) Count(_ context.Context, name string) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.effects[name], nil
}

// All returns all committed effects.
func (m *MemoryInbox) All() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.effects)
}

// Claim implements [dedupstore.Store].
func (m *MemoryInbox) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records.Claim(ctx, requests)
}

// Extend implements [dedupstore.Store].
func (m *MemoryInbox) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return m.records.Extend(ctx, extensions)
}

// Settle implements [dedupstore.Store].
func (m *MemoryInbox) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return dedupstore.SettleEach(ctx, settlings, m.settle)
}

func (m *MemoryInbox) settle(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	err := dedupstore.SettleOne(ctx, m.records, c, s)
	if _, ok := s.(dedupstore.Finish); ok && err == nil {
		m.finished[finished{c.Key, c.Owner, c.Fence}] = true
	}
	return err
}

// InTx implements [dedupstore.Transactor].
func (m *MemoryInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	claims, err := dedupstore.ClaimsOf(runs)
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return nil, err
	}
	if m.haveFinished(claims) {
		return nil, nil
	}
	tx := &memoryTx{effects: map[string]int{}}
	settlements, err := tx.do(context.WithValue(ctx, memoryTxKey{}, tx), claims, work)
	if err == nil {
		err = dedupstore.ValidateFinishes(settlements, len(claims))
	}
	if err != nil {
		return nil, err
	}
	return nil, m.commit(context.WithoutCancel(ctx), claims, settlements, tx)
}

// TakesFirst implements [dedupstore.Transactor].
func (*MemoryInbox) TakesFirst() bool { return false }

func (m *MemoryInbox) haveFinished(claims []dedupstore.Claim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.allFinished(claims)
}

// allFinished reports whether all runs have stored their outcomes. The caller has the lock.
func (m *MemoryInbox) allFinished(claims []dedupstore.Claim) bool {
	return !slices.ContainsFunc(claims, func(c dedupstore.Claim) bool {
		return !m.finished[finished{c.Key, c.Owner, c.Fence}]
	})
}

// do works, and ends the transaction however that ends.
func (tx *memoryTx) do(
	ctx context.Context, claims []dedupstore.Claim, w dedupstore.TxWork,
) ([]dedupstore.Settlement, error) {
	defer func() {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		tx.over = true
	}()
	return w(ctx, claims)
}

func (m *MemoryInbox) commit(
	ctx context.Context, claims []dedupstore.Claim, settlements []dedupstore.Settlement, tx *memoryTx,
) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.allFinished(claims) {
		return nil // by a copy of this transaction: this one is rolled back
	}
	for i, c := range claims {
		if m.finished[finished{c.Key, c.Owner, c.Fence}] {
			return dedupstore.ErrClaimLost
		}
		if i == 0 {
			continue
		}
		// none of several may be settled if one is lost; the first one's settlement tells by itself
		if err := dedupstore.ExtendOne(ctx, m.records, dedupstore.Extension{Claim: c, Lease: c.Lease}); err != nil {
			return err
		}
	}
	for i, c := range claims {
		if err := m.settle(ctx, c, settlements[i]); err != nil {
			return err
		}
	}
	for name, n := range tx.effects {
		m.effects[name] += n
	}
	return nil
}
