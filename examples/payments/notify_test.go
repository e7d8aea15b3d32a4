package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A receiptMsg is a message that holds a receipt.
type receiptMsg struct{ jetstream.Msg }

func (receiptMsg) Data() []byte { return []byte(`{"payment":"4711","cents":1200}`) }

// After a takeover the API says 409 while the first call still runs there. Its transfer happens, so that must not become a
// stored failure. Nor may what is over in a moment, such as 429.
func TestNotify_AnswersThatTimeMendsAreNotStored(t *testing.T) {
	t.Parallel()
	type verdict struct {
		fails, permanent bool
		after            time.Duration
	}
	for status, want := range map[int]verdict{
		http.StatusOK:                  {},
		http.StatusCreated:             {},
		http.StatusRequestTimeout:      {fails: true, after: 5 * time.Second},
		http.StatusConflict:            {fails: true, after: 5 * time.Second},
		http.StatusTooEarly:            {fails: true, after: 5 * time.Second},
		http.StatusTooManyRequests:     {fails: true, after: 5 * time.Second},
		http.StatusBadRequest:          {fails: true, permanent: true},
		http.StatusUnprocessableEntity: {fails: true, permanent: true},
		http.StatusInternalServerError: {fails: true},
		http.StatusServiceUnavailable:  {fails: true},
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			err := notified(t, status)
			got := verdict{fails: err != nil}
			_, got.permanent = errors.AsType[*oncemill.PermanentError](err)
			if retry, ok := errors.AsType[*oncemill.RetryAfterError](err); ok {
				got.after = retry.Delay
			}
			if got != want {
				t.Errorf("%v is %+v, want %+v", err, got, want)
			}
		})
	}
}

// A client that follows a redirect asks for the page that it leads to, by GET: that there is one is no transfer.
func TestNotify_RedirectIsNoTransfer(t *testing.T) {
	t.Parallel()
	err := notifiedBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/transfers" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	if _, permanent := errors.AsType[*oncemill.PermanentError](err); !permanent {
		t.Errorf("the handler returned %v, want a permanent error", err)
	}
}

// However long it lasts: nobody may take the transfer for one that failed.
func TestNotify_WhatTimeMendsUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{
		http.StatusConflict, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	} {
		if err := notified(t, status); !uncounted(err) {
			t.Errorf("%d is %v, want an error that counts no attempt", status, err)
		}
	}
	if err := notified(t, http.StatusInternalServerError); uncounted(err) {
		t.Errorf("500 is %v, want an error that counts: it may come for this transfer always", err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	client := newClient()
	defer client.CloseIdleConnections()
	if err := handled(t, callAPI(client, gone.URL)); !uncounted(err) {
		t.Errorf("an API that is away is %v, want an error that counts no attempt", err)
	}
}

func uncounted(err error) bool {
	_, is := errors.AsType[interface {
		error
		Uncounted() bool
	}](err)
	return is
}

// notified returns what the handler says of an API that answers with a status.
func notified(t *testing.T, status int) error {
	t.Helper()
	return notifiedBy(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
}

func notifiedBy(t *testing.T, api http.Handler) error {
	t.Helper()
	server := httptest.NewServer(api)
	defer server.Close()
	client := newClient()
	defer client.CloseIdleConnections()
	return handled(t, callAPI(client, server.URL))
}

// handled returns what the handler says in a run.
func handled(t *testing.T, handle natsjs.Handler) (says error) {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		t.Fatal(err)
	}
	ran := false
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "default", Group: "notify", Handler: "receipts", ID: "4711"}}
	_, _ = guard.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
		ran, says = true, handle(ctx, receiptMsg{})
		return dedupstore.Outcome{}, says
	})
	if !ran {
		t.Fatal("the handler did not run")
	}
	return says
}
