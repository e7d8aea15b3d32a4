package idempotencykey_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// The rules of draft-ietf-httpapi-idempotency-key-header-07, a row for each MUST and SHOULD that a server or client
// library can follow, and of Stripe's pages on idempotent requests (docs.stripe.com/api/idempotent_requests) and on
// advanced error handling (docs.stripe.com/error-low-level). The words are ours.
func TestRules_OfTheDraftAndOfStripeAreFollowed(t *testing.T) {
	t.Parallel()
	for _, rule := range []struct {
		source, says string
		check        func(t *testing.T)
	}{
		{"draft 2.1", "the value MUST be a structured field's string", func(t *testing.T) {
			rg, l := shop(t)
			want(t, rg.pay(`"8e03978e-40d5-43e8-bc93-6894a57f9324"`), 201, false)
			want(t, rg.pay(`"8e03978e-40d5-43e8-bc93-6894a57f9324";v=1`), 201, true)
			wantProblem(t, rg.pay(`"8e03978e`), 400, idempotencykey.CodeInvalid)
			wantRuns(t, l, 1)
		}},
		{"draft 2.1", "clients MUST NOT send more than one key", func(t *testing.T) {
			rg, l := shop(t)
			wantProblem(t, rg.pay(`"a"`, key(`"b"`)), 400, idempotencykey.CodeInvalid)
			wantProblem(t, rg.pay(`"a", "b"`), 400, idempotencykey.CodeInvalid)
			wantRuns(t, l, 0)
		}},
		{"draft 2.2", "a key MUST NOT be reused with another payload", func(t *testing.T) {
			rg, l := shop(t)
			want(t, rg.pay("k"), 201, false)
			wantProblem(t, rg.send("POST", route, `{"amount":101}`, key("k")), 422, idempotencykey.CodeReused)
			wantProblem(t, rg.send("POST", route+"?x=1", `{"amount":100}`, key("k")), 422, idempotencykey.CodeReused)
			wantRuns(t, l, 1)
		}},
		{"draft 2.2", "uniqueness MUST be defined by the resource owner", func(t *testing.T) {
			l := &ledger{}
			rg := serveMemory(t,
				idempotencykey.Config{Route: func(r *http.Request) string { return r.Header.Get("Resource") }},
				l.charge)
			want(t, rg.pay("k", header("Resource", "a")), 201, false)
			want(t, rg.pay("k", header("Resource", "b")), 201, false)
			want(t, rg.pay("k", header("Resource", "a")), 201, true)
		}},
		{"draft 2.3", "an expiry policy SHOULD be defined: the window", func(t *testing.T) {
			l := &ledger{}
			g := newGuard(t, newMemory(t), oncemill.Policy{
				Lease: 100 * time.Millisecond, Window: 100 * time.Millisecond,
			})
			rg := serve(t, g, idempotencykey.Config{}, l.charge)
			want(t, rg.pay("k"), 201, false)
			until(t, "the key has expired", func() bool { return !rg.pay("k").replayed() })
			if l.total() < 2 {
				t.Error("an expired key did not run again")
			}
		}},
		{"draft 2.5", "a client SHOULD send a unique key with each request", func(t *testing.T) {
			rg, l := shop(t)
			client := &http.Client{Transport: newTransport(t, rg.client.Transport, idempotencykey.TransportConfig{})}
			for range 2 {
				r, _ := http.NewRequestWithContext(t.Context(), "POST", rg.server.URL+route, strings.NewReader("{}"))
				want(t, do(client, r), 201, false)
			}
			wantRuns(t, l, 2)
		}},
		{"draft 2.5", "a server MUST publish its rules: they are linked", func(t *testing.T) {
			link := func(w http.ResponseWriter, _ *http.Request, p idempotencykey.Problem) {
				p.DocsURL = "https://developer.example.com/idempotency"
				p.Write(w)
			}
			rg := serveMemory(t, idempotencykey.Config{WriteProblem: link}, (&ledger{}).charge)
			a := rg.send("POST", route, "{}")
			if link := a.header.Get("Link"); !strings.HasPrefix(link, "<https://developer.example.com/idempotency>") ||
				!strings.Contains(link, "describedby") ||
				!strings.Contains(a.body, `"https://developer.example.com/idempotency#key-missing"`) {
				t.Errorf("Link %q, body %s", link, a.body)
			}
		}},
		{"draft 2.5", "a server SHOULD find the key and compare requests", func(t *testing.T) {
			l := &ledger{}
			rg := serveMemory(t, idempotencykey.Config{}, l.charge)
			want(t, rg.pay("k"), 201, false)
			want(t, rg.pay("k", header("User-Agent", "other")), 201, true)
			wantProblem(t, rg.send("POST", route+"/7", `{"amount":100}`, key("k2")), 201, "")
			wantProblem(t, rg.send("POST", route+"/8", `{"amount":100}`, key("k2")), 422, idempotencykey.CodeReused)
		}},
		{"draft 2.6", "a first request SHOULD be processed normally", func(t *testing.T) {
			rg, l := shop(t)
			a := rg.pay("k")
			want(t, a, 201, false)
			if a.body != `charged {"amount":100}` {
				t.Errorf("body %q", a.body)
			}
			wantRuns(t, l, 1)
		}},
		{"draft 2.6", "a retry SHOULD get the result of the completed operation", func(t *testing.T) {
			rg, l := shop(t)
			first := rg.pay("k")
			again := rg.pay("k")
			want(t, again, 201, true)
			if again.body != first.body || again.header.Get("Location") != first.header.Get("Location") ||
				first.header.Get("Location") == "" {
				t.Errorf("got %v %q, then %v %q", first.header, first.body, again.header, again.body)
			}
			wantRuns(t, l, 1)
		}},
		{"draft 2.6", "... success or an error", func(t *testing.T) {
			rg, n := answering(t, idempotencykey.Config{}, 402)
			want(t, rg.pay("k"), 402, false)
			want(t, rg.pay("k"), 402, true)
			wantRuns(t, n, 1)
		}},
		{"draft 2.6, 2.7", "a concurrent request MUST be answered with a conflict, SHOULD with 409",
			func(t *testing.T) {
				rg, release, first := occupied(t, oncemill.Policy{Lease: time.Hour})
				a := rg.pay("k")
				wantProblem(t, a, 409, idempotencykey.CodeInProgress)
				if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 60 || n > 3600 {
					t.Errorf("Retry-After %q, want what remains of a lease of an hour", a.header.Get("Retry-After"))
				}
				release()
				want(t, <-first, 201, false)
				want(t, rg.pay("k"), 201, true)
			}},
		{"draft 2.7", "a missing key SHOULD be answered with 400 and a link", func(t *testing.T) {
			rg, l := shop(t)
			a := rg.send("POST", route, "{}")
			wantProblem(t, a, 400, idempotencykey.CodeMissing)
			if !strings.Contains(a.body, `"type":"https://`) ||
				!strings.Contains(a.header.Get("Link"), `rel="describedby"`) {
				t.Errorf("no link in %v %s", a.header, a.body)
			}
			wantRuns(t, l, 0)
		}},
		{"draft 2.7", "a reused key SHOULD be answered with 422 and a link", func(t *testing.T) {
			rg, _ := shop(t)
			rg.pay("k")
			a := rg.send("POST", route, "other", key("k"))
			wantProblem(t, a, 422, idempotencykey.CodeReused)
			if !strings.Contains(a.body, `"type":"https://`) ||
				!strings.Contains(a.header.Get("Link"), `rel="describedby"`) {
				t.Errorf("no link in %v %s", a.header, a.body)
			}
		}},
		{"draft 2.7", "clients MUST correct a request, or it MUST fail again", func(t *testing.T) {
			rg, l := shop(t)
			want(t, rg.pay("k"), 201, false)
			for range 3 {
				wantProblem(t, rg.send("POST", route, "other", key("k")), 422, idempotencykey.CodeReused)
				wantProblem(t, rg.send("POST", route, "other"), 400, idempotencykey.CodeMissing)
			}
			want(t, rg.send("POST", route, "other", key("k2")), 201, false)
			want(t, rg.pay("k"), 201, true)
			wantRuns(t, l, 2)
		}},
		{"draft 5", "keys are validated before anything is processed", func(t *testing.T) {
			rg, l := shop(t)
			for _, bad := range []string{"a\tb", "a b", "ä", `"\x"`, "a,b", "a\\b", strings.Repeat("k", 256)} {
				wantProblem(t, rg.pay(bad), 400, idempotencykey.CodeInvalid)
			}
			wantRuns(t, l, 0)
		}},
		{"draft 5", "a composite key keeps clients apart", func(t *testing.T) {
			rg, l := accounts(t)
			want(t, rg.pay("k", header("Account", "a")), 201, false)
			want(t, rg.pay("k", header("Account", "b")), 201, false)
			wantRuns(t, l, 2)
		}},

		{"Stripe, idempotent requests", "status and body of the first request are kept, 500 included",
			func(t *testing.T) {
				rg, n := answering(t, idempotencykey.Config{}, 500)
				first, again := rg.pay("k"), rg.pay("k")
				want(t, first, 500, false)
				want(t, again, 500, true)
				if again.body != first.body || first.body == "" {
					t.Errorf("%q, then %q", first.body, again.body)
				}
				wantRuns(t, n, 1)
			}},
		{"Stripe, idempotent requests", "a key has up to 255 characters", func(t *testing.T) {
			rg, _ := shop(t)
			want(t, rg.pay(strings.Repeat("k", 255)), 201, false)
			want(t, rg.pay(strings.Repeat("k", 255)), 201, true)
			wantProblem(t, rg.pay(strings.Repeat("k", 256)), 400, idempotencykey.CodeInvalid)
		}},
		{"Stripe, idempotent requests", "keys live for at least 24 hours", func(t *testing.T) {
			if w := newGuard(t, newMemory(t), oncemill.Policy{}).Policy(); w.Window < 24*time.Hour ||
				w.FailureWindow < 24*time.Hour {
				t.Errorf("windows %v and %v", w.Window, w.FailureWindow)
			}
		}},
		{"Stripe, idempotent requests", "other parameters with the same key are an error", func(t *testing.T) {
			rg, l := shop(t)
			want(t, rg.pay("k"), 201, false)
			wantProblem(t, rg.send("POST", route, `{"amount":200}`, key("k")), 422, idempotencykey.CodeReused)
			wantRuns(t, l, 1)
		}},
		{"Stripe, idempotent requests", "what fails before the operation begins is not kept", func(t *testing.T) {
			l := &ledger{}
			rg := serveMemory(t, idempotencykey.Config{MaxRequestBody: 20}, l.charge)
			wantProblem(t, rg.send("POST", route, strings.Repeat("x", 21), key("k")), 413, idempotencykey.CodeTooLarge)
			wantProblem(t, rg.send("POST", route, "", header("Idempotency-Key", "k"), header("Idempotency-Key", "k")),
				400, idempotencykey.CodeInvalid) //nolint:gocritic // twice
			want(t, rg.pay("k"), 201, false)
		}},
		{"Stripe, idempotent requests", "a conflict is not kept, and the request can be repeated", func(t *testing.T) {
			rg, release, first := occupied(t, oncemill.Policy{})
			for range 3 {
				wantProblem(t, rg.pay("k"), 409, idempotencykey.CodeInProgress)
			}
			release()
			want(t, <-first, 201, false)
			want(t, rg.pay("k"), 201, true)
		}},
		{"Stripe, idempotent requests", "GET and DELETE need no keys: a GET's has no effect, a DELETE's is honoured",
			func(t *testing.T) {
				n := &ledger{}
				rg := serveMemory(t, idempotencykey.Config{}, func(http.ResponseWriter, *http.Request) { n.add("") })
				for _, replayed := range []bool{false, true} {
					want(t, rg.send("GET", route, "", key("k")), 200, false)
					want(t, rg.send("DELETE", route, ""), 200, false)
					want(t, rg.send("DELETE", route, "", key("k")), 200, replayed)
				}
				wantRuns(t, n, 5)
			}},
		{"Stripe, advanced error handling", "a replay has Idempotent-Replayed: true", func(t *testing.T) {
			rg, _ := shop(t)
			if a := rg.pay("k"); a.header.Get("Idempotent-Replayed") != "" {
				t.Error("a first response says that it is a replay")
			}
			if a := rg.pay("k"); a.header.Get("Idempotent-Replayed") != "true" {
				t.Error("a replay does not say so")
			}
		}},
		{"Stripe, advanced error handling", "a 400 of the operation is repeated", func(t *testing.T) {
			rg, n := answering(t, idempotencykey.Config{}, 400)
			want(t, rg.pay("k"), 400, false)
			want(t, rg.pay("k"), 400, true)
			wantRuns(t, n, 1)
		}},
		{"Stripe, advanced error handling", "rate limits and authentication come before, so 429 and 401 are not kept",
			func(t *testing.T) {
				l := &ledger{}
				m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{})
				mux := http.NewServeMux()
				mux.Handle(route, m.Wrap(http.HandlerFunc(l.charge)))
				refusals := []int{429, 401}
				rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if len(refusals) > 0 {
						w.WriteHeader(refusals[0])
						refusals = refusals[1:]
						return
					}
					mux.ServeHTTP(w, r)
				}))
				want(t, rg.pay("k"), 429, false)
				want(t, rg.pay("k"), 401, false)
				want(t, rg.pay("k"), 201, false)
			}},
	} {
		t.Run(rule.source+": "+rule.says, func(t *testing.T) {
			t.Parallel()
			rule.check(t)
		})
	}
}

