package idempotencykey_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// What docs/http.md says of shutdown: the server does not wait for such runs, and a WaitGroup around the middleware
// does.
func TestMiddleware_RunsThatShutdownLeavesBehindCanBeWaitedFor(t *testing.T) {
	t.Parallel()
	for name, around := range map[string]func(http.Handler) http.Handler{
		"a client that has gone over HTTP/2": func(h http.Handler) http.Handler { return h },
		"http.TimeoutHandler": func(h http.Handler) http.Handler {
			return http.TimeoutHandler(h,
				2*time.Second, "late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var paid keytest.Ledger
			var runs sync.WaitGroup
			begun, end := make(chan struct{}), make(chan struct{})
			keys := newMiddleware(t, idempotencykey.Config{})
			pay := keys.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(begun)
				<-end
				paid.Charge(w, r)
			}))
			mux := http.NewServeMux()
			mux.HandleFunc("POST "+keytest.Route, func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				defer runs.Done()
				pay.ServeHTTP(w, r)
			})
			s := httptest.NewUnstartedServer(around(mux))
			s.EnableHTTP2 = true
			s.StartTLS()
			defer s.Close()
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+keytest.Route, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			keytest.Key("k")(r)
			answered := make(chan keytest.Answer, 1)
			go func() { answered <- keytest.Do(s.Client(), r) }()
			<-begun
			if name != "http.TimeoutHandler" {
				leave()
			}
			<-answered
			waitLimit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := s.Config.Shutdown(waitLimit); err != nil {
				t.Errorf("Shutdown waited for the run: docs/http.md says that it does not: %v", err)
			}
			close(end)
			runs.Wait()
			again := httptest.NewRecorder()
			retry := httptest.NewRequest(http.MethodPost, keytest.Route, strings.NewReader("{}"))
			keytest.Key("k")(retry)
			mux.ServeHTTP(again, retry)
			a := keytest.Answer{Status: again.Code, Header: again.Header(), Body: again.Body.String()}
			keytest.Want(t, a, http.StatusCreated, true)
			if paid.Total() != 1 {
				t.Errorf("%d effects", paid.Total())
			}
		})
	}
}
