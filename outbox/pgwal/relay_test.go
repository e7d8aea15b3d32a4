package pgwal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_PublishesIfAndOnlyIfCommitted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write(message("before the start"))
	g.start()
	until(t, "what was written before the start", func() bool { return len(g.broker.got()) == 1 }) // calls run side by side
	first, second, third := g.begin(message("first")), g.begin(message("second")), g.begin(message("rolled back"))
	g.commit(second)
	until(t, "the second", func() bool { return len(g.broker.got()) == 2 })
	if err := third.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.commit(first)
	until(t, "the first", func() bool { return len(g.broker.got()) == 3 })
	g.awaitConfirmed()
	if got, want := g.broker.got(), []string{"before the start", "second", "first"}; !slices.Equal(got, want) {
		t.Errorf("published %q, want the order of commits, %q", got, want)
	}
}

func TestRelay_PublishesWhatWasWritten(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.MaxInFlight = 1 }) // in their order
	want := producer.Message{
		ID: "id \"1\"", Topic: "orders.ä", Key: "k", Payload: []byte{0, 1, 255, '\n'},
		Header: producer.Header{"Content-Type": "x/y", "empty": ""},
	}
	var got []producer.Message
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		got = append(got, messages...)
		return nil
	})
	g.write(want, producer.Message{ID: "bare", Topic: "orders"})
	stop := g.start()
	g.awaitConfirmed()
	stop()
	if len(got) != 2 {
		t.Fatalf("published %d", len(got))
	}
	m := got[0]
	if m.ID != want.ID || m.Topic != want.Topic || m.Key != want.Key || !bytes.Equal(m.Payload, want.Payload) {
		t.Errorf("published %+v", m)
	}
	if h := m.Header; h["Content-Type"] != "x/y" || h.Get(producer.HeaderID) != want.ID {
		t.Errorf("published header %v", h)
	}
	if m := got[1]; m.Header.Get(producer.HeaderID) != "bare" || len(m.Payload) != 0 || m.Key != "" {
		t.Errorf("published %+v", m)
	}
}

func TestRelay_MessagesOfAKeyWaitForTheEarlierOnes(t *testing.T) {
	t.Parallel()
	const keys = 7
	n := full(300, 5000)
	g := newRig(t, func(c *settings) { c.MaxAttempts = 1000 })
	g.broker.set(func(_ context.Context, messages []producer.Message) error {
		seen := map[string]bool{}
		var failures []producer.Failure
		for i, m := range messages {
			if seen[m.Key] {
				t.Errorf("two messages of key %s in one call", m.Key)
			}
			seen[m.Key] = true
			if x := rand.IntN(20); x < 2 {
				failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no"), Unknown: x == 0})
			}
		}
		if failures == nil {
			return nil
		}
		return &producer.PublishError{Failures: failures}
	})
	g.start()
	want := map[string][]string{}
	for i := range n {
		m := keyed(fmt.Sprintf("order-%05d", i), fmt.Sprint(i%keys))
		want[m.Key] = append(want[m.Key], m.ID)
		g.write(m)
	}
	g.awaitConfirmed()
	got := map[string][]string{}
	for i, id := range g.broker.got() {
		var number int
		if _, err := fmt.Sscanf(id, "order-%d", &number); err != nil {
			t.Fatal(i, err)
		}
		key := fmt.Sprint(number % keys)
		got[key] = append(got[key], id)
	}
	for key := range want {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("key %s: published %q", key, got[key])
		}
	}
}

