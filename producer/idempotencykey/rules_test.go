package idempotencykey_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// The rules of draft-ietf-httpapi-idempotency-key-header-07, with a row for each MUST and SHOULD that a server or
// client library can follow. Beside them are the rules of Stripe's pages on idempotent requests
// (docs.stripe.com/api/idempotent_requests) and on advanced error handling (docs.stripe.com/error-low-level). The words
// are ours.
func TestRules_OfTheDraftAndOfStripeAreFollowed(t *testing.T) {
	t.Parallel()
	for _, rule := range []struct {
		source, says string
		check        func(t *testing.T)
	}{
		{"draft 2.1", "the value MUST be a structured field's string", func(t *testing.T) {
			rg, l := shop(t)
			keytest.Want(t, rg.Pay(`"8e03978e-40d5-43e8-bc93-6894a57f9324"`), 201, false)
			keytest.Want(t, rg.Pay(`"8e03978e-40d5-43e8-bc93-6894a57f9324";v=1`), 201, true)
			keytest.WantProblem(t, rg.Pay(`"8e03978e`), 400, idempotencykey.CodeInvalid)
			keytest.WantRuns(t, l, 1)
		}},
		{"draft 2.1", "clients MUST NOT send more than one key", func(t *testing.T) {
			rg, l := shop(t)
			keytest.WantProblem(t, rg.Pay(`"a"`, keytest.Key(`"b"`)), 400, idempotencykey.CodeInvalid)
			keytest.WantProblem(t, rg.Pay(`"a", "b"`), 400, idempotencykey.CodeInvalid)
			keytest.WantRuns(t, l, 0)
		}},
		{"draft 2.2", "a key MUST NOT be reused with another payload", func(t *testing.T) {
			rg, l := shop(t)
			keytest.Want(t, rg.Pay("k"), 201, false)
			keytest.WantProblem(t, rg.Send("POST", keytest.Route, `{"amount":101}`, keytest.Key("k")),
				422, idempotencykey.CodeReused)
			keytest.WantProblem(t, rg.Send("POST", keytest.Route+"?x=1", `{"amount":100}`, keytest.Key("k")),
				422, idempotencykey.CodeReused)
			keytest.WantRuns(t, l, 1)
		}},
		{"draft 2.2", "uniqueness MUST be defined by the resource owner", func(t *testing.T) {
			l := &keytest.Ledger{}
			rg := serveMemory(t,
				idempotencykey.Config{Route: func(r *http.Request) string { return r.Header.Get("Resource") }},
				l.Charge)
			keytest.Want(t, rg.Pay("k", keytest.Header("Resource", "a")), 201, false)
			keytest.Want(t, rg.Pay("k", keytest.Header("Resource", "b")), 201, false)
			keytest.Want(t, rg.Pay("k", keytest.Header("Resource", "a")), 201, true)
		}},
		{"draft 2.3", "an expiry policy SHOULD be defined: the window", func(t *testing.T) {
			l := &keytest.Ledger{}
			g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{
				Lease: 100 * time.Millisecond, Window: 100 * time.Millisecond,
			})
			rg := keytest.Serve(t, g, idempotencykey.Config{}, l.Charge)
			keytest.Want(t, rg.Pay("k"), 201, false)
			keytest.Until(t, "the key has expired", func() bool { return !rg.Pay("k").Replayed() })
			if l.Total() < 2 {
				t.Error("an expired key did not run again")
			}
		}},
		{"draft 2.5", "a client SHOULD send a unique key with each request", func(t *testing.T) {
			rg, l := shop(t)
			client := &http.Client{Transport: newTransport(t, rg.Client.Transport, idempotencykey.TransportConfig{})}
			for range 2 {
				url := rg.Server.URL + keytest.Route
				r, _ := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader("{}"))
				keytest.Want(t, keytest.Do(client, r), 201, false)
			}
			keytest.WantRuns(t, l, 2)
		}},
		{"draft 2.5", "a server MUST publish its rules: they are linked", func(t *testing.T) {
			link := func(w http.ResponseWriter, _ *http.Request, p idempotencykey.Problem) {
				p.DocsURL = "https://developer.example.com/idempotency"
				p.Write(w)
			}
			rg := serveMemory(t, idempotencykey.Config{WriteProblem: link}, (&keytest.Ledger{}).Charge)
			a := rg.Send("POST", keytest.Route, "{}")
			if link := a.Header.Get("Link"); !strings.HasPrefix(link, "<https://developer.example.com/idempotency>") ||
				!strings.Contains(link, "describedby") ||
				!strings.Contains(a.Body, `"https://developer.example.com/idempotency#key-missing"`) {
				t.Errorf("Link %q, body %s", link, a.Body)
			}
		}},
		{"draft 2.5", "a server SHOULD find the key and compare requests", func(t *testing.T) {
			l := &keytest.Ledger{}
			rg := serveMemory(t, idempotencykey.Config{}, l.Charge)
			keytest.Want(t, rg.Pay("k"), 201, false)
			keytest.Want(t, rg.Pay("k", keytest.Header("User-Agent", "other")), 201, true)
			keytest.WantProblem(t, rg.Send("POST", keytest.Route+"/7", `{"amount":100}`, keytest.Key("k2")), 201, "")
			keytest.WantProblem(t, rg.Send("POST", keytest.Route+"/8", `{"amount":100}`, keytest.Key("k2")),
				422, idempotencykey.CodeReused)
		}},
		{"draft 2.6", "a first request SHOULD be processed normally", func(t *testing.T) {
			rg, l := shop(t)
			a := rg.Pay("k")
			keytest.Want(t, a, 201, false)
			if a.Body != `charged {"amount":100}` {
				t.Errorf("body %q", a.Body)
			}
			keytest.WantRuns(t, l, 1)
		}},
		{"draft 2.6", "a retry SHOULD get the result of the completed operation", func(t *testing.T) {
			rg, l := shop(t)
			first := rg.Pay("k")
			again := rg.Pay("k")
			keytest.Want(t, again, 201, true)
			if again.Body != first.Body || again.Header.Get("Location") != first.Header.Get("Location") ||
				first.Header.Get("Location") == "" {
				t.Errorf("got %v %q, then %v %q", first.Header, first.Body, again.Header, again.Body)
			}
			keytest.WantRuns(t, l, 1)
		}},
		{"draft 2.6", "... success or an error", func(t *testing.T) {
			rg, n := answering(t, idempotencykey.Config{}, 402)
			keytest.Want(t, rg.Pay("k"), 402, false)
			keytest.Want(t, rg.Pay("k"), 402, true)
			keytest.WantRuns(t, n, 1)
		}},
		{"draft 2.6, 2.7", "a concurrent request MUST be answered with a conflict, SHOULD with 409",
			func(t *testing.T) {
				rg, release, first := occupied(t, oncemill.Policy{Lease: time.Hour})
				a := rg.Pay("k")
				keytest.WantProblem(t, a, 409, idempotencykey.CodeInProgress)
				if n, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || n < 60 || n > 3600 {
					t.Errorf("Retry-After %q, want what remains of a lease of an hour", a.Header.Get("Retry-After"))
				}
				release()
				keytest.Want(t, <-first, 201, false)
				keytest.Want(t, rg.Pay("k"), 201, true)
			}},
		{"draft 2.7", "a missing key SHOULD be answered with 400 and a link", func(t *testing.T) {
			rg, l := shop(t)
			a := rg.Send("POST", keytest.Route, "{}")
			keytest.WantProblem(t, a, 400, idempotencykey.CodeMissing)
			if !strings.Contains(a.Body, `"type":"https://`) ||
				!strings.Contains(a.Header.Get("Link"), `rel="describedby"`) {
				t.Errorf("no link in %v %s", a.Header, a.Body)
			}
			keytest.WantRuns(t, l, 0)
		}},
		{"draft 2.7", "a reused key SHOULD be answered with 422 and a link", func(t *testing.T) {
			rg, _ := shop(t)
			rg.Pay("k")
			a := rg.Send("POST", keytest.Route, "other", keytest.Key("k"))
			keytest.WantProblem(t, a, 422, idempotencykey.CodeReused)
			if !strings.Contains(a.Body, `"type":"https://`) ||
				!strings.Contains(a.Header.Get("Link"), `rel="describedby"`) {
				t.Errorf("no link in %v %s", a.Header, a.Body)
			}
		}},
		{"draft 2.7", "clients MUST correct a request, or it MUST fail again", func(t *testing.T) {
			rg, l := shop(t)
			keytest.Want(t, rg.Pay("k"), 201, false)
			for range 3 {
				keytest.WantProblem(t, rg.Send("POST", keytest.Route, "other", keytest.Key("k")),
					422, idempotencykey.CodeReused)
				keytest.WantProblem(t, rg.Send("POST", keytest.Route, "other"), 400, idempotencykey.CodeMissing)
			}
			keytest.Want(t, rg.Send("POST", keytest.Route, "other", keytest.Key("k2")), 201, false)
			keytest.Want(t, rg.Pay("k"), 201, true)
			keytest.WantRuns(t, l, 2)
		}},
		{"draft 5", "keys are validated before anything is processed", func(t *testing.T) {
			rg, l := shop(t)
			for _, bad := range []string{"a\tb", "a b", "ä", `"\x"`, "a,b", "a\\b", strings.Repeat("k", 256)} {
				keytest.WantProblem(t, rg.Pay(bad), 400, idempotencykey.CodeInvalid)
			}
			keytest.WantRuns(t, l, 0)
		}},
		{"draft 5", "a composite key keeps clients apart", func(t *testing.T) {
			rg, l := accounts(t)
			keytest.Want(t, rg.Pay("k", keytest.Header("Account", "a")), 201, false)
			keytest.Want(t, rg.Pay("k", keytest.Header("Account", "b")), 201, false)
			keytest.WantRuns(t, l, 2)
		}},

		{"Stripe, idempotent requests", "status and body of the first request are kept, 500 included",
			func(t *testing.T) {
				rg, n := answering(t, idempotencykey.Config{}, 500)
				first, again := rg.Pay("k"), rg.Pay("k")
				keytest.Want(t, first, 500, false)
				keytest.Want(t, again, 500, true)
				if again.Body != first.Body || first.Body == "" {
					t.Errorf("%q, then %q", first.Body, again.Body)
				}
				keytest.WantRuns(t, n, 1)
			}},
		{"Stripe, idempotent requests", "a key has up to 255 characters", func(t *testing.T) {
			rg, _ := shop(t)
			keytest.Want(t, rg.Pay(strings.Repeat("k", 255)), 201, false)
			keytest.Want(t, rg.Pay(strings.Repeat("k", 255)), 201, true)
			keytest.WantProblem(t, rg.Pay(strings.Repeat("k", 256)), 400, idempotencykey.CodeInvalid)
		}},
		{"Stripe, idempotent requests", "keys live for at least 24 hours", func(t *testing.T) {
			if w := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{}).Policy(); w.Window < 24*time.Hour ||
				w.FailureWindow < 24*time.Hour {
				t.Errorf("windows %v and %v", w.Window, w.FailureWindow)
			}
		}},
		{"Stripe, idempotent requests", "other parameters with the same key are an error", func(t *testing.T) {
			rg, l := shop(t)
			keytest.Want(t, rg.Pay("k"), 201, false)
			keytest.WantProblem(t, rg.Send("POST", keytest.Route, `{"amount":200}`, keytest.Key("k")),
				422, idempotencykey.CodeReused)
			keytest.WantRuns(t, l, 1)
		}},
		{"Stripe, idempotent requests", "what fails before the operation begins is not kept", func(t *testing.T) {
			l := &keytest.Ledger{}
			rg := serveMemory(t, idempotencykey.Config{MaxRequestBody: 20}, l.Charge)
			keytest.WantProblem(t, rg.Send("POST", keytest.Route, strings.Repeat("x", 21), keytest.Key("k")),
				413, idempotencykey.CodeTooLarge)
			twice := rg.Send("POST", keytest.Route, "", keytest.Key("k"), keytest.Key("k")) //nolint:gocritic // twice
			keytest.WantProblem(t, twice, 400, idempotencykey.CodeInvalid)
			keytest.Want(t, rg.Pay("k"), 201, false)
		}},
		{"Stripe, idempotent requests", "a conflict is not kept, and the request can be repeated", func(t *testing.T) {
			rg, release, first := occupied(t, oncemill.Policy{})
			for range 3 {
				keytest.WantProblem(t, rg.Pay("k"), 409, idempotencykey.CodeInProgress)
			}
			release()
			keytest.Want(t, <-first, 201, false)
			keytest.Want(t, rg.Pay("k"), 201, true)
		}},
		{"Stripe, idempotent requests", "GET and DELETE need no keys: a GET's has no effect, a DELETE's is honoured",
			func(t *testing.T) {
				n := &keytest.Ledger{}
				rg := serveMemory(t, idempotencykey.Config{}, func(http.ResponseWriter, *http.Request) { n.Add("") })
				for _, replayed := range []bool{false, true} {
					keytest.Want(t, rg.Send("GET", keytest.Route, "", keytest.Key("k")), 200, false)
					keytest.Want(t, rg.Send("DELETE", keytest.Route, ""), 200, false)
					keytest.Want(t, rg.Send("DELETE", keytest.Route, "", keytest.Key("k")), 200, replayed)
				}
				keytest.WantRuns(t, n, 5)
			}},
		{"Stripe, advanced error handling", "a replay has Idempotent-Replayed: true", func(t *testing.T) {
			rg, _ := shop(t)
			if a := rg.Pay("k"); a.Header.Get("Idempotent-Replayed") != "" {
				t.Error("a first response says that it is a replay")
			}
			if a := rg.Pay("k"); a.Header.Get("Idempotent-Replayed") != "true" {
				t.Error("a replay does not say so")
			}
		}},
		{"Stripe, advanced error handling", "a 400 of the operation is repeated", func(t *testing.T) {
			rg, n := answering(t, idempotencykey.Config{}, 400)
			keytest.Want(t, rg.Pay("k"), 400, false)
			keytest.Want(t, rg.Pay("k"), 400, true)
			keytest.WantRuns(t, n, 1)
		}},
		{"Stripe, advanced error handling", "rate limits and authentication come before, so 429 and 401 are not kept",
			func(t *testing.T) {
				l := &keytest.Ledger{}
				m := newMiddleware(t, idempotencykey.Config{})
				mux := http.NewServeMux()
				mux.Handle(keytest.Route, m.Wrap(http.HandlerFunc(l.Charge)))
				refusals := []int{429, 401}
				rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if len(refusals) > 0 {
						w.WriteHeader(refusals[0])
						refusals = refusals[1:]
						return
					}
					mux.ServeHTTP(w, r)
				}))
				keytest.Want(t, rg.Pay("k"), 429, false)
				keytest.Want(t, rg.Pay("k"), 401, false)
				keytest.Want(t, rg.Pay("k"), 201, false)
			}},
	} {
		t.Run(rule.source+": "+rule.says, func(t *testing.T) {
			t.Parallel()
			rule.check(t)
		})
	}
}

