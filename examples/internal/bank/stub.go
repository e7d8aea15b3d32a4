package bank

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"sync"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// A Stub of the API: POST /transfers with an Idempotency-Key transfers once, however often it is called, and answers
// as the first time. It is safe for concurrent use.
type Stub struct {
	loses     int // one in so many answers, after the transfer; 0: none
	mu        sync.Mutex
	known     map[string]string // what was asked for, by key
	transfers map[string]int    // by payment
	calls     int
}

// NewStub returns a stub that loses one in so many answers after the transfer; 0: none.
func NewStub(loses int) *Stub {
	return &Stub{loses: loses, known: map[string]string{}, transfers: map[string]int{}}
}

// Counts returns how many transfers there were of each payment, and how many calls.
func (s *Stub) Counts() (transfers map[string]int, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.transfers), s.calls
}

// ServeHTTP implements http.Handler.
func (s *Stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, shop.MaxBody))
	var of Transfer
	if err == nil {
		err = json.Unmarshal(body, &of)
	}
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" || r.Method != http.MethodPost {
		shop.Answer(w, http.StatusBadRequest, "want a transfer, and an Idempotency-Key")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.known[key]
	if known && before != string(body) {
		shop.Answer(w, http.StatusUnprocessableEntity, "the key belongs to another transfer")
		return
	}
	s.known[key] = string(body)
	if s.calls++; !known {
		s.transfers[of.Payment]++
	}
	switch {
	case s.loses > 0 && s.calls%s.loses == 0:
		shop.Answer(w, http.StatusGatewayTimeout, "nobody knows whether it was done") // it was
	case known:
		shop.Answer(w, http.StatusOK, "transferred before")
	default:
		shop.Answer(w, http.StatusCreated, "transferred")
	}
}