// Not parallel: the heap is that of all tests.
func TestRelay_LargeTransactionNeedsBoundedMemory(t *testing.T) {
	const size, most = 10 << 10, 20 << 20 // without a bound it would be twice as much
	n := full(4000, 20_000)
	g := newRig(t, func(c *settings) {
		c.BatchSize, c.MaxPending, c.MaxInFlight, c.MaxPendingBytes = 100, 200, 1, 1<<30
	})
	hang, open := make(chan struct{}), false
	g.broker.set(func(ctx context.Context, _ []producer.Message) error {
		select {
		case <-hang:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	messages, payload := numbered(n), make([]byte, size)
	for i := range messages {
		messages[i].Payload = payload
	}
	tx := g.begin()
	for part := range slices.Chunk(messages, 100) {
		g.add(tx, part...)
	}
	g.commit(tx)
	before := heap()
	stop := g.start()
	defer func() {
		if !open {
			close(hang)
		}
		stop()
	}()
	until(t, "the first call", func() bool { return g.broker.attempts("order-00000") == 1 })
	var peak int64
	for range 20 {
		lasts(50 * time.Millisecond)
		peak = max(peak, heap()-before)
	}
	t.Logf("%d KiB more for %d KiB", peak>>10, n*size>>10)
	if peak > most {
		t.Errorf("a transaction of %d KiB needs %d KiB of memory, want at most %d KiB", n*size>>10, peak>>10, most>>10)
	}
	if got := len(g.broker.got()); got != 0 {
		t.Errorf("%d acknowledged", got)
	}
	open = true
	close(hang)
	until(t, "all", func() bool { return len(g.broker.got()) == n })
	g.awaitConfirmed()
	if !slices.IsSorted(g.broker.got()) {
		t.Error("one call at a time does not keep the order")
	}
}

// heap is how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestRelay_RecordsWhatIsPublished(t *testing.T) {
	t.Parallel()
	for _, retention := range []time.Duration{time.Hour, outbox.DeleteAtOnce} {
		t.Run(fmt.Sprint(retention), func(t *testing.T) {
			t.Parallel()
			g := newRig(t, func(c *settings) { c.Retention = retention })
			g.start()
			g.write(numbered(10)...)
			g.awaitConfirmed()
			kept := value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NOT NULL`)
			all := value[int](g, `SELECT count(*) FROM oncemill_outbox`)
			want := 10
			if retention == outbox.DeleteAtOnce {
				want = 0
			}
			if kept != want || all != want {
				t.Errorf("%d rows, %d of them published, want %d", all, kept, want)
			}
		})
	}
}

func TestRelay_CleansWhenTheRetentionIsOver(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.Retention = time.Hour })
	g.write(numbered(3)...)
	g.exec(`UPDATE oncemill_outbox SET published_at = now() - interval '2 hours' WHERE id <> 'order-00002'`)
	g.start()
	until(t, "the cleaning", func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox`) == 1 })
	g.awaitConfirmed()
	if got := g.broker.got(); !slices.Equal(got, []string{"order-00002"}) {
		t.Errorf("published %q, want only what was pending", got)
	}
}

// A table that an outbox.Relay published in order is cleaned too.
func TestRelay_CleansAnOrderedTable(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.Retention = time.Hour })
	g.write(numbered(1)...)
	g.exec(`UPDATE oncemill_outbox SET published_at = now() - interval '2 hours'`)
	g.exec(`UPDATE oncemill_outbox_settings SET ordered = true`)
	g.start()
	until(t, "the cleaning", func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox`) == 0 })
}

func TestRelay_PoisonIsParkedAndHoldsUpItsKeyOnly(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) {
		c.MaxAttempts, c.Backoff.Min, c.Backoff.Max = 3, 100*time.Millisecond, 100*time.Millisecond
	})
	g.broker.set(refuse("poison"))
	g.start()
	g.write(keyed("poison", "k"), keyed("after", "k"), keyed("other", "l"), message("loose"))
	until(t, "the others", func() bool { return len(g.broker.got()) == 2 })
	if g.broker.attempts("after") > 0 {
		t.Error("the key did not wait")
	}
	if g.slot("confirmed_flush_lsn") == "" {
		t.Error("no slot")
	}
	until(t, "the key to go on", func() bool { return len(g.broker.got()) == 3 })
	g.awaitConfirmed()
	dead := g.dead()
	if len(dead) != 1 {
		t.Fatalf("dead: %+v", dead)
	}
	if d := dead[0]; d.ID != "poison" || d.Topic != "orders" || d.Failures != 3 || d.Error != "no such subject" {
		t.Errorf("dead: %+v", d)
	}
	if n := g.broker.attempts("poison"); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	if got := g.broker.copies(); got["other"] != 1 || got["loose"] != 1 || got["after"] != 1 {
		t.Errorf("copies: %v", got)
	}
	g.broker.set(nil)
	if n, err := g.box.Requeue(t.Context(), outbox.RowInfo{ID: "poison"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	until(t, "the requeued one", func() bool { return len(g.broker.got()) == 4 })
	until(t, "its record", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NULL`) == 0
	})
}

