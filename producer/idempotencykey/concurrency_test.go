package idempotencykey_test

import (
	"net/http"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
)

// leased is a backend whose payments are written beside the store.
func leased(store dedupstore.Store) *keytest.Backend {
	l := &keytest.Ledger{}
	return &keytest.Backend{
		Store:    store,
		Pay:      func(_ *http.Request, id string) error { l.Add(id); return nil },
		Payments: l.Count,
	}
}

func memoryInbox(t testing.TB) *keytest.Backend {
	box := keytest.NewInbox(t)
	return &keytest.Backend{
		Store: box,
		Pay:   func(r *http.Request, id string) error { keytest.Write(r.Context(), id); return nil },
		Payments: func(id string) (n int) {
			for _, row := range box.Rows() {
				if row == id {
					n++
				}
			}
			return n
		},
	}
}

func TestMiddleware_OverStoresInMemory(t *testing.T) {
	t.Parallel()
	keytest.Run(t, map[string]func(t testing.TB) *keytest.Backend{
		"memory":       func(t testing.TB) *keytest.Backend { return leased(keytest.NewMemory(t)) },
		"memory inbox": memoryInbox,
	})
}
