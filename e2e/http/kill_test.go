package http_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/internal/keytest"
)

// full is the first number in proofs, else the second.
func full(proof, reduced int) int {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return proof
	}
	return reduced
}

func TestKill_RetryGetsTheStoredResponseOrRunsAgainByTheRuleOfTheTier(t *testing.T) {
	t.Parallel()
	for _, kind := range durable {
		transacted := strings.HasSuffix(kind, "inbox")
		for where, payments := range map[string]int{
			beforeEffect: 1,
			afterEffect:  map[bool]int{false: 2, true: 1}[transacted],
			// with a lease alone the effect is there, and nobody knows
			beforeReply: 1,
		} {
			t.Run(kind+" "+where, func(t *testing.T) {
				t.Parallel()
				place := newPlace(t, kind)
				b := openFor(t, kind, place)
				client := newClient(t)
				p := start(t, kind, place)
				first := make(chan keytest.Answer, 1)
				go func() {
					a := p.post(client, "k", where)
					for a.Err == nil && a.Status == http.StatusServiceUnavailable { // a busy machine's first claim
						a = p.post(client, "k", where)
					}
					first <- a
				}()
				if line := p.line(t); line != "stopped" {
					t.Fatal(line)
				}
				p.kill()
				if a := <-first; a.Err == nil {
					t.Fatalf("the killed process answered %d", a.Status)
				}
				p = start(t, kind, place)
				a := p.settle(t, client, "k")
				keytest.Want(t, a, http.StatusCreated, where == beforeReply)
				again := p.settle(t, client, "k")
				keytest.Want(t, again, http.StatusCreated, true)
				id := paymentOf(a)
				if again.Body != a.Body || b.Payments(id) != payments {
					t.Errorf("%q, then %q; %d payments, want %d", a.Body, again.Body, b.Payments(id), payments)
				}
				if transacted && b.Rows(id) != 1 {
					t.Errorf("%d rows in the outbox, want 1", b.Rows(id))
				}
			})
		}
	}
}

// paymentOf is the ID of the payment that a response speaks of.
func paymentOf(a keytest.Answer) string {
	fields := strings.Fields(a.Body)
	if len(fields) < 2 {
		return ""
	}
	return fields[1]
}

func TestKill_AnywhereUnderLoadNothingIsLostAndInAnInboxNothingIsDouble(t *testing.T) {
	t.Parallel()
	rounds, clients := full(25, 2), 8
	for _, kind := range []string{onRedis, onPostgresInbox, onMySQLInbox, onSQLiteInbox} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			place := newPlace(t, kind)
			b := openFor(t, kind, place)
			client := newClient(t)
			var mu sync.Mutex
			answered := map[string]string{} // what clients got, by key; empty: nothing
			for round := range rounds {
				p := start(t, kind, place)
				responses := 0
				var wg sync.WaitGroup
				for c := range clients {
					wg.Go(func() {
						for i := 0; ; i++ {
							k := fmt.Sprintf("%d-%d-%d", round, c, i)
							a := p.post(client, k, "")
							mu.Lock()
							if a.Err == nil && a.Status == http.StatusCreated {
								answered[k] = a.Body
								responses++
							} else {
								answered[k] = ""
							}
							mu.Unlock()
							if a.Err != nil {
								return
							}
						}
					})
				}
				enough := 20 + rand.N(60)
				keytest.Until(t, "the shop has answered", func() bool {
					mu.Lock()
					defer mu.Unlock()
					return responses >= enough
				})
				p.kill()
				wg.Wait()
			}
			p := start(t, kind, place)
			double, open := 0, 0
			for k, body := range answered {
				a := p.settle(t, client, k)
				if a.Status != http.StatusCreated || body != "" && (a.Body != body || !a.Replayed()) {
					t.Errorf("%s: answered %q, then %d %q, replayed %v", k, body, a.Status, a.Body, a.Replayed())
				}
				if body == "" {
					open++
				}
				switch n := b.Payments(paymentOf(a)); {
				case n == 0:
					t.Errorf("%s: no payment", k)
				case n > 1 && b.Rows != nil:
					t.Errorf("%s: %d payments", k, n)
				case n > 1:
					double++
				}
			}
			if double > rounds*clients {
				t.Errorf("%d payments were made twice by %d kills of %d clients", double, rounds, clients)
			}
			t.Logf("%d payments, %d kills, %d without a response, %d made twice", len(answered), rounds, open, double)
		})
	}
}
