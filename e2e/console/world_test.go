package console_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A world is a console and what it shows. It is mounted under a prefix.
type world struct {
	t           *testing.T
	url         string // of the overview
	store       *dedupstore.Memory
	box         *sqliteoutbox.Outbox
	deadLetters *consumertest.Letters
	reruns      *consumertest.Reruns

	mu         sync.Mutex
	audit      []console.Entry
	deliveries int64
}

// everything lets everybody do everything.
func everything(*http.Request, console.Action) (string, error) { return "ada", nil }

// newWorld makes a world whose visitors may do what authorize says; nil: look.
func newWorld(t *testing.T, authorize func(*http.Request, console.Action) (string, error)) *world {
	t.Helper()
	if authorize == nil {
		authorize = console.ViewOnly
	}
	w := &world{t: t, deadLetters: &consumertest.Letters{}}
	var err error
	if w.store, err = dedupstore.NewMemory(dedupstore.MemoryConfig{}); err != nil {
		t.Fatal(err)
	}
	w.reruns = &consumertest.Reruns{Store: w.store}
	w.deadLetters.To = w.reruns
	w.box = newBox(t)
	w.fill()
	c, err := console.New(console.Config{
		Stores:      []console.Store{{Name: "records", Inspector: w.store}},
		Outboxes:    []console.Outbox{{Name: "shop", Inspector: w.box}},
		DeadLetters: []console.DeadLetterTopic{{Name: "dead.billing", Source: w.deadLetters}},
		Counters:    w.counters,
		Findings: func(context.Context) ([]health.Finding, error) {
			return []health.Finding{
				{Severity: "error", Subject: "Redis 127.0.0.1:6379",
					Finding: "maxmemory-policy is allkeys-lru: records are evicted before their window ends. " +
						"Set noeviction."},
				{Severity: "warning", Subject: "stream ORDERS",
					Finding: "its messages live for 30 days, outcomes for 7: a replay of older messages " +
						"runs them again."},
			}, nil
		},
		TraceSearch: "https://traces.example.com/search?id={id}",
		Trace:       "https://traces.example.com/trace/{trace}",
		Authorize:   authorize,
		Audit: func(_ context.Context, e console.Entry) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.audit = append(w.audit, e)
		},
		Every: 100 * time.Millisecond, Rate: 1000,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.url = serve(t, c, "/ops/console/") + "/ops/console/"
	return w
}

// serve runs a console under a prefix until the test ends, and returns the server's address.
func serve(t *testing.T, c *console.Console, prefix string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(prefix, c.Handler())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return server.URL
}

func newBox(t *testing.T) *sqliteoutbox.Outbox {
	t.Helper()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 24 {
		topic := []string{"orders.created", "orders.cancelled", "receipts"}[i%3]
		m := producer.Message{ID: fmt.Sprintf("order-4712-%02d", i), Topic: topic, Key: "customer-7",
			Payload: []byte(`{"cents":1200}`)}
		if i >= 20 {
			m.NotBefore = time.Now().Add(time.Hour)
		}
		if err := box.InSQL(tx).Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	rows, err := box.Lease(t.Context(),
		outbox.LeaseRequest{Token: "the-relay-of-this-test", Limit: 14, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var results []outbox.Result
	for i, row := range rows {
		r := outbox.Result{Number: row.Number, State: outbox.Published}
		if i%4 == 1 {
			r.State, r.Error = outbox.Dead, "nats: maximum payload exceeded"
		}
		results = append(results, r)
	}
	if err := box.Settle(t.Context(), "the-relay-of-this-test", results); err != nil {
		t.Fatal(err)
	}
	return box
}

// counters count two deliveries a sample, one of them a duplicate.
func (w *world) counters(context.Context) ([]console.Counter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliveries++
	n := w.deliveries
	of := func(handler, outcome, cause string, n int64) console.Counter {
		return console.Counter{Group: "billing", Handler: handler, Outcome: outcome, Cause: cause, Count: n}
	}
	return []console.Counter{
		of("charge", "claimed", "", 100+3*n+n*n/40), of("charge", "reclaimed", "", 7+n/9),
		of("charge", "duplicate_completed", "producer_retry", 20+n),
		of("charge", "duplicate_in_progress", "broker_redelivery", 5+n/3),
		of("charge", "duplicate_failed", "broker_redelivery", 3+n/7), of("receipt", "claimed", "", 80+2*n),
		of("receipt", "duplicate_completed", "relay_resend", 4+n/5),
	}, nil
}

func key(handler, id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "default", Group: "billing", Handler: handler, ID: id}
}

const day = 24 * time.Hour

// claim claims a key for a run.
func (w *world) claim(k dedupstore.Key) dedupstore.Claim {
	w.t.Helper()
	a, err := dedupstore.ClaimOne(w.t.Context(), w.store, dedupstore.Request{
		Key: k, Owner: "owner-" + producer.NewID(), Lease: time.Hour, Retention: day, MaxAttempts: 5,
		Holder: "billing-7f9c4:12", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	})
	if err != nil || a.Status != dedupstore.AcquiredRun {
		w.t.Fatal(a.Status, err)
	}
	return a.Claim
}

func (w *world) settle(c dedupstore.Claim, s dedupstore.Settlement) {
	w.t.Helper()
	if err := dedupstore.SettleOne(w.t.Context(), w.store, c, s); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) end(k dedupstore.Key, o dedupstore.Outcome) {
	w.t.Helper()
	w.settle(w.claim(k), dedupstore.Finish{Outcome: o, Retention: day, Took: 42 * time.Millisecond, Published: true})
}

// reasons are why messages failed, with how many did.
var reasons = []struct {
	text string
	n    int
}{
	{"card declined: insufficient funds (card ending in %04d)", 9},
	{"the payment gateway answers 500 for charge %d", 4},
	{"order %d has no customer", 2}, {"context deadline exceeded", 1},
}

// fill makes records in every state.
func (w *world) fill() {
	for i := range 70 {
		k := key([]string{"charge", "receipt"}[i%2], fmt.Sprintf("order-%05d", 10000+i))
		w.end(k, dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(`{"charged":1200}`),
			Produced: []dedupstore.Produced{
				{ID: fmt.Sprintf("receipt-%05d", 10000+i), Topic: "receipts", Key: "customer-7"},
			}})
		if i%5 == 0 {
			w.duplicates(k, 1+i%3)
		}
	}
	n := 0
	for _, r := range reasons {
		for range r.n {
			reason := r.text
			if strings.Contains(reason, "%") {
				reason = fmt.Sprintf(r.text, 1000+37*n)
			}
			w.end(key("charge", fmt.Sprintf("failed-%03d", n)),
				dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: n%4 == 3, Reason: reason})
			n++
		}
	}
	w.bury()
	for i := range 3 {
		w.end(key("charge", fmt.Sprintf("unknown-%d", i)), dedupstore.Outcome{Kind: dedupstore.Unknown,
			Reason: "the lease expired in a started run of an irreversible handler"})
	}
	for i := range 4 {
		w.claim(key("receipt", fmt.Sprintf("running-%d", i)))
	}
	for i := range 3 {
		c := w.claim(key("charge", fmt.Sprintf("retry-%d", i)))
		w.settle(c, dedupstore.Release{Delay: time.Hour, Reason: "the payment gateway timed out"})
	}
	c := w.claim(key("charge", "publishing-0"))
	w.settle(c, dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded,
		Produced: []dedupstore.Produced{
			{ID: "receipt-0", Topic: "receipts", Payload: []byte("x")},
		}}, Retention: day})

	// What has a story: a failed attempt, a second one that succeeded, duplicates.
	k := key("charge", "order-4711")
	w.settle(w.claim(k), dedupstore.Release{Reason: "the payment gateway timed out"})
	w.end(k, dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(`{"charged":4711}`)})
	w.duplicates(k, 3)
	w.end(key("receipt", "order-4711"), dedupstore.Outcome{Kind: dedupstore.Succeeded})
	// Nothing of an ID or a reason may become markup.
	w.end(key("charge", `<b onmouseover="alert(1)">&amp;</b>`), dedupstore.Outcome{Kind: dedupstore.Failed,
		Reason: `<script>alert(1)</script>`, Result: []byte(`<img src=x onerror=alert(1)>`)})
}

func (w *world) duplicates(k dedupstore.Key, n int) {
	w.t.Helper()
	err := w.store.NoteDuplicates(w.t.Context(),
		[]dedupstore.Duplicates{{Key: k, Count: n, Last: time.Now().Add(time.Second), Retention: day}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// look returns a record.
func (w *world) look(k dedupstore.Key) dedupstore.Record {
	w.t.Helper()
	records, err := w.store.Look(w.t.Context(), []dedupstore.Key{k})
	if err != nil {
		w.t.Fatal(err)
	}
	return records[0]
}

// entries are the lines of the audit log.
func (w *world) entries() []console.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]console.Entry(nil), w.audit...)
}

// bury adds the dead letters of the first failures, the oldest first.
func (w *world) bury() {
	for i := range 12 {
		r := w.look(key("charge", fmt.Sprintf("failed-%03d", i)))
		l := consumertest.DeadLetter(r.Key, r.Fence, r.Outcome.Reason)
		l.Position, l.Time = fmt.Sprint(100+i), time.Now().Add(-time.Duration(12-i)*7*time.Minute)
		l.Header["x-secret"], l.Payload = "hunter2", []byte(`{"cents":1200}`)
		w.deadLetters.Add(l)
	}
}
