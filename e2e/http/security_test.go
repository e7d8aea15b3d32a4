package http_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestSecurity_TheRecordInRedisHasNoCredentials(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client()
	b := openFor(t, onRedis, server.Addr)
	rg := keytest.Serve(t, keytest.NewGuard(t, b.Store, oncemill.Policy{}), idempotencykey.Config{Group: "records"},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "session=hidden")
			w.Header().Set("Location", "/visible")
		})
	keytest.Want(t, rg.Pay("k", keytest.Header("Authorization", "hidden")), 200, false)
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
	store := &keytest.Spy{Store: keytest.NewMemory(t)}
	g := keytest.NewGuard(t, store, oncemill.Policy{MaxAttempts: 2, Logger: logger, MaxResultBytes: 1024})
	m := keytest.NewMiddleware(t, g, idempotencykey.Config{MaxRequestBody: 1000})
	mux := http.NewServeMux()
	mux.Handle(keytest.Route, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if strings.Contains(r.URL.RawQuery, "panic") {
			panic(string(data))
		}
		w.Header().Set("Location", "/hidden")
		w.WriteHeader(500)
		w.Write(bytes.Repeat(data, 1+len(r.URL.RawQuery)*200))
	})))
	rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
			rg.Send("POST", keytest.Route+query, body, keytest.Key("k"+query))
		}
	}
	rg.Send("POST", keytest.Route, "hidden", keytest.Key("bad hidden"))
	if strings.Contains(log.String(), "hidden") || !strings.Contains(log.String(), "panicked") {
		t.Errorf("logged: %s", log.String())
	}
	spans := fmt.Sprintf("%+v", exporter.GetSpans())
	if strings.Contains(spans, "hidden") || !strings.Contains(spans, "oncemill.outcome") {
		t.Errorf("spans: %.2000s", spans)
	}
	for _, s := range store.Seen() { // reasons are for operators' eyes
		if strings.HasPrefix(s, "{Outcome:{") && strings.Contains(s, "hidden") {
			t.Errorf("settlement: %s", s)
		}
	}
}
