package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/webhook"
)

func as[E error](t testing.TB, err error) E {
	t.Helper()
	e, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}

const secret = "sixteen bytes or more"

func sum(parts ...string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(strings.Join(parts, "")))
	return hex.EncodeToString(mac.Sum(nil))
}

func fromGitHub(id, body string) hook {
	return hook{map[string]string{"X-Hub-Signature-256": "sha256=" + sum(body), "X-GitHub-Delivery": id,
		"X-GitHub-Event": "push"}, body}
}

// fromStripe signs for this moment.
func fromStripe(body string) hook {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	return hook{map[string]string{"Stripe-Signature": "t=" + now + ",v1=" + sum(now, ".", body)}, body}
}

func gitHub(t testing.TB, s dedupstore.Store, q *queue) *webhook.Receiver {
	return receiver(t, newGuard(t, s, oncemill.Policy{}), q, webhook.Config{Verifier: must(webhook.GitHub(secret))})
}

const start = 1_700_000_000

func TestReceiver_RetryThatIsSignedAnewEnqueuesNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		rc := receiver(t, newGuard(t, newStore(t), oncemill.HighValue()), &q,
			webhook.Config{Verifier: must(webhook.Stripe(secret))})
		send(t, rc, fromStripe(`{"id":"evt_1","pending_webhooks":2,"data":{"amount":100}}`), http.StatusOK)
		time.Sleep(3 * 24 * time.Hour)
		w := send(t, rc, fromStripe(`{"id":"evt_1","pending_webhooks":1,"data":{"amount":100}}`), http.StatusOK)
		if !strings.Contains(w.Body.String(), "before") {
			t.Errorf("answered %s", w.Body)
		}
		q.want(t, 1)
	})
}

// A double cannot keep 2^53+1, which some forms of JSON make of it. Its neighbour is another body.
func TestStripe_RetryOfAnEventWithALargeIntegerEnqueuesNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		rc := receiver(t, newGuard(t, newStore(t), oncemill.HighValue()), &q,
			webhook.Config{Verifier: must(webhook.Stripe(secret))})
		send(t, rc, fromStripe(`{"id":"evt_2","pending_webhooks":2,"data":{"amount":9007199254740993}}`), http.StatusOK)
		send(t, rc, fromStripe(`{"id":"evt_2", "pending_webhooks": 1, "data": { "amount": 9007199254740993 } }`),
			http.StatusOK)
		send(t, rc, fromStripe(`{"id":"evt_2","data":{"amount":9007199254740993}}`), http.StatusOK)
		q.want(t, 1)
		for _, body := range []string{
			`{"id":"evt_2","pending_webhooks":2,"data":{"amount":9007199254740992}}`,
			`{"id":"evt_2","pending_webhooks":2,"data":{"amount":9007199254740993,"pending_webhooks":1}}`,
			`{"id":"evt_2","pending_webhooks":2,"date":{"amount":9007199254740993}}`,
		} {
			send(t, rc, fromStripe(body), http.StatusUnprocessableEntity)
		}
		q.want(t, 1)
	})
}

func TestReceiver_KnownIDWithAnotherBodyIsRefusedAloud(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		s := newStore(t)
		rc := gitHub(t, s, &q)
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		send(t, rc, fromGitHub("d1", "b"), http.StatusUnprocessableEntity)
		q.want(t, 1)
		lax := receiver(t, newGuard(t, s, oncemill.Policy{Mismatch: oncemill.MismatchIgnore}), &q,
			webhook.Config{Verifier: must(webhook.GitHub(secret))})
		send(t, lax, fromGitHub("d1", "b"), http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_OneEventAtOnceIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	q := queue{publish: func(context.Context) error { return nil }}
	srv := httptest.NewServer(gitHub(t, newStore(t), &q))
	defer srv.Close()
	const events, copies = 10, 20
	var all sync.WaitGroup
	for n := range events * copies {
		all.Go(func() {
			h := fromGitHub(fmt.Sprint("d", n%events), "body")
			r := h.request(t.Context())
			out, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			out.Header = r.Header
			answer, err := srv.Client().Do(out)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK && (answer.StatusCode != http.StatusServiceUnavailable ||
				answer.Header.Get("Retry-After") == "") {
				t.Errorf("status %d", answer.StatusCode)
			}
		})
	}
	all.Wait()
	q.want(t, events)
}

func TestReceiver_CopyInFlightIsToldWhenToComeAgain(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		entered, leave := make(chan struct{}), make(chan struct{})
		q := queue{publish: func(context.Context) error {
			close(entered)
			<-leave
			return nil
		}}
		rc := gitHub(t, newStore(t), &q)
		var first sync.WaitGroup
		first.Go(func() { send(t, rc, fromGitHub("d1", "a"), http.StatusOK) })
		<-entered
		if w := send(t, rc, fromGitHub("d1", "a"),
			http.StatusServiceUnavailable); w.Header().Get("Retry-After") != "30" {
			t.Errorf("Retry-After %q, want what remains of the lease", w.Header().Get("Retry-After"))
		}
		close(leave)
		first.Wait()
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		q.want(t, 1)
	})
}

