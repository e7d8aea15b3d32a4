package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func orderedBox(t testing.TB, cfg pgoutbox.Config) (*pgoutbox.Outbox, *pgxpool.Pool) {
	t.Helper()
	pool := newPool(t)
	cfg.Ordered = true
	return boxIn(t, pool, cfg), pool
}

func keyed(key, id string) producer.Message {
	return producer.Message{ID: id, Key: key, Topic: "orders", Payload: []byte(id)}
}

func TestOrdered_WritersOfAKeyCommitInTheOrderOfTheirRows(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	first, second := begin(t, pool), begin(t, pool)
	publish(t, box, first, keyed("a", "1"))
	written := make(chan error)
	go func() { written <- box.In(second).Publish(context.Background(), keyed("a", "2")) }()
	relaytest.Eventually(t, "the second writer waits for the lock", func() bool {
		var n int
		pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND classid = 'oncemill_outbox_lease'::regclass::oid`).Scan(&n)
		return n == 1
	})
	publish(t, box, begin(t, pool), keyed("another", "3")) // other keys do not wait
	commit(t, first)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	commit(t, second)
	if diff := cmp.Diff([]string{"1", "2"}, idsOf(lease(t, box, "t", time.Minute))); diff != "" {
		t.Error(diff)
	}
}

func publish(t testing.TB, box *pgoutbox.Outbox, tx pgx.Tx, messages ...producer.Message) {
	t.Helper()
	if err := box.In(tx).Publish(context.Background(), messages...); err != nil {
		t.Fatal(err)
	}
}

func TestOrdered_CallsWithManyKeysDoNotWaitForEachOtherInACircle(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 10 {
				var messages []producer.Message
				for _, k := range rand.Perm(20) {
					messages = append(messages, keyed(strconv.Itoa(k), fmt.Sprint(w, i, k)))
				}
				write(t, box, pool, messages...)
			}
		})
	}
	all.Wait()
	if n := count(t, pool, "true"); n != 800 {
		t.Errorf("%d rows, want 800", n)
	}
}

func TestOrdered_LeasesShareKeysAndRowsComeInOrder(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	write(t, box, pool, keyed("a", "a1"), keyed("b", "b1"), keyed("a", "a2"))
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "first", Limit: 1, Lease: time.Minute})
	if err != nil || len(rows) != 1 || rows[0].Message.ID != "a1" || rows[0].OrderKey != "a" {
		t.Fatalf("%+v, %v", rows, err)
	}
	write(t, box, pool, keyed("b", "b2"), keyed("a", "a3"), message("loose"))
	if diff := cmp.Diff([]string{"b1", "loose", "b2"}, idsOf(lease(t, box, "second", time.Minute)), sortedStrings); diff != "" {
		t.Errorf("while a is leased: %s", diff)
	}
	settle(t, box, "first", outbox.Result{Number: rows[0].Number, State: outbox.Published})
	if diff := cmp.Diff([]string{"a2", "a3"}, idsOf(lease(t, box, "third", time.Minute))); diff != "" {
		t.Errorf("after a was settled: %s", diff)
	}
}

var sortedStrings = cmp.Transformer("sorted", func(s []string) string {
	s = slices.Sorted(slices.Values(s))
	return fmt.Sprint(s)
})

func TestOrdered_RowThatWaitsHoldsUpItsOwnKeyOnly(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		result       outbox.Result
		skipDead     bool
		healthy      []string // handed out afterwards
		suspects     []string
		afterDiscard []string
	}{
		{"failed", outbox.Result{State: outbox.Failed, Delay: time.Hour}, false, []string{"b1"}, nil, nil},
		{"failed, due again", outbox.Result{State: outbox.Failed}, false, []string{"a1", "a2", "b1"}, nil, nil},
		{"unknown", outbox.Result{State: outbox.Unknown}, false, []string{"b1"}, []string{"a1"}, nil},
		{"unknown, waits", outbox.Result{State: outbox.Unknown, Delay: time.Hour}, false, []string{"b1"}, nil, nil},
		{"dead", outbox.Result{State: outbox.Dead}, false, []string{"b1"}, nil, []string{"a2"}},
		{"dead, skipped", outbox.Result{State: outbox.Dead}, true, []string{"a2", "b1"}, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			box, pool := orderedBox(t, pgoutbox.Config{SkipDead: tc.skipDead})
			write(t, box, pool, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
			for _, r := range lease(t, box, "t", time.Minute) {
				if r.Message.ID == "a1" {
					tc.result.Number = r.Number
				}
			}
			settle(t, box, "t", tc.result)
			if diff := cmp.Diff(tc.healthy, idsOf(lease(t, box, "healthy", time.Minute)), sortedStrings); diff != "" {
				t.Errorf("handed out: %s", diff)
			}
			if diff := cmp.Diff(tc.suspects, idsOf(leaseKind(t, box, "suspects", time.Minute, true))); diff != "" {
				t.Errorf("suspects: %s", diff)
			}
			if tc.afterDiscard != nil {
				if n, err := box.Discard(t.Context(), outbox.RowInfo{ID: "a1"}); n != 1 || err != nil {
					t.Errorf("Discard = %d, %v", n, err)
				}
				if diff := cmp.Diff(tc.afterDiscard, idsOf(lease(t, box, "later", time.Minute))); diff != "" {
					t.Errorf("after Discard: %s", diff)
				}
			}
		})
	}
}

// The statements are those of docs/outbox.md.
func TestOrdered_RowThatNeverGetsAnAnswerIsGivenUpByHand(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	write(t, box, pool, keyed("a", "a1"), keyed("a", "a2"))
	b := &relaytest.Broker{Answer: func(_ context.Context, messages []producer.Message) error {
		for i, m := range messages {
			if m.ID == "a1" {
				return &producer.PublishError{Failures: []producer.Failure{{Index: i, ID: m.ID, Err: errors.New("no such topic"), Unknown: true}}}
			}
		}
		return nil
	}}
	cfg := relaytest.Quick()
	cfg.PublishTimeout, cfg.Lease = 10*time.Second, 30*time.Second
	relaytest.Start(t, box, b, cfg)
	relaytest.Eventually(t, "the row is listed with its error", func() bool {
		var id, text string
		err := pool.QueryRow(t.Context(), `SELECT id, last_error FROM oncemill_outbox
			WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL ORDER BY coalesce(due_at, written_at) LIMIT 100`).Scan(&id, &text)
		return err == nil && id == "a1" && text == "no such topic"
	})
	relaytest.Eventually(t, "the row is discarded", func() bool {
		mustExec(t, pool, `UPDATE oncemill_outbox SET dead_at = clock_timestamp()
			WHERE id = 'a1' AND topic = 'orders' AND published_at IS NULL AND unknowns IS NOT NULL`)
		n, err := box.Discard(t.Context(), outbox.RowInfo{ID: "a1"})
		return err == nil && n == 1
	})
	relaytest.Eventually(t, "the key goes on", func() bool { return stats(t, box) == outbox.Stats{} })
	if n := b.Copies()["a2"]; n != 1 {
		t.Errorf("what waited was published %d times, want once", n)
	}
}

func TestOrdered_DelayedMessageHoldsUpLaterOnesOfItsKey(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	late := keyed("a", "a2")
	late.NotBefore = time.Now().Add(time.Hour)
	write(t, box, pool, keyed("a", "a1"), late, keyed("a", "a3"), keyed("b", "b1"))
	if diff := cmp.Diff([]string{"a1", "b1"}, idsOf(lease(t, box, "t", time.Minute)), sortedStrings); diff != "" {
		t.Error(diff)
	}
}

func TestOrdered_LeaseThatEndedIsWorkedOffByHeads(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	write(t, box, pool, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
	lease(t, box, "dies", time.Microsecond)
	for _, want := range [][]string{{"a1", "b1"}, {"a2"}} {
		if rows := lease(t, box, "healthy", time.Minute); len(rows) != 0 {
			t.Errorf("%v were handed out as healthy", idsOf(rows))
		}
		rows := leaseKind(t, box, "suspects", time.Minute, true)
		if diff := cmp.Diff(want, idsOf(rows), sortedStrings); diff != "" {
			t.Error(diff)
		}
		var results []outbox.Result
		for _, r := range rows {
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Removed})
		}
		settle(t, box, "suspects", results...)
	}
}

// lanesBroker keeps what arrived, and is unreliable: it refuses, takes messages without an answer, and fails as a whole.
type lanesBroker struct {
	mu      sync.Mutex
	arrived map[string][]int // of each key, the numbers of first copies
	seen    map[string]bool
	copies  int
	faults  atomic.Bool
}

func (b *lanesBroker) Publish(_ context.Context, messages ...producer.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	faults := b.faults.Load()
	if faults && rand.N(20) == 0 {
		return errors.New("connection lost")
	}
	var failures []producer.Failure
	for i, m := range messages {
		if faults && rand.N(10) == 0 {
			failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("refused")})
			continue
		}
		if b.copies++; !b.seen[m.ID] {
			b.seen[m.ID] = true
			n, _ := strconv.Atoi(string(m.Payload))
			b.arrived[m.Key] = append(b.arrived[m.Key], n)
		}
		if faults && rand.N(20) == 0 {
			failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no answer"), Unknown: true})
		}
	}
	if len(failures) > 0 {
		return &producer.PublishError{Failures: failures}
	}
	return nil
}

func (b *lanesBroker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}

func TestOrdered_SeveralRelaysAndFaultsKeepTheOrderOfFirstCopies(t *testing.T) {
	t.Parallel()
	each := 40
	if proof() {
		each = 1000
	}
	const writers, keys = 4, 5
	box, pool := orderedBox(t, pgoutbox.Config{})
	mustExec(t, pool, `CREATE TABLE counters AS SELECT k::text AS key, 0 AS n FROM generate_series(0, $1::integer) AS k`, keys)
	b := &lanesBroker{arrived: map[string][]int{}, seen: map[string]bool{}}
	b.faults.Store(true)
	cfg := relaytest.Quick()
	cfg.BatchSize, cfg.MaxAttempts = 10, 1000
	cfg.PublishTimeout, cfg.Lease = time.Second, 11*time.Second
	for range 4 {
		relaytest.Start(t, boxIn(t, pool, pgoutbox.Config{Ordered: true}), b, cfg)
	}
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				count1(t, box, pool, strconv.Itoa(rand.N(keys)))
			}
		})
	}
	all.Wait()
	b.faults.Store(false)
	relaytest.Eventually(t, "everything is published",
		func() bool { return b.count() == writers*each && stats(t, box).Pending == 0 })
	total := 0
	for key, numbers := range b.arrived {
		total += len(numbers)
		for i, n := range numbers {
			if n != i+1 {
				t.Errorf("key %s: first copies arrived as %v", key, numbers)
				break
			}
		}
	}
	if total != writers*each {
		t.Errorf("%d messages arrived, want %d", total, writers*each)
	}
	t.Logf("%d messages, %d copies", total, b.copies)
}

// count1 counts a key on and tells so, in one transaction: the counter's order is that of the commits.
func count1(t *testing.T, box *pgoutbox.Outbox, pool *pgxpool.Pool, key string) {
	err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		var n int
		if err := tx.QueryRow(context.Background(), `UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n`, key).Scan(&n); err != nil {
			return err
		}
		return box.In(tx).Publish(context.Background(), producer.Message{Topic: "orders", Key: key, Payload: []byte(strconv.Itoa(n))})
	})
	if err != nil {
		t.Error(err)
	}
	box.Wake()
}

// All rows of a batch were published at the same time. Their place in the table says nothing, because several
// connections write.
func TestOrdered_ReplayInPartsKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	ids := []string{"1", "2", "3", "4", "5"}
	for _, id := range ids {
		write(t, box, pool, keyed("a", id))
	}
	publishAll := func(token string) (sent []string) {
		var results []outbox.Result
		for _, r := range lease(t, box, token, time.Minute) {
			sent = append(sent, r.Message.ID)
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Published})
		}
		settle(t, box, token, results...)
		return sent
	}
	publishAll("first")
	for _, id := range slices.Backward(ids) { // the last one now lies before the others
		mustExec(t, pool, `UPDATE oncemill_outbox SET published_at = published_at - interval '1 minute' WHERE id = $1`, id)
	}
	var asked time.Time
	if err := pool.QueryRow(t.Context(), `SELECT clock_timestamp() - interval '1 second'`).Scan(&asked); err != nil {
		t.Fatal(err)
	}
	var again []string
	for n := 2; n == 2; {
		var err error
		if n, err = box.Replay(t.Context(), outbox.ReplayRequest{Before: asked, Limit: 2}); err != nil {
			t.Fatal(err)
		}
		again = append(again, publishAll(strconv.Itoa(len(again)))...)
	}
	if !slices.Equal(again, ids) {
		t.Errorf("the copies of a key were published as %v, want %v", again, ids)
	}
}

func TestOrdered_LongKeyIsRefused(t *testing.T) {
	t.Parallel()
	box, pool := orderedBox(t, pgoutbox.Config{})
	tx := begin(t, pool)
	err := box.In(tx).Publish(t.Context(), keyed(strings.Repeat("k", 1025), "1"))
	if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != "Message.Key" {
		t.Errorf("error %v", err)
	}
	publish(t, box, tx, keyed("a", "1"))
}
