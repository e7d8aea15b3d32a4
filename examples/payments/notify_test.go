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

// notified returns what the handler says of an API that answers with a status.
func notified(t *testing.T, status int) error {
	t.Helper()
	return notifiedBy(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
}

func notifiedBy(t *testing.T, api http.Handler) (handled error) {
	t.Helper()
	server := httptest.NewServer(api)
	defer server.Close()
	client := newClient()
	defer client.CloseIdleConnections()
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
		ran, handled = true, callAPI(client, server.URL)(ctx, receiptMsg{})
		return dedupstore.Outcome{}, handled
	})
	if !ran {
		t.Fatal("the handler did not run")
	}
	return handled
}
