package webhook_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/webhook"
)

func TestReceiver_OutageOfThePublisherUsesUpNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		down := true
		q := queue{publish: func(context.Context) error {
			if down {
				return errDown
			}
			return nil
		}}
		rc := gitHub(t, newStore(t), &q)
		for range 50 { // five times the attempts of a message
			if w := send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable); w.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
		q.want(t, 0)
		down = false
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		q.want(t, 1)
	})
}

// A publisher may be a receiver's client itself: its errors are not about this request.
func TestReceiver_ErrorOfThePublisherIsNeverTheSendersFault(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		for n, err := range []error{&webhook.EventError{Problem: "no"}, &webhook.SignatureError{Problem: "no"}, context.Canceled} {
			q := queue{publish: func(context.Context) error { return err }}
			send(t, gitHub(t, newStore(t), &q), fromGitHub(fmt.Sprint("d", n), "a"), http.StatusServiceUnavailable)
		}
	})
}

func TestReceiver_OutageOfTheStoreEnqueuesNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		s := newStore(t)
		rc := gitHub(t, s, &q)
		s.set(errDown)
		for range 3 {
			if w := send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable); w.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
		q.want(t, 0)
		s.set(nil)
		time.Sleep(2 * time.Second) // until the guard asks the store again
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_PermanentFailureIsSaidEachTime(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		q := queue{publish: func(context.Context) error { return oncemill.Permanent(errDown) }}
		rc := gitHub(t, newStore(t), &q)
		for range 2 {
			send(t, rc, fromGitHub("d1", "a"), http.StatusInternalServerError)
		}
		q.want(t, 0)
	})
}

func TestReceiver_SenderThatHangsUpLosesNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		ctx, hangUp := context.WithCancel(t.Context())
		q := queue{publish: func(ctx context.Context) error {
			hangUp()
			return ctx.Err()
		}}
		do(t, gitHub(t, newStore(t), &q), fromGitHub("d1", "a").request(ctx), http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_PublisherThatHangsIsNotWaitedForLongerThanTimeout(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		q := queue{publish: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		began := time.Now()
		rc := receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), &q, webhook.Config{Verifier: must(webhook.GitHub(secret)), Timeout: 3 * time.Second})
		send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// keyServer is a verifier that has to ask somebody.
type keyServer struct{ err error }

func (v keyServer) Verify(http.Header, []byte) (webhook.Event, error) {
	return webhook.Event{ID: "e1"}, v.err
}

func TestReceiver_VerifierThatCannotTellRefusesNothingForGood(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		g := newGuard(t, newStore(t), oncemill.Policy{})
		for _, tc := range []struct {
			err    error
			status int
		}{
			{errDown, http.StatusServiceUnavailable},
			{fmt.Errorf("custom: %w", &webhook.SignatureError{Problem: "no"}), http.StatusUnauthorized},
			{fmt.Errorf("custom: %w", &webhook.EventError{Problem: "no"}), http.StatusBadRequest},
		} {
			send(t, receiver(t, g, &q, webhook.Config{Verifier: keyServer{tc.err}}), hook{}, tc.status)
			q.want(t, 0)
		}
		send(t, receiver(t, g, &q, webhook.Config{Verifier: keyServer{}}), hook{}, http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_SaysNothingOfBodiesSignaturesAndKeys(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var log safeBuffer
		mode := errDown
		q := queue{publish: func(context.Context) error { return mode }}
		s := newStore(t)
		policy := oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		rc := receiver(t, newGuard(t, s, policy), &q, webhook.Config{Verifier: must(webhook.GitHub(secret))})
		const body = "confidential"
		good := fromGitHub("d1", body)
		var says string // in answers
		for _, h := range []hook{
			good, good.withBody(body + "!"), good.with("X-Hub-Signature-256", sum(body)), good.with("X-GitHub-Delivery", ""),
			good.with("X-Hub-Signature-256", "sha256=zz"),
		} {
			w := httptest.NewRecorder()
			rc.ServeHTTP(w, h.request(t.Context()))
			says += w.Body.String()
		}
		mode = nil
		send(t, rc, good, http.StatusOK)
		says += send(t, rc, fromGitHub("d1", body+"?"), http.StatusUnprocessableEntity).Body.String()
		mode = oncemill.Permanent(errDown)
		says += send(t, rc, fromGitHub("d2", body), http.StatusInternalServerError).Body.String()
		s.set(errDown)
		says += send(t, rc, fromGitHub("d3", body), http.StatusServiceUnavailable).Body.String()
		if strings.Contains(says, errDown.Error()) {
			t.Errorf("what went wrong here is in what strangers get:\n%s", says)
		}
		if !strings.Contains(log.String(), "event=d2") || !strings.Contains(log.String(), errDown.Error()) {
			t.Errorf("nothing was logged about an event that failed:\n%s", &log)
		}
		says += log.String()
		for _, s := range []string{body, secret, sum(body)} {
			if strings.Contains(says, s) {
				t.Errorf("%q is in what it says:\n%s", s, says)
			}
		}
	})
}
