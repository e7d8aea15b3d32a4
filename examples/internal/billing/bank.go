package billing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// placedAgain says which orders are placed twice: one in so many.
const placedAgain = 5

// plan makes orders. Their IDs begin with the name of the run, since Redis and brokers remember earlier runs.
func plan(o Options) []shop.Order {
	orders := make([]shop.Order, o.Orders)
	for i := range orders {
		orders[i] = shop.Order{ID: fmt.Sprintf("%s-%05d", o.Run, i), Cents: 100 + i}
	}
	return orders
}

// ErrDeclined says that a card will never be charged. Another attempt is useless.
var ErrDeclined = errors.New("the bank declines the card")

// ErrTimeout says that the bank did not answer, and did not charge. Another attempt may help.
var ErrTimeout = errors.New("the bank timed out")

// A Bank charges cards, and is not good at it. The amount says what goes wrong, as real test cards do it: multiples of
// 50 cents are declined; amounts that end in 1 or 2 time out that many times. It is safe for concurrent use.
//
// A good bank would charge once for one ID. This one would charge as often as it is asked, so that the books show
// whatever gets through.
type Bank struct {
	mu      sync.Mutex
	calls   map[string]int // by order
	charges map[string]int // by order
}

// NewBank returns a bank that has charged nothing.
func NewBank() *Bank { return &Bank{calls: map[string]int{}, charges: map[string]int{}} }

// Charge charges an order, under an ID of the charge that is the same for every attempt.
func (b *Bank) Charge(ctx context.Context, _ string, o shop.Order) error {
	if err := shop.Pause(ctx, time.Duration(1+rand.IntN(8))*time.Millisecond); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[o.ID]++
	switch last := o.Cents % 10; {
	case o.Cents%50 == 0:
		return ErrDeclined
	case last <= 2 && b.calls[o.ID] <= last:
		return ErrTimeout
	}
	b.charges[o.ID]++
	return nil
}