func TestReceiver_HoldWaitsForTheCopyInFlight(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		entered := make(chan struct{})
		q := queue{publish: func(context.Context) error {
			close(entered)
			time.Sleep(2 * time.Second)
			return nil
		}}
		rc := receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), &q,
			webhook.Config{Verifier: must(webhook.GitHub(secret)), MaxWait: 4 * time.Second})
		var first sync.WaitGroup
		first.Go(func() { send(t, rc, fromGitHub("d1", "a"), http.StatusOK) })
		<-entered
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		first.Wait()
		q.want(t, 1)
	})
}

func TestReceiver_EventsOfOthersAreOthers(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		g := newGuard(t, newStore(t), oncemill.Policy{})
		seen := map[string]bool{}
		for _, c := range []webhook.Config{{}, {Tenant: "a"}, {Tenant: "b"}, {Tenant: "a", Sender: "b"}, {Tenant: "b",
			Sender: "a"}} {
			c.Verifier = must(webhook.GitHub(secret))
			send(t, receiver(t, g, &q, c), fromGitHub("d1", "body of "+c.Tenant), http.StatusOK)
		}
		q.want(t, 5)
		for _, m := range q.messages {
			seen[m.ID] = true
		}
		if len(seen) != 5 {
			t.Errorf("%d message IDs, want 5", len(seen))
		}
	})
}

func TestMessageID_NeverChanges(t *testing.T) {
	t.Parallel()
	if got, want := webhook.MessageID("", "github", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
		"3607359c-e706-8315-ac94-fabfceddde47"; got != want {
		t.Errorf("%s, want %s: a changed derivation makes every redelivery a new message", got, want)
	}
}

func TestReceiver_RequestsThatAreOfNoUse(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		s := newStore(t)
		rc := receiver(t, newGuard(t, s, oncemill.Policy{}), &q,
			webhook.Config{Verifier: must(webhook.GitHub(secret)), MaxBody: 10})
		send(t, rc, fromGitHub("", "a"), http.StatusBadRequest)
		send(t, rc, fromGitHub(strings.Repeat("d", 513), "a"), http.StatusBadRequest)
		send(t, rc, fromGitHub("d\xff", "a"), http.StatusBadRequest)
		send(t, rc, fromGitHub("d1", "a").with("X-GitHub-Event", "Jos\xe9"), http.StatusBadRequest)
		send(t, rc, fromGitHub("d1", "elf bytes .."), http.StatusRequestEntityTooLarge)
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodHead, http.MethodOptions} {
			r := fromGitHub("d1", "a").request(t.Context())
			r.Method = method
			if w := do(t, rc, r, http.StatusMethodNotAllowed); w.Header().Get("Allow") != "POST" {
				t.Errorf("%s: Allow %q", method, w.Header().Get("Allow"))
			}
		}
		q.want(t, 0)
		if s.claims != 0 {
			t.Errorf("%d claims", s.claims)
		}
		send(t, rc, fromGitHub("d1", "ten bytes."), http.StatusOK)
		q.want(t, 1)
	})
}

// naming is a verifier that lets more headers go on.
type naming struct{ webhook.Verifier }

func (v naming) Verify(h http.Header, body []byte) (webhook.Event, error) {
	e, err := v.Verifier.Verify(h, body)
	e.Headers = append(e.Headers, "X-GitHub-Hook-ID", "Via")
	return e, err
}

