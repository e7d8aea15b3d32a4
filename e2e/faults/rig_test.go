package faults_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
)

// Nothing that the tests start outlives them.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // servers are down on purpose
	_ = mysql.SetLogger(silent{})
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
func (silent) Print(...any)                           {}

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

// full is the first value in a proof, else the second.
func full[T any](inProof, reduced T) T {
	if proof {
		return inProof
	}
	return reduced
}

// taskArguments are those of a process that runs one test, which does a task.
func taskArguments(t *testing.T, test string, j any) []string {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"-test.run=^" + test + "$", "-test.timeout=3h", "job=" + string(text)}
}

// taskOf is the task that this process got. Without one, the test is skipped.
func taskOf[J any](t *testing.T) (j J) {
	t.Helper()
	text, ok := strings.CutPrefix(flag.Arg(0), "job=")
	if !ok {
		t.Skip("other tests run it")
	}
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	return j
}

// patience bounds every wait for something that must come.
const waitLimit = 2 * time.Minute

// until polls for a condition.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}

// lasts waits for something that takes its time, such as an outage.
func lasts(d time.Duration) { <-time.After(d) }

// A setup says what a rig does.
type setup struct {
	rate   int           // messages a second that are offered; 0: none but those of publish
	window int           // deliveries in flight at most; 0: 64
	lease  time.Duration // 0: the default
	keep   time.Duration // 0: the default

	// work is what a handler does after its effect. Nil: nothing.
	work func(ctx context.Context, r oncemill.Run)
}

// A rig is a broker, workers and a guarded handler over a store. The broker delivers at least once. It has a
// window of deliveries in flight, delivers again when a decision says so, and forgets a copy only when it is
// acknowledged or rejected. Every fifth message comes twice, at once, and every 25th once more, later.
type rig struct {
	setup
	*ledger.Ledger

	t         *testing.T
	processor *consumer.Processor

	queue      chan string // copies to deliver
	deliveries atomic.Int64
	pending    atomic.Int64 // copies that are not acknowledged

	mu        sync.Mutex
	published int

	stopOffer context.CancelFunc
	stop      context.CancelFunc
	offering  sync.WaitGroup
	workers   sync.WaitGroup
	closed    sync.Once
}

// lateCopy is after how many further messages the late copies come.
const lateCopy = 100

// newRig starts a rig with a store that uses the client.
func newRig(t *testing.T, rdb redis.UniversalClient, s setup) *rig {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, store, s)
	t.Cleanup(func() {
		r.close()
		store.Close()
	})
	return r
}

// newRigOn starts a rig with a store.
func newRigOn(t *testing.T, store dedupstore.Store, s setup) *rig {
	t.Helper()
	if s.window == 0 {
		s.window = 64
	}
	r := &rig{setup: s, t: t, Ledger: ledger.New(store), queue: make(chan string, 1<<19)}
	var err error
	r.processor, err = consumer.New(r.Ledger, consumer.Config{
		Group: "billing", MaxWait: s.keep, DeadLetters: r.Ledger, DeadLetterTopic: "dead",
		Policy: oncemill.Policy{
			Lease: s.lease, Backoff: oncemill.Backoff{Min: 100 * time.Millisecond},
			Logger: slog.New(slog.DiscardHandler),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var offer, ctx context.Context
	offer, r.stopOffer = context.WithCancel(context.Background())
	ctx, r.stop = context.WithCancel(context.Background())
	if s.rate > 0 {
		r.offering.Go(func() { r.offer(offer) })
	}
	for range s.window {
		r.workers.Go(func() { r.work(ctx) })
	}
	t.Cleanup(r.close)
	return r
}

// offer publishes at the rate.
func (r *rig) offer(ctx context.Context) {
	began, published := time.Now(), 0
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := int(time.Since(began).Seconds() * float64(r.rate))
		r.publish(due - published)
		published = due
	}
}

// publish adds messages.
func (r *rig) publish(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range n {
		i := r.published
		r.published++
		r.Ask(orderID(i))
		r.enqueue(i)
		if i%5 == 0 {
			r.enqueue(i)
		}
		if late := i - lateCopy; late >= 0 && late%25 == 0 {
			r.enqueue(late)
		}
	}
}

// redeliver delivers every message once more, as a broker does that was set back.
func (r *rig) redeliver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.published {
		r.enqueue(i)
	}
}

func (r *rig) enqueue(i int) {
	r.pending.Add(1)
	r.queue <- orderID(i)
}

func orderID(i int) string { return fmt.Sprintf("order-%06d", i) }

// work delivers copies until the rig is closed.
func (r *rig) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-r.queue:
			r.deliver(ctx, id)
		}
	}
}

// deliver delivers a copy until it is acknowledged.
func (r *rig) deliver(ctx context.Context, id string) {
	d := consumer.Delivery{
		Handler: "charge", Topic: "orders", Header: producer.Header{producer.HeaderID: id}, Payload: []byte(id),
	}
	for {
		r.deliveries.Add(1)
		decision := r.processor.Process(ctx, d, r.handle)
		pause := decision.Delay
		switch decision.Action {
		case consumer.Ack, consumer.Reject:
			r.Over(id)
			r.pending.Add(-1)
			return
		case consumer.Leave:
			pause = time.Second // the ack deadline
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (r *rig) handle(ctx context.Context) error {
	run := oncemill.FromContext(ctx)
	r.Does(run)
	if r.setup.work != nil {
		r.setup.work(ctx, run)
	}
	return nil
}

// progress waits for further effects.
func (r *rig) progress(n int) {
	r.t.Helper()
	target := r.Done() + n
	until(r.t, fmt.Sprintf("%d effects", target), func() bool { return r.Done() >= target })
}

// drain waits until every copy that was offered is acknowledged.
func (r *rig) drain() {
	r.t.Helper()
	until(r.t, "all copies to be acknowledged", func() bool { return r.pending.Load() == 0 })
}

// finish offers nothing more, waits until everything is acknowledged, and closes the books.
func (r *rig) finish() ledger.Books {
	r.t.Helper()
	r.stopOffer()
	r.offering.Wait()
	r.drain()
	r.close()
	return r.Balance(int(r.deliveries.Load()))
}

// close ends what the rig has started.
func (r *rig) close() {
	r.closed.Do(func() {
		r.stopOffer()
		r.offering.Wait()
		r.stop()
		r.workers.Wait()
	})
}

// client returns a client with the settings that the store recommends.
func client(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// A durable is a server whose append-only file the test knows.
type durable struct {
	*redistest.Server
	dir string
}

// newDurable starts a server with an append-only file.
func newDurable(t *testing.T, fsync string) durable {
	t.Helper()
	dir := t.TempDir()
	return durable{redistest.Start(t, "--appendonly", "yes", "--appendfsync", fsync, "--dir", dir), dir}
}

// log is the part of the append-only file that grows.
func (d durable) log(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(d.dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the server's append-only files are %q, %v; want one", found, err)
	}
	return found[0]
}
