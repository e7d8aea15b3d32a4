package oncemilltest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A process is the store as one process sees it, which may die.
type process struct {
	dedupstore.Store
	answered func() // is called after each claim; nil: nobody waits for that
	dies     bool   // when it has a success to store

	mu   sync.Mutex // nothing is extended after the death
	dead bool
}

// over puts the process before a store. What the store can do beside its contract stays hidden, but for transactions.
func (p *process) over(store dedupstore.Store) dedupstore.Store {
	p.Store = store
	if records, ok := store.(dedupstore.Transactor); ok {
		return inbox{p, records}
	}
	return p
}

func (p *process) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := p.Store.Claim(ctx, requests)
	if p.answered != nil {
		p.answered()
	}
	return results
}

func (p *process) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, p.extend)
}

func (p *process) extend(ctx context.Context, x dedupstore.Extension) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return dedupstore.ErrClaimLost
	}
	return dedupstore.ExtendOne(ctx, p.Store, x)
}

func (p *process) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, p.settle)
}

func (p *process) settle(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	switch settlement := s.(type) {
	case dedupstore.Finish:
		if p.dies && settlement.Outcome.Kind == dedupstore.Succeeded {
			return p.die(ctx, c)
		}
	case dedupstore.Release:
		settlement.Delay = 0 // no test waits for a backoff
		s = settlement
	}
	return dedupstore.SettleOne(ctx, p.Store, c, s)
}

// die leaves the record as a process does that dies now, but ends its lease. The guard takes the error for the loss of
// its claim, and does nothing more. If the lease cannot be shortened, it ends by itself.
func (p *process) die(ctx context.Context, c dedupstore.Claim) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	_ = dedupstore.ExtendOne(ctx, p.Store, dedupstore.Extension{Claim: c, Lease: time.Millisecond})
	return dedupstore.ErrClaimLost
}

// An inbox is the process of a handler that runs in a transaction.
type inbox struct {
	*process
	records dedupstore.Transactor
}

var errDied = errors.New("oncemilltest: the process dies before the commit")

// InTx lets the transaction of a process that dies end without a commit.
func (i inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	answers, err := i.records.InTx(ctx, runs,
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			settlements, err := work(ctx, claims)
			if err == nil && i.dies {
				err = errDied
			}
			return settlements, err
		})
	if errors.Is(err, errDied) {
		err = i.die(ctx, runs[0].Claim)
	}
	return answers, err
}

// TakesFirst implements [dedupstore.Transactor].
func (inbox) TakesFirst() bool { return false }