func TestReceiver_ChosenHeadersGoOn(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		rc := receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), &q,
			webhook.Config{Verifier: naming{must(webhook.GitHub(secret))}})
		r := fromGitHub("d1", "a").request(t.Context())
		r.Header.Set("X-Github-Hook-Id", "7")
		r.Header["Via"] = []string{"a", "b"}
		r.Header.Set("Authorization", "Bearer x")
		do(t, rc, r, http.StatusOK)
		h := q.messages[0].Header
		if h["x-github-hook-id"] != "7" || h["via"] != "a, b" || h.Get("Authorization") != "" ||
			h.Get("X-Hub-Signature-256") != "" {
			t.Errorf("header %v", h)
		}
	})
}

func TestReceiver_WakesWhatPublishesOnlyForNewEvents(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		woken := 0
		rc := receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), &q,
			webhook.Config{Verifier: must(webhook.GitHub(secret)), Wake: func() { woken++ }})
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		send(t, rc, fromGitHub("d1", "b"), http.StatusUnprocessableEntity)
		if woken != 1 {
			t.Errorf("woken %d times", woken)
		}
	})
}

func TestNew_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := webhook.Config{Sender: "shop", Topic: "hooks", Verifier: must(webhook.GitHub(secret))}
	guard := newGuard(t, newStore(t), oncemill.Policy{})
	for says, change := range map[string]func(*webhook.Config){
		"Config.Verifier":         func(c *webhook.Config) { c.Verifier = nil },
		"Config.Topic":            func(c *webhook.Config) { c.Topic = "" },
		"Config.Sender is empty":  func(c *webhook.Config) { c.Sender = "" },
		"Config.Sender is \"~a\"": func(c *webhook.Config) { c.Sender = "~a" },
		"those of steps":          func(c *webhook.Config) { c.Sender = "shop/step=eu" },
		"Key.Tenant":              func(c *webhook.Config) { c.Tenant = "a\n" },
		"Config.MaxBody is -1":    func(c *webhook.Config) { c.MaxBody = -1 },
		"Config.MaxWait is -1s":   func(c *webhook.Config) { c.MaxWait = -time.Second },
	} {
		c := good
		change(&c)
		_, err := webhook.New(guard, &queue{}, c)
		if err == nil || !strings.HasPrefix(err.Error(), "webhook: Config.") || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one that says %q", err, says)
		}
	}
	var forgotten *queue
	for says, err := range map[string]error{
		"guard is":                        second(webhook.New(nil, &queue{}, good)),
		"publisher is nil":                second(webhook.New(guard, nil, good)),
		"publisher is nil, in a pointer":  second(webhook.New(guard, forgotten, good)),
		"publisher is nil, as a function": second(webhook.New(guard, webhook.PublisherFunc(nil), good)),
		"publisher is a *webhook_test.joining, which writes in the transaction of an inbox, and guard has none": second(
			webhook.New(guard, &joining{}, good)),
	} {
		if strings.HasPrefix(says, "publisher is nil") {
			says, _, _ = strings.Cut(says, ",")
		}
		if err == nil || !strings.HasPrefix(err.Error(), "webhook: "+says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// joining is a publisher like an outbox that joins the transaction of an inbox.
type joining struct{ queue }

func (*joining) JoinsInbox() bool { return true }

func TestNew_TakesAPublisherThatJoinsTheInbox(t *testing.T) {
	t.Parallel()
	_, err := webhook.New(newGuard(t, &inbox{Store: newStore(t)}, oncemill.Policy{}), &joining{},
		webhook.Config{Sender: "shop", Topic: "hooks", Verifier: must(webhook.GitHub(secret))})
	if err != nil {
		t.Error(err)
	}
}

func TestNew_RefusesPoliciesThatLoseOrRepeatEvents(t *testing.T) {
	t.Parallel()
	for says, p := range map[string]oncemill.Policy{
		`ExpiredLease "park"`: oncemill.Irreversible(),
		`StoreDown "open"`:    {StoreDown: oncemill.FailOpen},
		"Shadow":              {Shadow: true},
		"Window":              {Window: 10*time.Minute - 1},
	} {
		_, err := webhook.New(newGuard(t, newStore(t), p), &queue{}, webhook.Config{Sender: "shop", Topic: "hooks",
			Verifier: must(webhook.GitHub(secret))})
		if err == nil || !strings.HasPrefix(err.Error(), "webhook: guard has a policy with "+says) {
			t.Errorf("%v, want one that says %q", err, says)
		}
	}
}

func second[T any](_ T, err error) error { return err }
