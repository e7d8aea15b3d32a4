package webhook_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer"
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
			if w := send(t, rc, fromGitHub("d1", "a"),
				http.StatusServiceUnavailable); w.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
		q.want(t, 0)
		down = false
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_OutageIsOneLineAMinute(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var log strings.Builder
		policy := oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		q := queue{publish: func(context.Context) error { return errDown }}
		rc := receiver(t, newGuard(t, newStore(t), policy), &q, webhook.Config{Verifier: must(webhook.GitHub(secret))})
		for i := range 100 {
			send(t, rc, fromGitHub(fmt.Sprint("d", i), "a"), http.StatusServiceUnavailable)
			send(t, rc, fromGitHub("", "a"), http.StatusBadRequest)
			time.Sleep(time.Second)
		}
		for _, line := range []string{"event is not enqueued", "holds no usable event"} {
			if n := strings.Count(log.String(), line); n != 2 {
				t.Errorf("%q is %d lines in 100 s, want 2", line, n)
			}
		}
	})
}

func TestReceiver_PanicsOfThePublisherUseUpNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		broken := true
		q := queue{publish: func(context.Context) error {
			if broken {
				panic("not connected yet")
			}
			return nil
		}}
		rc := gitHub(t, newStore(t), &q)
		for range 30 {
			sendAsTold(t, rc, fromGitHub("d1", "a"))
		}
		q.want(t, 0)
		broken = false
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		q.want(t, 1)
	})
}

// Crashed runs count, as they do for every guard. Here each request makes one.
func TestReceiver_CrashesUseUpNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		s := &unsettled{watched: newStore(t), down: true}
		rc := receiver(t, newGuard(t, s, oncemill.HighValue()), &q,
			webhook.Config{Verifier: must(webhook.GitHub(secret))})
		for range 30 {
			send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable)
			time.Sleep(time.Minute)
		}
		s.down = false
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		enqueued := len(q.messages)
		for range 3 { // an answer for every day of the window
			time.Sleep(24 * time.Hour)
			send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		}
		q.want(t, enqueued)
	})
}

// One run of an exhausted event at once: all others are duplicates of it.
func TestReceiver_ExhaustedEventIsRunAgainByOneRequest(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		box := &inbox{Store: newStore(t).Store, commit: errDown}
		rc := receiver(t, newGuard(t, box, oncemill.Policy{MaxAttempts: 1}), webhook.PublisherFunc(write),
			webhook.Config{Verifier: must(webhook.GitHub(secret))})
		sendAsTold(t, rc, fromGitHub("d1", "a"))
		box.commit = nil
		slow := receiver(t, newGuard(t, box, oncemill.Policy{MaxAttempts: 1}),
			webhook.PublisherFunc(func(ctx context.Context, m ...producer.Message) error {
				time.Sleep(time.Second)
				return write(ctx, m...)
			}), webhook.Config{Verifier: must(webhook.GitHub(secret)), MaxWait: 5 * time.Second})
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { send(t, slow, fromGitHub("d1", "a"), http.StatusOK) })
		}
		all.Wait()
		if len(box.committed) != 1 {
			t.Errorf("%d messages are enqueued, want 1", len(box.committed))
		}
	})
}

// A publisher may use a guard or a receiver itself. Its errors are not about this request, however the guard wraps
// them.
func TestReceiver_ErrorOfThePublisherIsNeverTheSendersFault(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"event":     new(webhook.EventError),
		"signature": &webhook.SignatureError{Problem: "no"},
		"mismatch":  &oncemill.Error{Result: oncemill.Result{Status: oncemill.StatusMismatch}},
		"failed":    &oncemill.Error{Result: oncemill.Result{Status: oncemill.StatusDone}},
		"permanent": &oncemill.Error{Result: oncemill.Result{
			Status: oncemill.StatusDone, Handler: oncemill.Permanent(errDown),
		}},
		"busy":      &oncemill.Error{Result: oncemill.Result{Status: oncemill.StatusBusy, Wait: time.Hour}},
		"cancelled": context.Canceled,
	} {
		for _, recorded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, recorded %v", name, recorded), func(t *testing.T) {
				virtual(t, start, func(t *testing.T) {
					q := queue{publish: func(context.Context) error { return fmt.Errorf("publisher: %w", err) }}
					g := newGuard(t, &unsettled{watched: newStore(t), down: !recorded},
						oncemill.Policy{Lease: time.Second})
					rc := receiver(t, g, &q, webhook.Config{Verifier: must(webhook.GitHub(secret))})
					for range 2 {
						w := send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable)
						if after := w.Header().Get("Retry-After"); after != "5" && recorded {
							t.Errorf("Retry-After %q", after)
						}
						time.Sleep(10 * time.Second)
					}
				})
			})
		}
	}
}

