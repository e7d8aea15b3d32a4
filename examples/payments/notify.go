package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// newClient returns a client that takes a redirect for an answer. It would follow one by GET otherwise, and take a
// login page for a transfer.
func newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: window},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       5 * time.Second,
	}
}

// callAPI is the handler. It may call a second time after a crash or a lost answer, and beside the first call if its
// process stood still for longer than the lease. The idempotency key is always the same.
func callAPI(client *http.Client, url string) natsjs.Handler {
	return func(ctx context.Context, msg jetstream.Msg) error {
		var r receipt
		if err := json.Unmarshal(msg.Data(), &r); err != nil {
			return oncemill.Permanent(fmt.Errorf("this is not a receipt: %w", err))
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/transfers", bytes.NewReader(msg.Data()))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Idempotency-Key", oncemill.FromContext(ctx).ID("transfer"))
		response, err := client.Do(request)
		if err != nil {
			return oncemill.Uncounted(err) // tried again for as long as the API is away
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		if response.StatusCode < http.StatusMultipleChoices {
			return err
		}
		err = fmt.Errorf("the API answers %s", response.Status)
		switch {
		case slices.Contains(passing, response.StatusCode):
			return oncemill.RetryAfter(5*time.Second, oncemill.Uncounted(err))
		case response.StatusCode < http.StatusInternalServerError:
			return oncemill.Permanent(err)
		case response.StatusCode == http.StatusInternalServerError: // it may be this transfer: MaxAttempts bounds that
			return err
		}
		return oncemill.Uncounted(err)
	}
}

// passing are the 4xx that say nothing about the transfer, only about this moment. 409 means that a first call with
// this key still runs there, after a takeover. Its transfer happens, so it must not be stored as a failure here.
var passing = []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests}

// An api is a stub of another company's API: POST /transfers with an Idempotency-Key transfers once, however often it
// is called, and answers as the first time. One in ten answers is lost after the transfer. It is safe for concurrent
// use.
type api struct {
	mu        sync.Mutex
	known     map[string]string // what was asked for, by key
	transfers map[string]int    // by payment
	calls     int
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, shop.MaxBody))
	var of receipt
	if err == nil {
		err = json.Unmarshal(body, &of)
	}
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" || r.Method != http.MethodPost {
		shop.Answer(w, http.StatusBadRequest, "want a receipt, and an Idempotency-Key")
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before, known := a.known[key]
	if known && before != string(body) {
		shop.Answer(w, http.StatusUnprocessableEntity, "the key belongs to another transfer")
		return
	}
	a.known[key] = string(body)
	if a.calls++; !known {
		a.transfers[of.Payment]++
	}
	switch {
	case a.calls%10 == 0:
		shop.Answer(w, http.StatusGatewayTimeout, "nobody knows whether it was done") // it was
	case known:
		shop.Answer(w, http.StatusOK, "transferred before")
	default:
		shop.Answer(w, http.StatusCreated, "transferred")
	}
}
