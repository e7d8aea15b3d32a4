package idempotencykey_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func ExampleNew() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		panic(err)
	}
	keys, err := idempotencykey.New(guard, idempotencykey.Config{Account: idempotencykey.SingleTenant})
	if err != nil {
		panic(err)
	}
	payments := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", keys.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	})))

	for _, body := range []string{"100 EUR", "100 EUR", "200 EUR"} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), w.Header().Get("Content-Type"))
	}
	fmt.Println("payments:", payments)
	// Output:
	// 201  text/plain; charset=utf-8
	// 201 true text/plain; charset=utf-8
	// 422  application/problem+json
	// payments: 1
}

func ExampleNewTransport() {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n++; n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "attempt %d with key %s", n, r.Header.Get("Idempotency-Key"))
	}))
	defer server.Close()

	transport, err := idempotencykey.NewTransport(nil, idempotencykey.TransportConfig{})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: transport}
	ctx := idempotencykey.WithKey(context.Background(), "order-17") // stored with the order, before the first attempt
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("100 EUR"))
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	fmt.Println(string(body))
	// Output: attempt 2 with key "order-17"
}
