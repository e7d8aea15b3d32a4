package shop

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// ErrDeclined says that a card will never be charged. Another attempt is useless.
var ErrDeclined = errors.New("the bank declines the card")

// ErrTimeout says that the bank did not answer, and did not charge. Another attempt may help.
var ErrTimeout = errors.New("the bank timed out")

// A Bank charges cards, and is not good at it: for some orders the first calls time out, and some cards are declined.
// Which ones follows from the seed, whatever the run is called. It is safe for concurrent use.
//
// A good bank would charge once for one ID. This one would charge as often as it is asked, so that the books show
// whatever gets through.
type Bank struct {
	run    string
	seed   uint64
	ledger *Ledger

	mu    sync.Mutex
	calls map[string]int // by order
}

func newBank(o Options, ledger *Ledger) *Bank {
	return &Bank{run: o.Run, seed: o.Seed, ledger: ledger, calls: map[string]int{}}
}

// Charge charges an order, under an ID of the charge that is the same for every attempt.
func (b *Bank) Charge(ctx context.Context, id string, o Order) error {
	b.mu.Lock()
	b.calls[o.ID]++
	call := b.calls[o.ID]
	b.mu.Unlock()
	if err := b.ledger.write(entryRun, o.ID); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(b.seed, number(strings.TrimPrefix(o.ID, b.run))))
	declined, timeouts := rng.IntN(50) == 0, [10]int{1, 2}[rng.IntN(10)]
	wait := time.NewTimer(time.Duration(1+rng.IntN(8)) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case declined:
		return errors.Join(ErrDeclined, b.ledger.write(entryDecline, o.ID))
	case call <= timeouts:
		return ErrTimeout
	}
	return b.ledger.write(entryCharge, o.ID, id)
}

// number turns a text into a seed.
func number(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum64()
}
