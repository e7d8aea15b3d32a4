package keytest

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// A Backend is a store and a place where payments are written.
type Backend struct {
	Store dedupstore.Store

	// Pay writes a payment in the way of the tier: in the transaction of the run, if there is one.
	Pay func(r *http.Request, id string) error

	// Payments returns how many payments of an ID there are.
	Payments func(id string) int

	// Rows returns how many outbox rows of an ID there are. Nil: the backend has no outbox.
	Rows func(id string) int
}

// Charge pays, and says under which ID.
func (b *Backend) Charge(runs *Ledger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		run := oncemill.FromContext(r.Context())
		runs.Add(run.Key.ID)
		if err := b.Pay(r, run.ID("payments")); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Location", "/payments/"+run.ID("payments"))
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte("paid " + run.ID("payments")))
	}
}

// Run tests what must hold over every store.
func Run(t *testing.T, backends map[string]func(t testing.TB) *Backend) {
	for name, open := range backends {
		for says, test := range map[string]func(*testing.T, *Backend){
			"of many equal requests one runs":                       equalRequests,
			"five retries in flight get the same result":            retriesInFlight,
			"an account never gets the response of another account": accounts,
		} {
			t.Run(name+"/"+says, func(t *testing.T) {
				t.Parallel()
				test(t, open(t))
			})
		}
	}
}

func equalRequests(t *testing.T, b *Backend) {
	runs := &Ledger{}
	rg := Serve(t, NewGuard(t, b.Store, oncemill.Policy{}), idempotencykey.Config{}, b.Charge(runs))
	answers := make([]Answer, 200)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			<-start
			answers[i] = rg.Pay("k")
		})
	}
	close(start)
	wg.Wait()
	fresh, replays, conflicts := 0, 0, 0
	body := ""
	for _, a := range answers {
		switch {
		case a.Err != nil:
			t.Fatal(a.Err)
		case a.Status == 201:
			if body != "" && a.Body != body {
				t.Errorf("%q and %q", body, a.Body)
			}
			body = a.Body
			if a.Replayed() {
				replays++
			} else {
				fresh++
			}
		case a.Status == 409 && a.Header.Get("Retry-After") != "":
			conflicts++
		default:
			t.Errorf("answered %d %s", a.Status, a.Body)
		}
	}
	if id := strings.TrimPrefix(body, "paid "); fresh != 1 || runs.Total() != 1 || b.Payments(id) != 1 {
		t.Errorf("%d fresh responses, %d runs, %d payments, want one each", fresh, runs.Total(), b.Payments(id))
	}
	t.Logf("1 run, %d replays, %d conflicts", replays, conflicts)
}

func retriesInFlight(t *testing.T, b *Backend) {
	runs := &Ledger{}
	slow := b.Charge(runs)
	rg := Serve(t, NewGuard(t, b.Store, oncemill.Policy{Lease: 3 * time.Second}), idempotencykey.Config{},
		func(w http.ResponseWriter, r *http.Request) {
			<-time.After(30 * time.Millisecond) // the others come meanwhile
			slow(w, r)
		})
	tr, err := idempotencykey.NewTransport(rg.Client.Transport, idempotencykey.TransportConfig{
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
	answers := make([]Answer, 5)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.Server.URL+Route,
				strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			answers[i] = Do(client, r)
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a.Err != nil || a.Status != 201 || a.Body != answers[0].Body {
			t.Errorf("%d %q %v", a.Status, a.Body, a.Err)
		}
	}
	if id := strings.TrimPrefix(answers[0].Body, "paid "); runs.Total() != 1 || b.Payments(id) != 1 {
		t.Errorf("%d runs, %d payments, want one each", runs.Total(), b.Payments(id))
	}
}

func accounts(t *testing.T, b *Backend) {
	rg := Serve(t, NewGuard(t, b.Store, oncemill.Policy{}), idempotencykey.Config{
		Account: func(r *http.Request) (string, error) {
			if r.Header.Get("Account") == "nobody" {
				return "", errors.New("unknown")
			}
			return r.Header.Get("Account"), nil
		},
	}, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "secret of "+r.Header.Get("Account")) })
	long := strings.Repeat("a", 200)
	for _, account := range []string{"a", "b", "A", "a ", "a:POST", long, long + "b", "default", "http"} {
		account = strings.TrimSpace(account) + strings.Repeat("!", len(account)-len(strings.TrimSpace(account)))
		for _, replayed := range []bool{false, true} {
			a := rg.Pay("k", Header("Account", account))
			Want(t, a, 200, replayed)
			if a.Body != "secret of "+account {
				t.Errorf("account %q got %q", account, a.Body)
			}
		}
	}
	for _, account := range []string{"", "nobody"} {
		WantProblem(t, rg.Pay("k", Header("Account", account)), 403, idempotencykey.CodeNoAccount)
	}
}