func wantRuns(t testing.TB, l *ledger, n int) {
	t.Helper()
	if got := l.total(); got != n {
		t.Errorf("%d runs, want %d", got, n)
	}
}

// shop is a service that charges.
func shop(t testing.TB) (*rig, *ledger) {
	t.Helper()
	l := &ledger{}
	return serveMemory(t, idempotencykey.Config{}, l.charge), l
}

// accounts is a shop whose account is in a header.
func accounts(t testing.TB) (*rig, *ledger) {
	t.Helper()
	l := &ledger{}
	return serveMemory(t, idempotencykey.Config{
		Account: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
	}, l.charge), l
}

// answering is a service that answers with one status after the other, the last one for ever, and says which run it
// was.
func answering(t testing.TB, c idempotencykey.Config, statuses ...int) (*rig, *ledger) {
	t.Helper()
	l := &ledger{}
	return serveMemory(t, c, func(w http.ResponseWriter, _ *http.Request) {
		n := l.add("")
		w.WriteHeader(statuses[min(n, len(statuses))-1])
		io.WriteString(w, "run "+strconv.Itoa(n))
	}), l
}

// occupied is a shop in which a payment under the key k is being processed until it is released.
func occupied(t testing.TB, p oncemill.Policy) (rg *rig, release func(), first <-chan answer) {
	t.Helper()
	return occupiedOver(t, newGuard(t, newMemory(t), p), idempotencykey.Config{})
}

func occupiedBy(t testing.TB, c idempotencykey.Config) (rg *rig, release func(), first <-chan answer) {
	t.Helper()
	return occupiedOver(t, newGuard(t, newMemory(t), oncemill.Policy{}), c)
}

func occupiedOver(t testing.TB, g *oncemill.Guard, c idempotencykey.Config) (rg *rig, release func(),
	first <-chan answer) {
	t.Helper()
	l := &ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	rg = serve(t, g, c, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-end
		l.charge(w, r)
	})
	answers := make(chan answer, 1)
	go func() { answers <- rg.pay("k") }()
	<-begun
	return rg, func() { close(end) }, answers
}

func newTransport(t testing.TB, base http.RoundTripper, c idempotencykey.TransportConfig) *idempotencykey.Transport {
	t.Helper()
	tr, err := idempotencykey.NewTransport(base, c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}
