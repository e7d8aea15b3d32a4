package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// virtual runs a test in a bubble of virtual time, at the given Unix time.
func virtual(t *testing.T, now int64, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Unix(now, 0)))
		test(t)
	})
}

// queue is a publisher that remembers.
type queue struct {
	mu       sync.Mutex
	messages []producer.Message
	publish  func(ctx context.Context) error // before it remembers
}

func (q *queue) Publish(ctx context.Context, messages ...producer.Message) error {
	if q.publish != nil {
		if err := q.publish(ctx); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.messages = append(q.messages, messages...)
	return nil
}

func (q *queue) want(t testing.TB, messages int) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.messages) != messages {
		t.Errorf("%d messages are enqueued, want %d", len(q.messages), messages)
	}
}

// watched is a store that counts claims, and fails on request.
type watched struct {
	dedupstore.Store
	mu     sync.Mutex
	down   error
	claims int
}

func (s *watched) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *watched) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.mu.Lock()
	s.claims++
	down := s.down
	s.mu.Unlock()
	if down != nil {
		return dedupstore.Answer{}, down
	}
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func (s *watched) set(down error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func newStore(t testing.TB) *watched {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &watched{Store: m}
}

func newGuard(t testing.TB, s dedupstore.Store, p oncemill.Policy) *oncemill.Guard {
	t.Helper()
	if p.Logger == nil {
		p.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	g, err := oncemill.NewGuard(s, p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func receiver(t testing.TB, g *oncemill.Guard, p producer.Publisher, c webhook.Config) *webhook.Receiver {
	t.Helper()
	if c.Sender == "" {
		c.Sender = "shop"
	}
	if c.Topic == "" {
		c.Topic = "hooks"
	}
	rc, err := webhook.New(g, p, c)
	if err != nil {
		t.Fatal(err)
	}
	return rc
}

// trusting is a receiver over a store of its own.
func trusting(t testing.TB, p producer.Publisher, v webhook.Verifier) *webhook.Receiver {
	t.Helper()
	return receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), p, webhook.Config{Verifier: v})
}

// must takes what a verifier's constructor returns.
func must(v webhook.Verifier, err error) webhook.Verifier {
	if err != nil {
		panic(err)
	}
	return v
}

// A hook is a request of a sender's.
type hook struct {
	header map[string]string
	body   string
}

// with returns a copy with another header, or without it if the value is "".
func (h hook) with(name, value string) hook {
	header := map[string]string{name: value}
	for k, v := range h.header {
		if k != name {
			header[k] = v
		}
	}
	return hook{header, h.body}
}

func (h hook) withBody(body string) hook { return hook{h.header, body} }

func (h hook) request(ctx context.Context) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/hooks", strings.NewReader(h.body))
	for k, v := range h.header {
		if v != "" {
			r.Header.Set(k, v)
		}
	}
	return r
}

// send sends a hook, and checks the status of the answer.
func send(t testing.TB, rc http.Handler, h hook, want int) *httptest.ResponseRecorder {
	t.Helper()
	return do(t, rc, h.request(t.Context()), want)
}

func do(t testing.TB, rc http.Handler, r *http.Request, want int) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	rc.ServeHTTP(w, r)
	if w.Code != want {
		t.Errorf("status %d, want %d: %s", w.Code, want, w.Body)
	}
	wantType := "application/json"
	if want >= 400 {
		wantType = "application/problem+json"
	}
	if got := w.Header().Get("Content-Type"); got != wantType && !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %q, want %q", got, wantType)
	}
	return w
}

// sendAsTold sends a hook that cannot be enqueued now, and waits as long as the answer says.
func sendAsTold(t testing.TB, rc http.Handler, h hook) {
	t.Helper()
	w := send(t, rc, h, http.StatusServiceUnavailable)
	seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
	if err != nil || seconds < 1 {
		t.Fatalf("Retry-After %q", w.Header().Get("Retry-After"))
	}
	time.Sleep(time.Duration(seconds) * time.Second)
}

// unsettled is a store whose settlements fail while it is down, as those of a process do that dies before them.
type unsettled struct {
	*watched
	down bool
}

func (s *unsettled) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (s *unsettled) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	if s.down {
		return errDown
	}
	return dedupstore.SettleOne(ctx, s.Store, c, settlement)
}

var errDown = errors.New("down")

// safeBuffer is a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
