package outbox_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// virtual runs a test in a bubble of virtual time, which also fails if a goroutine is left behind.
func virtual(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

var errDown = errors.New("store is down")

// fakeStore keeps rows in memory. Hooks stand around its operations.
type fakeStore struct {
	onLease  func(apply func() []outbox.Row) ([]outbox.Row, error)
	onSettle func(apply func()) error

	mu           sync.Mutex
	rows         []*fakeRow
	looks        []time.Time // when Lease was called for rows without an unknown attempt
	suspectLooks int         // how often it was called for the others
	cleans       []int       // limits of Clean
}

type fakeRow struct {
	outbox.Row
	due                time.Time
	token, state, text string
	published          time.Time
}

// write adds rows with the given IDs and returns the store.
func (s *fakeStore) write(ids ...string) *fakeStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		r := &fakeRow{due: time.Now(), state: "pending"}
		r.Number = int64(len(s.rows) + 1)
		r.Message = producer.Message{ID: id, Topic: "orders"}
		s.rows = append(s.rows, r)
	}
	return s
}

func (s *fakeStore) Lease(_ context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	s.mu.Lock()
	if r.Suspects {
		s.suspectLooks++
	} else {
		s.looks = append(s.looks, time.Now())
	}
	s.mu.Unlock()
	apply := func() []outbox.Row { return s.lease(r) }
	if s.onLease != nil {
		return s.onLease(apply)
	}
	return apply(), nil
}

func (s *fakeStore) lease(r outbox.LeaseRequest) (leased []outbox.Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byDue := slices.Clone(s.rows)
	slices.SortStableFunc(byDue, func(a, b *fakeRow) int { return cmp.Compare(a.due.UnixNano(), b.due.UnixNano()) })
	for _, row := range byDue {
		suspect := row.Unknowns > 0 || row.token != ""
		if row.state != "pending" || time.Now().Before(row.due) || suspect != r.Suspects || len(leased) == r.Limit {
			continue
		}
		if row.token != "" {
			row.Unknowns++
		}
		row.token, row.due = r.Token, time.Now().Add(r.Lease)
		leased = append(leased, row.Row)
	}
	return leased
}

func (s *fakeStore) Settle(_ context.Context, token string, results []outbox.Result) error {
	apply := func() { s.settle(token, results) }
	if s.onSettle != nil {
		return s.onSettle(apply)
	}
	apply()
	return nil
}

func (s *fakeStore) settle(token string, results []outbox.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range s.rows {
		if row.token != token {
			continue
		}
		row.token, row.due = "", time.Now()
		for _, r := range results {
			if r.Number != row.Number {
				continue
			}
			row.due, row.text = row.due.Add(r.Delay), cmp.Or(r.Error, row.text)
			switch r.State {
			case outbox.Published, outbox.Removed:
				row.state, row.published = string(r.State), time.Now()
			case outbox.Failed:
				row.Failures++
			case outbox.Unknown:
				row.Unknowns++
			case outbox.Dead:
				row.Failures++
				row.state = "dead"
			}
		}
	}
}

func (s *fakeStore) Clean(_ context.Context, age time.Duration, limit int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleans = append(s.cleans, limit)
	before := len(s.rows)
	s.rows = slices.DeleteFunc(s.rows, func(r *fakeRow) bool {
		return r.state == "published" && time.Since(r.published) >= age && limit > 0 && func() bool { limit--; return true }()
	})
	return before - len(s.rows), nil
}

// row returns a copy of the row with an ID.
func (s *fakeStore) row(t *testing.T, id string) fakeRow {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.Message.ID == id {
			return *r
		}
	}
	t.Fatalf("no row %q", id)
	return fakeRow{}
}

func (s *fakeStore) rowCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

// lookCount returns how often the busiest of the relay's loops can have looked: four share the looks for suspects.
func (s *fakeStore) lookCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(len(s.looks), s.suspectLooks/4)
}

// broker is a publisher that remembers each call. answer decides; nil acknowledges everything.
type broker struct {
	answer func(ctx context.Context, messages []producer.Message) error

	mu    sync.Mutex
	calls []call
}

type call struct {
	at  time.Time
	ids []string
}

func (b *broker) Publish(ctx context.Context, messages ...producer.Message) error {
	c := call{at: time.Now()}
	for _, m := range messages {
		c.ids = append(c.ids, m.ID)
	}
	b.mu.Lock()
	b.calls = append(b.calls, c)
	answer := b.answer
	b.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, messages)
}

// heal makes the broker acknowledge everything from now on.
func (b *broker) heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = nil
}

func (b *broker) callCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls)
}

// attempts returns how often each ID was published.
func (b *broker) attempts() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[string]int{}
	for _, c := range b.calls {
		for _, id := range c.ids {
			n[id]++
		}
	}
	return n
}

// times returns when an ID was published, since start.
func (b *broker) times(id string, start time.Time) (at []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if slices.Contains(c.ids, id) {
			at = append(at, c.at.Sub(start))
		}
	}
	return at
}

// refuse answers as a broker that does not want certain messages.
func refuse(unknown bool, ids ...string) func(context.Context, []producer.Message) error {
	return func(_ context.Context, messages []producer.Message) error {
		var e producer.PublishError
		for i, m := range messages {
			if slices.Contains(ids, m.ID) {
				e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: fmt.Errorf("no room for %s", m.ID), Unknown: unknown})
			}
		}
		if e.Failures == nil {
			return nil
		}
		return fmt.Errorf("publish: %w", &e)
	}
}

func newRelay(t testing.TB, s outbox.Store, p producer.Publisher, c outbox.Config) *outbox.Relay {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	r, err := outbox.NewRelay(s, p, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start runs a relay and returns what stops it and waits for its end.
func start(t *testing.T, r *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
}

// after lets virtual time pass.
func after(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d)
	synctest.Wait()
}

// journal is a log.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}
