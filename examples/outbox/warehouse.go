package main

import (
	"context"
	"errors"
	"sync"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// errBusy says that the warehouse did not answer. Asking again may help.
var errBusy = errors.New("the warehouse does not answer")

// A warehouse has what it is asked for, unless the plan says otherwise. It is safe for concurrent use.
type warehouse struct {
	luck map[string]luck // by order; none: fine

	mu    sync.Mutex
	asked map[string]bool
}

func newWarehouse(orders []planned) *warehouse {
	w := &warehouse{luck: map[string]luck{}, asked: map[string]bool{}}
	for _, p := range orders {
		w.luck[p.ID] = p.luck
	}
	return w
}

// reserve is a reserving.
func (w *warehouse) reserve(_ context.Context, o shop.Order) error {
	switch w.luck[o.ID] {
	case soldOut:
		return errSoldOut
	case busy:
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.asked[o.ID] {
			w.asked[o.ID] = true
			return errBusy
		}
	}
	return nil
}
