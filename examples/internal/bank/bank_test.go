package bank

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

type permanentError interface {
	error
	Permanent() bool
}

type retryAfterError interface {
	error
	RetryAfter() time.Duration
}

// After a takeover the API says 409 while the first call still runs there. Its transfer happens, so that must not
// become a stored failure. Neither may what is over in a moment, such as 429.
func TestClient_AnswersThatTimeMendsAreNotStored(t *testing.T) {
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
			err := answered(t, status)
			got := verdict{fails: err != nil}
			_, got.permanent = errors.AsType[permanentError](err)
			if retry, ok := errors.AsType[retryAfterError](err); ok {
				got.after = retry.RetryAfter()
			}
			if got != want {
				t.Errorf("%v is %+v, want %+v", err, got, want)
			}
		})
	}
}

// A client that follows a redirect asks for the page that it leads to, by GET: that there is one is no transfer.
func TestClient_RedirectIsNoTransfer(t *testing.T) {
	t.Parallel()
	err := answeredBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/transfers" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	if _, permanent := errors.AsType[permanentError](err); !permanent {
		t.Errorf("Transfer returned %v, want a permanent error", err)
	}
}

// However long it lasts: nobody may take the transfer for one that failed.
func TestClient_WhatTimeMendsUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{
		http.StatusConflict, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	} {
		if err := answered(t, status); !uncounted(err) {
			t.Errorf("%d is %v, want an error that counts no attempt", status, err)
		}
	}
	if err := answered(t, http.StatusInternalServerError); uncounted(err) {
		t.Errorf("500 is %v, want an error that counts: it may come for this transfer always", err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	client := NewClient(gone.URL, 1)
	defer client.Close()
	if err := client.Transfer(t.Context(), "key", Transfer{"4711", 1200}); !uncounted(err) {
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

// answered returns what the client says of an API that answers with a status.
func answered(t *testing.T, status int) error {
	t.Helper()
	return answeredBy(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
}

func answeredBy(t *testing.T, api http.Handler) error {
	t.Helper()
	server := httptest.NewServer(api)
	defer server.Close()
	client := NewClient(server.URL, 1)
	defer client.Close()
	return client.Transfer(t.Context(), "key", Transfer{"4711", 1200})
}

func TestStub_TransfersOnceAKey(t *testing.T) {
	t.Parallel()
	s := NewStub(10)
	for i, want := range []int{201, 200, 422, 200, 200, 200, 200, 200, 200, 200, 504, 200} {
		body := `{"payment":"4711","cents":1}`
		if want == 422 {
			body = `{"payment":"4711","cents":2}`
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/transfers", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "key")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("call %d: %d %s, want %d", i, w.Code, w.Body, want)
		}
	}
	if transfers, calls := s.Counts(); calls != 11 || transfers["4711"] != 1 {
		t.Errorf("%d calls, %d transfers", calls, transfers["4711"])
	}
}
