package http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestSecurity_AnAccountNeverGetsTheResponseOfAnother(t *testing.T) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{
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
					a := rg.pay("k", header("Account", account))
					want(t, a, 200, replayed)
					if a.body != "secret of "+account {
						t.Errorf("account %q got %q", account, a.body)
					}
				}
			}
			for _, account := range []string{"", "nobody"} {
				wantProblem(t, rg.pay("k", header("Account", account)), 403, idempotencykey.CodeNoAccount)
			}
		})
	}
}

// spy remembers everything that is given to a store.
type spy struct {
	dedupstore.Store
	mu   sync.Mutex
	seen []string
}

func (s *spy) note(v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf("%+v", v))
	if f, ok := v.(dedupstore.Finish); ok {
		s.seen = append(s.seen, string(f.Outcome.Result))
	}
}

func (s *spy) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.seen, "\n")
}

func (s *spy) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *spy) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.note(r)
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func (s *spy) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (s *spy) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	s.note(settlement)
	return dedupstore.SettleOne(ctx, s.Store, c, settlement)
}

func TestSecurity_TheRecordInRedisHasNoCredentials(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client()
	b := openFor(t, onRedis, server.Addr)
	rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{Group: "records"},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "session=hidden")
			w.Header().Set("Location", "/visible")
		})
	want(t, rg.pay("k", header("Authorization", "hidden")), 200, false)
	record, err := rdb.Get(t.Context(), "oncemill:default:records:POST%20/payments:k").Result()
	if err != nil || strings.Contains(record, "hidden") || !strings.Contains(record, "/visible") {
		t.Errorf("record %q, error %v", record, err)
	}
}

func TestSecurity_NothingOfABodyIsInLogsAndSpans(t *testing.T) { // not parallel: the tracer is the process's
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)

	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store := &spy{Store: newMemory(t)}
	g := newGuard(t, store, oncemill.Policy{MaxAttempts: 2, Logger: logger})
	m := newMiddleware(t, g, idempotencykey.Config{MaxRequestBody: 1000, MaxResponseBody: 1000})
	mux := http.NewServeMux()
	mux.Handle(route, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if strings.Contains(r.URL.RawQuery, "panic") {
			panic(string(data))
		}
		w.Header().Set("Location", "/hidden")
		w.WriteHeader(500)
		w.Write(bytes.Repeat(data, 1+len(r.URL.RawQuery)*200))
	})))
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := provider.Tracer("test").Start(r.Context(), "request")
		defer func() {
			panicked := recover() // for spans say what they see of a panic
			span.End()
			if panicked != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		mux.ServeHTTP(w, r.WithContext(ctx))
	}))
	for _, query := range []string{"", "?large", "?panic"} {
		for _, body := range []string{"hidden 1", "hidden 1", "hidden 2", strings.Repeat("hidden", 500)} {
			rg.send("POST", route+query, body, key("k"+query))
		}
	}
	rg.send("POST", route, "hidden", key("bad hidden"))
	if strings.Contains(log.String(), "hidden") || !strings.Contains(log.String(), "panicked") {
		t.Errorf("logged: %s", log.String())
	}
	spans := fmt.Sprintf("%+v", exporter.GetSpans())
	if strings.Contains(spans, "hidden") || !strings.Contains(spans, "oncemill.outcome") {
		t.Errorf("spans: %.2000s", spans)
	}
	for _, s := range store.seen { // reasons are for operators' eyes
		if strings.HasPrefix(s, "{Outcome:{") && strings.Contains(s, "hidden") {
			t.Errorf("settlement: %s", s)
		}
	}
}
