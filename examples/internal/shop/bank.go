package shop

import (
	"context"
	"errors"
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
	run  string
	seed uint64

	mu      sync.Mutex
	calls   map[string]int // by order
	charges map[string]int // by order
}

func newBank(run string, seed uint64) *Bank {
	return &Bank{run: run, seed: seed, calls: map[string]int{}, charges: map[string]int{}}
}

// Charge charges an order, under an ID of the charge that is the same for every attempt.
func (b *Bank) Charge(ctx context.Context, _ string, o Order) error {
	b.mu.Lock()
	b.calls[o.ID]++
	call := b.calls[o.ID]
	b.mu.Unlock()
	rng := rand.New(rand.NewPCG(b.seed, number(strings.TrimPrefix(o.ID, b.run))))
	declined, timeouts := rng.IntN(50) == 0, [10]int{1, 2}[rng.IntN(10)]
	if err := Pause(ctx, time.Duration(1+rng.IntN(8))*time.Millisecond); err != nil {
		return err
	}
	switch {
	case declined:
		return ErrDeclined
	case call <= timeouts:
		return ErrTimeout
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charges[o.ID]++
	return nil
}

// charged is how many charges there are.
func (b *Bank) charged() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.charges)
}