// shop is a service that charges.
func shop(t testing.TB) (*keytest.Rig, *keytest.Ledger) {
	t.Helper()
	l := &keytest.Ledger{}
	return serveMemory(t, idempotencykey.Config{}, l.Charge), l
}

// accounts is a shop whose account is in a header.
func accounts(t testing.TB) (*keytest.Rig, *keytest.Ledger) {
	t.Helper()
	l := &keytest.Ledger{}
	return serveMemory(t, idempotencykey.Config{
		Account: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
	}, l.Charge), l
}

// answering is a service that answers with one status after another, the last one for ever, and says which run it was.
func answering(t testing.TB, c idempotencykey.Config, statuses ...int) (*keytest.Rig, *keytest.Ledger) {
	t.Helper()
	l := &keytest.Ledger{}
	return serveMemory(t, c, func(w http.ResponseWriter, _ *http.Request) {
		n := l.Add("")
		w.WriteHeader(statuses[min(n, len(statuses))-1])
		io.WriteString(w, "run "+strconv.Itoa(n))
	}), l
}

// occupied is a shop in which a payment under the key k is being processed until it is released.
func occupied(t testing.TB, p oncemill.Policy) (rg *keytest.Rig, release func(), first <-chan keytest.Answer) {
	t.Helper()
	return occupiedOver(t, keytest.NewGuard(t, keytest.NewMemory(t), p), idempotencykey.Config{})
}

func occupiedBy(t testing.TB, c idempotencykey.Config) (rg *keytest.Rig, release func(), first <-chan keytest.Answer) {
	t.Helper()
	return occupiedOver(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{}), c)
}

func occupiedOver(t testing.TB, g *oncemill.Guard, c idempotencykey.Config) (rg *keytest.Rig, release func(),
	first <-chan keytest.Answer) {
	t.Helper()
	l := &keytest.Ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	rg = keytest.Serve(t, g, c, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-end
		l.Charge(w, r)
	})
	answers := make(chan keytest.Answer, 1)
	go func() { answers <- rg.Pay("k") }()
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