// held is an error of a publisher that holds the message ID with other content.
type taken struct{ error }

func (taken) OtherContent() bool { return true }

// An outbox holds Stripe's event with the counter that it had before the crash. No retry mends that.
func TestReceiver_PublisherThatHoldsOtherContentIsSaidAloud(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var log safeBuffer
		var first string
		q := queue{}
		publish := webhook.PublisherFunc(func(ctx context.Context, m ...producer.Message) error {
			if first == "" {
				first = string(m[0].Payload)
			} else if first != string(m[0].Payload) {
				return fmt.Errorf("outbox: %w", taken{errDown})
			}
			return q.Publish(ctx, m...)
		})
		s := &unsettled{watched: newStore(t), down: true}
		g := newGuard(t, s, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		rc := receiver(t, g, publish, webhook.Config{Verifier: must(webhook.Stripe(secret))})
		sendAsTold(t, rc, fromStripe(`{"id":"evt_1","pending_webhooks":2}`)) // dies between publishing and recording
		s.down = false
		time.Sleep(time.Minute)
		for range 30 {
			send(t, rc, fromStripe(`{"id":"evt_1","pending_webhooks":1}`), http.StatusUnprocessableEntity)
		}
		q.want(t, 1)
		if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "other content") {
			t.Errorf("logged\n%s", &log)
		}
		send(t, rc, fromStripe(`{"id":"evt_1","pending_webhooks":2}`), http.StatusOK)
	})
}

func TestReceiver_RetryThatIsNotDueIsNoOtherRequest(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		q := queue{publish: func(context.Context) error { return oncemill.RetryAfter(time.Minute, errDown) }}
		rc := gitHub(t, newStore(t), &q)
		for range 2 {
			w := send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable)
			if strings.Contains(w.Body.String(), "another request") || w.Header().Get("Retry-After") != "60" {
				t.Errorf("%s, Retry-After %q", w.Body, w.Header().Get("Retry-After"))
			}
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
			if w := send(t, rc, fromGitHub("d1", "a"),
				http.StatusServiceUnavailable); w.Header().Get("Retry-After") == "" {
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

func TestReceiver_PublisherThatHangsIsNotWaitedForForEver(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		q := queue{publish: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		began := time.Now()
		rc := receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), &q,
			webhook.Config{Verifier: must(webhook.GitHub(secret)), MaxWait: 3 * time.Second})
		send(t, rc, fromGitHub("d1", "a"), http.StatusServiceUnavailable)
		if took := time.Since(began); took != 13*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// keyServer is a verifier that has to ask somebody.
type keyServer struct {
	id  string
	err error
}

func (v keyServer) Verify(http.Header, []byte) (webhook.Event, error) {
	return webhook.Event{ID: v.id}, v.err
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
		} {
			send(t, receiver(t, g, &q, webhook.Config{Verifier: keyServer{"e1", tc.err}}), hook{}, tc.status)
			q.want(t, 0)
		}
		send(t, receiver(t, g, &q, webhook.Config{Verifier: keyServer{}}), hook{},
			http.StatusBadRequest) // without an ID
		send(t, receiver(t, g, &q, webhook.Config{Verifier: keyServer{id: "e1"}}), hook{}, http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_SaysNothingOfBodiesSignaturesAndKeys(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var log safeBuffer
		mode := errDown
		q := queue{publish: func(context.Context) error { return mode }}
		s := newStore(t)
		policy := oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log,
			&slog.HandlerOptions{Level: slog.LevelDebug}))}
		rc := receiver(t, newGuard(t, s, policy), &q, webhook.Config{Verifier: must(webhook.GitHub(secret))})
		const body = "confidential"
		good := fromGitHub("d1", body)
		var says string // in answers
		for _, h := range []hook{
			good, good.withBody(body + "!"), good.with("X-Hub-Signature-256", sum(body)),
			good.with("X-GitHub-Delivery", ""),
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
