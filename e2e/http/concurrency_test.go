package http_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// A backend is a store and a place where payments are written.
type backend struct {
	store dedupstore.Store

	// pay writes a payment in the way of the tier: in the transaction of the run, if there is one.
	pay func(r *http.Request, id string) error

	// payments returns how many payments of an ID there are.
	payments func(id string) int

	// rows returns how many outbox rows of an ID there are. Nil: the backend has no outbox.
	rows func(id string) int
}

// charge pays, and says under which ID.
func (b *backend) charge(runs *ledger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		run := oncemill.FromContext(r.Context())
		runs.add(run.Key.ID)
		if err := b.pay(r, run.ID("payments")); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Location", "/payments/"+run.ID("payments"))
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte("paid " + run.ID("payments")))
	}
}

func TestConcurrency_OfManyEqualRequestsOneRuns(t *testing.T) {
	t.Parallel()
	const clients = 200
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, runs := open(t), &ledger{}
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{}, b.charge(runs))
			answers := make([]answer, clients)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() {
					<-start
					answers[i] = rg.pay("k")
				})
			}
			close(start)
			wg.Wait()
			fresh, replays, conflicts := 0, 0, 0
			body := ""
			for _, a := range answers {
				switch {
				case a.err != nil:
					t.Fatal(a.err)
				case a.status == 201:
					if body != "" && a.body != body {
						t.Errorf("%q and %q", body, a.body)
					}
					body = a.body
					if a.replayed() {
						replays++
					} else {
						fresh++
					}
				case a.status == 409 && a.header.Get("Retry-After") != "":
					conflicts++
				default:
					t.Errorf("answered %d %s", a.status, a.body)
				}
			}
			if id := strings.TrimPrefix(body, "paid "); fresh != 1 || runs.total() != 1 || b.payments(id) != 1 {
				t.Errorf("%d fresh responses, %d runs, %d payments, want one each", fresh, runs.total(), b.payments(id))
			}
			t.Logf("1 run, %d replays, %d conflicts", replays, conflicts)
		})
	}
}

func TestConcurrency_FiveRetriesInFlightGetTheSameResult(t *testing.T) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, runs := open(t), &ledger{}
			slow := b.charge(runs)
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{Lease: time.Second}), idempotencykey.Config{},
				func(w http.ResponseWriter, r *http.Request) {
					<-time.After(30 * time.Millisecond) // the others come meanwhile
					slow(w, r)
				})
			tr, err := idempotencykey.NewTransport(rg.client.Transport, idempotencykey.TransportConfig{
				MaxElapsed: 10 * time.Second, MaxAttempts: 50,
				Retry: func(resp *http.Response) bool {
					again := idempotencykey.RetryResponse(resp)
					resp.Header.Del("Retry-After") // a second at least
					return again
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{Transport: tr}
			ctx := idempotencykey.WithKey(t.Context(), "five")
			answers := make([]answer, 5)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() {
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.server.URL+route,
						strings.NewReader("{}"))
					if err != nil {
						t.Error(err)
						return
					}
					answers[i] = do(client, r)
				})
			}
			wg.Wait()
			for _, a := range answers {
				if a.err != nil || a.status != 201 || a.body != answers[0].body {
					t.Errorf("%d %q %v", a.status, a.body, a.err)
				}
			}
			if id := strings.TrimPrefix(answers[0].body, "paid "); runs.total() != 1 || b.payments(id) != 1 {
				t.Errorf("%d runs, %d payments, want one each", runs.total(), b.payments(id))
			}
		})
	}
}