func TestRelay_FailuresAreCountedThroughRestarts(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) {
		c.MaxAttempts, c.Backoff.Min, c.Backoff.Max = 4, 10*time.Millisecond, 10*time.Millisecond
	})
	g.broker.set(refuse("poison"))
	g.write(message("poison"))
	stop := g.start(func(c *settings) { c.Backoff.Min, c.Backoff.Max = time.Minute, time.Minute })
	until(t, "the record of a failure", func() bool {
		return value[int](g, `SELECT coalesce(sum(failures), 0) FROM oncemill_outbox`) == 1
	})
	stop()
	g.start()
	until(t, "its end", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE dead_at IS NOT NULL`) == 1
	})
	if n := g.broker.attempts("poison"); n != 4 {
		t.Errorf("%d attempts, want 4", n)
	}
}

func TestRelay_OneThatPanicsOrHangsTakesOthersAlongOnce(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.PublishTimeout, c.StoreTimeout = 50*time.Millisecond, time.Second })
	g.broker.set(func(ctx context.Context, messages []producer.Message) error {
		for _, m := range messages {
			switch m.ID {
			case "panics":
				panic("cannot encode")
			case "hangs":
				<-ctx.Done()
				return ctx.Err()
			}
		}
		return nil
	})
	g.write(append(numbered(20), message("panics"), message("hangs"))...)
	g.start()
	until(t, "the others", func() bool { return len(g.broker.got()) == 20 })
	g.write(message("later"))
	until(t, "a later one", func() bool { return slices.Contains(g.broker.got(), "later") })
	if n := g.broker.attempts("order-00000"); n > 2 {
		t.Errorf("%d attempts of an innocent one, want at most 2", n)
	}
	g.broker.set(nil)
	until(t, "the suspects", func() bool { return len(g.broker.got()) == 23 })
	g.awaitConfirmed()
	if strings.Contains(g.log.String(), "is dead") {
		t.Error("one without an answer died")
	}
}

func TestRelay_OutageLosesNothing(t *testing.T) {
	t.Parallel()
	n := full(500, 5000)
	g := newRig(t, func(c *settings) { c.MaxAttempts, c.BatchSize, c.MaxPending = 1, 50, 100 })
	g.broker.set(func(context.Context, []producer.Message) error { return errors.New("connection refused") })
	g.write(message("first"))
	ceiling := value[string](g, `SELECT pg_current_wal_insert_lsn()::text`) // not before the end of its commit
	g.start()
	until(t, "an attempt", func() bool { return g.broker.attempts("first") > 0 })
	for _, m := range numbered(n) {
		g.write(m)
	}
	lasts(time.Duration(full(300, 30_000)) * time.Millisecond)
	if confirmed := g.slot("confirmed_flush_lsn"); !value[bool](g, `SELECT '`+confirmed+`'::pg_lsn < '`+ceiling+`'::pg_lsn`) {
		t.Errorf("confirmed %s, although nothing from before %s was acknowledged", confirmed, ceiling)
	}
	g.broker.set(nil)
	until(t, "all", func() bool { return len(g.broker.got()) == n+1 })
	g.awaitConfirmed()
	for id, copies := range g.broker.copies() {
		if copies != 1 {
			t.Errorf("%s acknowledged %d times", id, copies)
		}
	}
}

func TestRelay_ReconnectsWhenItsBackendIsKilled(t *testing.T) {
	t.Parallel()
	n, kills := full(400, 5000), full(4, 50)
	g := newRig(t)
	g.start()
	var writer sync.WaitGroup
	writer.Go(func() {
		for _, m := range numbered(n) {
			g.write(m)
		}
	})
	for range kills {
		until(t, "a holder", func() bool { return g.holder() != 0 })
		was := g.holder()
		g.kill()
		until(t, "another one", func() bool { pid := g.holder(); return pid != 0 && pid != was })
	}
	writer.Wait()
	g.awaitConfirmed()
	copies := g.broker.copies()
	if len(copies) != n {
		t.Errorf("published %d of %d", len(copies), n)
	}
	// The relay itself lives, and records what was acknowledged.
	if extra := len(g.broker.got()) - n; extra != 0 {
		t.Errorf("%d copies without a cause", extra)
	}
}

func TestRelay_AnotherOneTakesOver(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	stop := g.start()
	g.write(message("first"))
	g.awaitConfirmed()
	g.start()
	g.write(message("second"))
	g.awaitConfirmed()
	stop()
	stopped := time.Now()
	g.write(message("third"))
	until(t, "the other relay", func() bool { return len(g.broker.got()) == 3 })
	t.Logf("took over after %v", time.Since(stopped))
	g.awaitConfirmed()
	if got, want := g.broker.got(), []string{"first", "second", "third"}; !slices.Equal(got, want) {
		t.Errorf("published %q, want %q", got, want)
	}
}

func TestRelay_CleanStopLeavesNothingToDoAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	messages := numbered(full(200, 2000))
	i := 0
	for range 5 {
		stop := g.start()
		for range len(messages) / 5 {
			g.write(messages[i])
			i++
		}
		stop()
	}
	g.start()
	until(t, "all", func() bool { return len(g.broker.copies()) == len(messages) })
	g.awaitConfirmed()
	if got := g.broker.got(); len(got) != len(messages) {
		t.Errorf("%d copies without a cause", len(got)-len(messages))
	}
}

// A call with a message to a topic that hangs takes all of its time. The keys of other topics do not wait for it with
// each of their messages.
func TestRelay_TopicThatHangsHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.PublishTimeout = time.Second })
	g.broker.set(func(ctx context.Context, messages []producer.Message) error {
		var e producer.PublishError
		for i, m := range messages {
			if m.Topic == "hangs" {
				<-ctx.Done()
				e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: ctx.Err(), Unknown: true})
			}
		}
		if e.Failures == nil {
			return nil
		}
		return &e
	})
	const n = 60 // a second for each would be too much
	var messages []producer.Message
	for i := range n {
		messages = append(messages, keyed(fmt.Sprintf("order-%05d", i), "a"))
	}
	g.write(messages...)
	hung := 0
	hang := func() {
		hung++
		g.write(producer.Message{ID: fmt.Sprint("hangs-", hung), Topic: "hangs", Key: fmt.Sprint(hung)})
	}
	hang()
	g.start()
	until(t, "the key", func() bool {
		hang() // new ones go on coming
		return len(g.broker.got()) == n
	})
	for i, id := range g.broker.got() {
		if want := messages[i].ID; id != want {
			t.Fatalf("message %d is %s, want %s", i, id, want)
		}
	}
}
